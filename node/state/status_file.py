"""Let a running node describe itself to commands on the same machine: `standing.json` in its state directory.

Invariants:

- The file is whole whenever it is read, and gone after the node ended in order.
- A file that a killed node left is recognised, because it names the process and when that began.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import parse_json
from node.runtime.loop_delay import LoopFigures

FILE = "standing.json"

SAME_BIRTH_S = 1.0
"""Seconds by which two readings of a process's start may differ: it is computed from the time since boot, which is
corrected."""


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """The state of a node.

    Args:
        doing: at work, or why not.
        limits: the limits in force, as people read them, by their keys.
        changeable: the limits that can be changed while the node runs, by their keys; None is no limit.
        loop: how long the event loop made others wait; None if not known.
        notice: a message for people, no matter what the node is doing.
        reach: how others reach the node.
    """

    doing: str
    limits: dict[str, str]
    changeable: dict[str, str | float | None] = field(default_factory=dict)
    loop: LoopFigures | None = None
    notice: str = ""
    reach: str = ""


@dataclass(eq=False)
class StatusFile:
    """The status file of the node with the state directory `root`, which this process is."""

    root: Path
    _shown: NodeStatus | None = None
    _notices: dict[str, str] = field(default_factory=dict)

    def show(self, standing: NodeStatus) -> None:
        """Write the state if it has changed. Does not raise: a node that cannot write reports that elsewhere."""
        if standing == self._shown:
            return
        self._shown = standing
        told = {"pid": os.getpid(), "born": psutil.Process().create_time()}
        path, draft = self.root / FILE, self.root / f".{FILE}.draft"
        with suppress(OSError):
            draft.write_text(json.dumps({**told, **asdict(standing)}), encoding="utf-8")
            draft.replace(path)

    def amend(self, **changes: Any) -> None:
        """Show the present state with these fields of `NodeStatus` changed. Each may have an author of its own."""
        assert self._shown is not None, "something is shown from the start"
        self.show(replace(self._shown, **changes))

    def notice(self, about: str, text: str) -> None:
        """Show this notice as well, in place of the last one `about` the same. An empty one removes it."""
        self._notices[about] = text
        self.amend(notice=" ".join(filter(None, self._notices.values())))

    def clear(self) -> None:
        """Remove the file, because the node ends."""
        with suppress(OSError):
            (self.root / FILE).unlink(missing_ok=True)


def standing_of(root: Path) -> NodeStatus | None:
    """Return the state of the node that runs in `root`; None if none does."""
    told = _told(root)
    with suppress(ValueError):
        return None if told is None else msgspec.convert(told, NodeStatus)  # unknown fields are another version's
    return None


def running_pid(root: Path) -> int | None:
    """Return the process id of the node that runs in `root`; None if none does."""
    told = _told(root)
    return None if told is None else int(told["pid"])


def _told(root: Path) -> dict[str, Any] | None:
    """Return what the node that runs in `root` tells of itself; None if none does, or its file is damaged."""
    with suppress(OSError, ValueError, KeyError, TypeError, ArithmeticError):
        told: dict[str, Any] = parse_json(read_file(root / FILE))
        return told if _is_alive(int(told["pid"]), float(told["born"])) else None
    return None


def _is_alive(pid: int, born: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - born) < SAME_BIRTH_S
    except psutil.Error:
        return False
