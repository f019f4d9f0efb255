"""Describe every limit of a `node.toml`, and change some of them while the node runs.

A limit says how much of a volunteer's machine the node may use.

Invariants:

- Each limit that can be set is in LIMITS, so `volery status` and the table of the guide list the same ones.
- The text of a limit that has no effect on this machine says so.
- A changed limit is in force before it is shown, and an event names who changed it. It ends with the node.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import psutil

from node.config.common import GB
from node.config.live_limits import CHANGED, SECTIONS, Value, named, value_of, with_limit
from node.config.node_config import NodeConfig
from node.engine.factory import half_the_cores
from node.engine.vllm_install import has_gpu
from node.runtime.errors import UsageError
from node.runtime.events import EventLog

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


Setter = Callable[[NodeConfig], Awaitable[None]]
"""A function that makes one limit of a configuration take effect."""


@dataclass(kw_only=True, eq=False)
class RunningLimits:
    """The limits of a running node. `config`: those in force. `setters`: for each key that this node can change."""

    config: NodeConfig
    setters: Mapping[str, Setter]
    events: EventLog
    _began_with: NodeConfig = field(init=False)

    def __post_init__(self) -> None:
        self._began_with = self.config

    @property
    def shown(self) -> dict[str, str]:
        """Return the limits in force as text, by their keys; a changed one with what it was at the start."""
        now, before = in_force(self.config), in_force(self._began_with)
        return {key: text if text == before[key] else f"{text} ({CHANGED} {before[key]})" for key, text in now.items()}

    @property
    def changeable(self) -> dict[str, Value]:
        """Return the limits that can be changed now, by their keys."""
        return {key: value_of(self.config, key) for key in self.setters}

    async def change(self, key: str, value: Value, by: str) -> None:
        """Give a limit another value from now on; `by` says who asked for it.

        Raises UsageError if this node cannot have it.
        """
        if key in SECTIONS and key not in self.setters:
            raise UsageError(f"{named(key)} has no effect on this node.")
        config = with_limit(self.config, key, value)
        await self.setters[key](config)
        self.config = config
        self.events.emit("limit_changed", key=named(key), value=in_force(config)[named(key)], by=by)
