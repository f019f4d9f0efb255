"""Check and install what an emulated network needs: Linux, root, iproute2, a C compiler for delays, nft for routers.

Invariant: after `require_network` returned, the tools are there. Otherwise its error says in one sentence what is wrong
and what to type. As root on a Debian it installs missing tools, as tools/bootstrap.sh does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

TOOLS = {
    "ip": ("iproute2",),
    "tc": ("iproute2",),
    "cc": ("gcc", "libc6-dev"),
    "nft": ("nftables",),
    "miniupnpd": ("miniupnpd-nftables",),
}
"""Debian's packages for the tools that we call."""

LINKS = ("ip", "tc", "cc")
"""The tools for links, with delays."""

ROUTERS = ("nft", "miniupnpd")
"""The tools for routers: the packet filter, and the daemon that opens ports."""

CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""Linux capabilities that namespaces and their links need, by bit. Root in a container often lacks them."""


class NetworkUnavailable(Exception):
    """This machine cannot emulate a network. The message says why, and what to do."""


def require_network(*, delays: bool = False, routers: Iterable[str] = ()) -> None:
    """Make sure that a network can be emulated here, with the given tools of ROUTERS.

    Raises NetworkUnavailable.
    """
    if reason := obstacle():
        raise NetworkUnavailable(reason)
    wanted = ["ip", "tc", *(["cc"] if delays else []), *routers]
    if packages := _packages(wanted):
        _install(packages)
    if packages := _packages(wanted):
        raise NetworkUnavailable(f"An emulated network needs {' '.join(packages)}, which could not be installed.")


def obstacle() -> str:
    """Return why no network can be emulated here with any tools; empty if one can."""
    if not sys.platform.startswith("linux"):
        return f"An emulated network is made of Linux network namespaces; this is {sys.platform}. Run it on Linux."
    if os.geteuid() != 0:
        return "An emulated network is made of network namespaces, which need root. Run the same with sudo."
    if lacking := [name for name, bit in CAPABILITIES.items() if not _capabilities() >> bit & 1]:
        words = " and ".join(lacking)
        return f"An emulated network needs {words}, which root lacks here. Run it outside of a container."
    return ""


def missing_tools(wanted: Iterable[str] = LINKS) -> list[str]:
    """Return the tools that are not installed."""
    return [tool for tool in wanted if shutil.which(tool) is None]


def _capabilities() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)


def _packages(wanted: Iterable[str]) -> list[str]:
    return sorted({package for tool in missing_tools(wanted) for package in TOOLS[tool]})


def _install(packages: list[str]) -> None:
    if shutil.which("apt-get") is None:
        raise NetworkUnavailable(
            f"An emulated network needs {' '.join(packages)}: install them with your system's package manager."
        )
    print(f"installing Debian packages: {' '.join(packages)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    for command in (install, ["apt-get", "update", "-qq"], install):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if command is install and done.returncode == 0:
            return
    raise NetworkUnavailable(
        f"apt-get could not install {' '.join(packages)}. Run it yourself to see why: "
        f"apt-get update && apt-get install -y {' '.join(packages)}"
    )
