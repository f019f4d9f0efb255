"""Describe what happened to a child process: its end, errors for its callers, and events for those who watch it.

Invariants:

- Each error and event names the child.
- An end comes with the child's last words, cleaned so that they can do nothing to a terminal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from learner.trainer_api.exit_reasons import FATAL, LAST_WORDS, LastWords, cut, explained, how_ended
from node.processes.spec import RestartLimits
from protocol.core.pipe import Arrays, Header

QUOTED_LINES = 20
"""Lines of stderr that a crash report quotes: the end of a Python traceback, and the message."""


@dataclass(frozen=True, kw_only=True)
class ChildExit:
    """How a child ended. `returncode` as in subprocess (negative: a signal); `reason` if we ended it ourselves; the
    last lines of its stderr."""

    name: str
    returncode: int | None
    reason: str | None
    stderr_tail: tuple[str, ...]

    def __str__(self) -> str:
        words = " / ".join(self.last_words)
        told = f"the {self.name} process {self.predicate}{f'; its last words: {words}' if words else ''}"
        own = f"{self.name}: ", FATAL
        # Lines that the sentence above already contains are not repeated.
        quoted = [line for line in self.stderr_tail[-QUOTED_LINES:] if not line.startswith(own)]
        return "\n".join([told, *(f"  | {line}" for line in quoted)])

    @property
    def predicate(self) -> str:
        """Return how it ended, as a predicate, and why, if the child said that itself."""
        return f"{self._how()}: {self._words.cause}" if self._words.cause else self._how()

    @property
    def last_words(self) -> tuple[str, ...]:
        """Return the last few lines of the child that are not blank."""
        return self._words.quoted

    @property
    def _words(self) -> LastWords:
        """Return the child's own account of its end: the last lines, as far as they begin with its name, as a
        launcher's do; otherwise what the exit code and the last lines tell."""
        name = f"{self.name}: "
        own = list(takewhile(lambda line: line.startswith(name), reversed(self.stderr_tail)))[: LAST_WORDS + 1]
        if own:
            cause, *quoted = [cut(line.removeprefix(name)) for line in reversed(own)]
            return LastWords(cause=cause, quoted=tuple(quoted))
        return explained(self.returncode, self.stderr_tail)

    def _how(self) -> str:
        if self.reason is not None:
            return f"was ended: {self.reason}"
        return "does not end, not even when killed" if self.returncode is None else how_ended(self.returncode)


class ChildError(Exception):
    """Base of the errors that a call to a child raises."""


class ChildCrashed(ChildError):
    """The child ended during this call, or before it was first ready. It is being restarted unless the error says
    otherwise."""

    def __init__(self, exit: ChildExit) -> None:
        super().__init__(str(exit))
        self.exit = exit


class ChildGaveUp(ChildError):
    """The child crashed too often and is no longer restarted. `exit` is its last end."""

    def __init__(self, exit: ChildExit, limits: RestartLimits) -> None:
        often = f"restarted {limits.max_restarts} times in {limits.window_s:.0f} s and given up"
        super().__init__(f"{exit}\n{often}; fix the cause above, then start the node again")
        self.exit = exit


class ChildRefused(ChildError):
    """The child answered that it cannot do this. `kind` is for programs, `error` for people."""

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
    """A line on the child's stderr."""

    name: str
    line: str


@dataclass(frozen=True, kw_only=True)
class ChildDied:
    """The child ended although nobody asked it to."""

    name: str
    exit: ChildExit


@dataclass(frozen=True, kw_only=True)
class ChildRestarting:
    """The child will be started again after `delay_s`; `attempt` counts from 1."""

    name: str
    delay_s: float
    attempt: int


@dataclass(frozen=True, kw_only=True)
class ChildAbandoned:
    """The child crashed too often. Every later call raises ChildGaveUp."""

    name: str
    exit: ChildExit


ChildEvent = ChildStarted | ChildSaid | ChildDied | ChildRestarting | ChildAbandoned

OnEvent = Callable[[ChildEvent], None]
OnFrame = Callable[[Header, Arrays], None]
"""Receives the child's events except "ready", in the order in which they and the replies were sent. Must not block or
raise."""
