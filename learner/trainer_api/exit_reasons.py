"""Say in words how a process ended, and what it printed last.

Pure, and without torch: the node uses it for its child processes, the launcher for its ranks.

Invariants:

- A quotation has at most LAST_WORDS lines of LINE_CHARS characters, none of them blank.
- A cause is taken only from what a process prints when it dies (`learner.trainer_api.last_resort_exit`, Python's
  faulthandler, C++), and only if that comes last. Messages that the process may have survived are no cause.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LAST_WORDS = 3
"""Lines that are quoted of a process that ended with an error: a traceback ends with the place and the reason."""

LINE_CHARS = 300
"""Most characters of each quoted line. A longer message begins with what matters, and the log has the rest."""

HEARD_LINES = 200
"""Lines of a process's output that are kept until it has ended. faulthandler prints up to a hundred lines for the
thread that failed, and more for others."""

SHELL_SIGNALS = 128
"""A shell adds this to the number of the signal that ended its command."""

FATAL = "fatal: "
"""A process of this program that says why it ends begins its last line with this
(`learner.trainer_api.last_resort_exit`).
"""

FAULTS = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
    "Bus error": signal.SIGBUS,
}
"""What Python's faulthandler prints after "Fatal Python error: ", and the signal that it caught."""

TIMED_OUT = re.compile(r"Timeout \(\d+:\d\d:\d\d(\.\d+)?\)!")
"""What faulthandler prints before it ends a process that took too long."""

THREW = re.compile(r"\s*what\(\):\s+(?P<what>.+)")
"""What C++ prints of an uncaught exception."""

PLACE = re.compile(r'\s*File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')
"""A line of faulthandler's stack, which begins with the innermost call."""

ASIDE = re.compile(r"\[[WI]\d{4} \d\d:\d\d:\d\d")
"""How warnings of torch's C++ code begin. They never end a process, so they say nothing about its end."""

LOST_CONNECTION = re.compile(r"gloo|nccl|processgroup|connection (closed|reset)|broken pipe|tcpstore", re.IGNORECASE)
"""Words of the libraries by which ranks communicate."""


def how_ended(returncode: int) -> str:
    """Return what a `returncode` of subprocess means; a negative one is a signal."""
    if returncode >= 0:
        by_shell = _signal_name(returncode - SHELL_SIGNALS) if returncode > SHELL_SIGNALS else ""
        return f"ended with exit code {returncode}{f' ({by_shell})' if by_shell else ''}"
    name = _signal_name(-returncode) or f"signal {-returncode}"
    hint = "; if nobody killed it, the machine ran out of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal, which has no name
        return ""


@dataclass(frozen=True, kw_only=True)
class LastWords:
    """Why a process ended, if it said so (`cause`), and what else it printed last (`quoted`)."""

    cause: str = ""
    quoted: tuple[str, ...] = ()


def last_words(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the last of `lines`, oldest first, without blank lines and torch's warnings."""
    said = [line.strip() for line in lines if line.strip() and not ASIDE.match(line)]
    return tuple(map(cut, said[-LAST_WORDS:]))


def explained(returncode: int | None, lines: Sequence[str]) -> LastWords:
    """Return what a process that printed `lines` said about its end. A `returncode` of None means unknown."""
    said = [line.rstrip() for line in lines if line.strip()]
    if said and said[-1].startswith(FATAL):
        return LastWords(cause=cut(said[-1].removeprefix(FATAL)))
    if (start := _dump(returncode, said)) is not None:
        cause = said[start].removeprefix("Fatal Python error: ")
        threw = next((found["what"] for line in said[:start] if (found := THREW.match(line))), "")
        return LastWords(cause=cut(threw or cause), quoted=_innermost(said[start:]))
    if returncode == -signal.SIGABRT:
        threw = next((found["what"] for line in reversed(said) if (found := THREW.match(line))), "")
        return LastWords(cause=cut(threw), quoted=() if threw else last_words(said))
    return LastWords(quoted=last_words(said))


def _dump(returncode: int | None, said: Sequence[str]) -> int | None:
    """Return where faulthandler's report of this end begins; None if there is none."""
    for place in reversed(range(len(said))):
        kind, _, fault = said[place].partition("Fatal Python error: ")
        if not kind and returncode is not None and returncode == -FAULTS.get(fault, 0) != 0:
            return place
        if returncode == 1 and TIMED_OUT.fullmatch(said[place]):
            return place
    return None


def _innermost(report: Sequence[str]) -> tuple[str, ...]:
    """Return where the failing thread was: faulthandler prints it first, or marks it as the current one."""
    threads = [place for place, line in enumerate(report) if line.startswith("Current thread")]
    found = (PLACE.match(line) for line in report[threads[0] if threads else 0 :])
    place = next((one for one in found if one), None)
    return () if place is None else (cut(f"at {place['file']}, line {place['line']}, in {place['function']}"),)


def is_of_lost_connection(said: LastWords) -> bool:
    """Return whether a rank ended because its connection to another rank broke: the other rank's end is the cause."""
    return any(LOST_CONNECTION.search(line) for line in (said.cause, *said.quoted))


def cut(line: str) -> str:
    """Return `line`, cut to LINE_CHARS characters."""
    return line if len(line) <= LINE_CHARS else f"{line[: LINE_CHARS - 1]}…"
