"""What becomes of a child process: its end, what that means for who called it, and for who watches.

Errors are for callers, events for the others. What always holds: each names the child, and an end comes with the last
that the child said.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from node.child_spec import RestartLimits
from protocol.pipe import Arrays, Header


@dataclass(frozen=True, kw_only=True)
class ChildExit:
    """How a child ended: `returncode` as in subprocess (negative: a signal), `reason` if we ended it ourselves, last
    stderr lines."""

    name: str
    returncode: int | None
    reason: str | None
    stderr_tail: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"the {self.name} process {self._how()}"]
        lines += [f"  | {line}" for line in self.stderr_tail]
        return "\n".join(lines)

    def _how(self) -> str:
        if self.reason is not None:
            return f"was ended: {self.reason}"
        match self.returncode:
            case None:
                return "does not end, not even when killed"
            case -9:
                return "was killed by SIGKILL; if nobody did that, the machine ran out of memory"
            case code if code < 0:
                return f"was killed by {signal.Signals(-code).name}"
            case code:
                return f"ended with exit code {code}"


class ChildError(Exception):
    """Base of what a call to a child raises."""


class ChildCrashed(ChildError):
    """The child ended under this call, or before it was first ready. It is being restarted unless the error says
    otherwise."""

    def __init__(self, exit: ChildExit) -> None:
        super().__init__(str(exit))
        self.exit = exit


class ChildGaveUp(ChildError):
    """The child crashed too often and is not restarted any more; `exit` is its last end."""

    def __init__(self, exit: ChildExit, limits: RestartLimits) -> None:
        often = f"restarted {limits.max_restarts} times in {limits.window_s:.0f} s and given up"
        super().__init__(f"{exit}\n{often}; mend the cause above, then start the node again")
        self.exit = exit


class ChildRefused(ChildError):
    """The child answered that it cannot do this; `kind` is for programs, `error` for people."""

    def __init__(self, kind: str, error: str) -> None:
        super().__init__(error)
        self.kind = kind
        self.error = error


@dataclass(frozen=True, kw_only=True)
class ChildStarted:
    """The child is ready and prepared, `start_s` after it was started."""

    name: str
    pid: int
    start_s: float


@dataclass(frozen=True, kw_only=True)
class ChildSaid:
    """One line on the child's stderr."""

    name: str
    line: str


@dataclass(frozen=True, kw_only=True)
class ChildDied:
    """The child ended although nobody asked it to."""

    name: str
    exit: ChildExit


@dataclass(frozen=True, kw_only=True)
class ChildRestarting:
    """It will be started again after `delay_s`; `attempt` counts from 1."""

    name: str
    delay_s: float
    attempt: int


@dataclass(frozen=True, kw_only=True)
class ChildAbandoned:
    """It crashed too often; every call raises ChildGaveUp from now on."""

    name: str
    exit: ChildExit


ChildEvent = ChildStarted | ChildSaid | ChildDied | ChildRestarting | ChildAbandoned

OnEvent = Callable[[ChildEvent], None]
OnFrame = Callable[[Header, Arrays], None]
"""Receives the child's own events but "ready", in the order they and the replies were sent; must not block or raise."""
