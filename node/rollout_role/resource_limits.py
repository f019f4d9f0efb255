"""Describe every limit of a `node.toml`: how much of a volunteer's machine the node may use.

Invariants:

- Each limit that can be set is in LIMITS, so `volery status` and the table of the guide list the same ones.
- The text of a limit that has no effect on this machine says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

import psutil

from node.config.common import GB
from node.config.node_config import NodeConfig
from node.engine.factory import half_the_cores
from node.engine.vllm_install import has_gpu

NONE = "none"


def _memory(config: NodeConfig) -> str:
    machine = psutil.virtual_memory().total
    if (allowed := config.limits.ram_bytes(machine)) is None:
        return NONE
    return f"{allowed / GB:.1f} GB{', which is no limit on this machine' if allowed >= machine else ''}"


def _vram(config: NodeConfig) -> str:
    if (share := config.limits.vram_share) is None:
        return NONE
    is_lacking = sys.platform == "linux" and not has_gpu()
    return f"{100 * share:g} % of a GPU" + (", but this machine has no NVIDIA GPU" if is_lacking else "")


def _mbit(value: float | None) -> str:
    return NONE if value is None else f"{value:g} Mbit/s"


def _threads(named: int | None) -> str:
    """Return how many of the machine's cores the engine uses; the system counts each hardware thread as a core."""
    whole = f"of the {os.cpu_count() or 1} cores that the system counts"
    return f"{named} {whole}" if named else f"{half_the_cores()} (half {whole})"


LIMITS: Mapping[str, Callable[[NodeConfig], str]] = {
    "[engine] hours": lambda config: config.engine.hours or "always",
    "[engine] nice": lambda config: str(config.engine.nice),
    "[engine] threads": lambda config: _threads(config.engine.threads),
    "[engine] batch_rollouts": lambda config: str(config.engine.batch_rollouts),
    "[limits] ram_gb": _memory,
    "[limits] ram_share": _memory,
    "[limits] vram_share": _vram,
    "[limits] pause_for": lambda config: ", ".join(config.limits.pause_for) or "no program",
    "[network] upload_mbit": lambda config: _mbit(config.network.upload_mbit),
    "[network] download_mbit": lambda config: _mbit(config.network.download_mbit),
    "[store] quota_gb": lambda config: f"{config.store.quota_gb:g} GB",
}
"""Each key that sets a limit, and a function that returns the limit in force as text. The two keys of memory have one
value: the smaller limit counts."""


def in_force(config: NodeConfig) -> dict[str, str]:
    """Return the limits in force as text, by their keys."""
    return {key: shown(config) for key, shown in LIMITS.items()}
