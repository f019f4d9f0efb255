"""What a running node says of itself to commands on the same machine: `standing.json` in its state directory.

What always holds: it is whole whenever it is read, it is gone when the node ended in order, and what a node that was
killed left behind is told apart, since it names the process and when that was born.
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
"""Between two readings of when a process was born: it is reckoned from the time since boot, which is corrected."""


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """`doing`: at work, or why not; `limits`: those in force, as people read them, by their keys; `loop`: how long its
    event loop made others wait, None where that is not known; `notice`: what somebody should know, whatever it is
    doing; `reach`: how others reach it."""

    doing: str
    limits: dict[str, str]
    loop: LoopFigures | None = None
    notice: str = ""
    reach: str = ""


@dataclass(eq=False)
class StatusFile:
    """Where the node of the state directory `root` writes; its own process is who writes."""

    root: Path
    _shown: NodeStatus | None = None
    _notices: dict[str, str] = field(default_factory=dict)

    def show(self, standing: NodeStatus) -> None:
        """Write it if it is news. Does not raise: who cannot write says so elsewhere, and works on."""
        if standing == self._shown:
            return
        self._shown = standing
        told = {"pid": os.getpid(), "born": psutil.Process().create_time()}
        path, draft = self.root / FILE, self.root / f".{FILE}.draft"
        with suppress(OSError):
            draft.write_text(json.dumps({**told, **asdict(standing)}), encoding="utf-8")
            draft.replace(path)

    def amend(self, **changes: Any) -> None:
        """Show what is shown already, but for these fields of `NodeStatus`: each may have an author of its own."""
        assert self._shown is not None, "something is shown from the start"
        self.show(replace(self._shown, **changes))

    def notice(self, about: str, text: str) -> None:
        """Show this notice as well, in the place of the last one `about` the same; an empty one takes that away."""
        self._notices[about] = text
        self.amend(notice=" ".join(filter(None, self._notices.values())))

    def clear(self) -> None:
        """Nobody is here any more."""
        with suppress(OSError):
            (self.root / FILE).unlink(missing_ok=True)


def standing_of(root: Path) -> NodeStatus | None:
    """What the node that runs in `root` says, None if none does."""
    with suppress(OSError, ValueError, KeyError, TypeError, ArithmeticError):
        told: dict[str, Any] = parse_json(read_file(root / FILE))
        if _is_alive(int(told["pid"]), float(told["born"])):
            return msgspec.convert(told, NodeStatus)  # what a node of another version says besides is passed over
    return None


def _is_alive(pid: int, born: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - born) < SAME_BIRTH_S
    except psutil.Error:
        return False
