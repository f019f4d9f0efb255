"""How a process ended, and what it said last, in words for people.

Pure, and without torch: the node says it of its children, the launcher of its ranks.

Invariants:
- Whatever a process said, its last words are at most LAST_WORDS lines of LINE_CHARS characters, none of them blank.
- A cause is only taken from what a process prints when it dies (`learner.trainer_api.last_resort_exit`, Python's
  faulthandler, C++), as the last that it said, and never from what it may have printed and survived.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LAST_WORDS = 3
"""Lines that are quoted of a process that ended with an error: a traceback ends with where it was and why."""

LINE_CHARS = 300
"""Of each line; a message that is longer begins with what matters, and the log has the rest."""

HEARD_LINES = 200
"""Lines that are kept of what a process said, to be looked at when it has ended: faulthandler says up to a hundred of
the thread that failed, and more of others."""

SHELL_SIGNALS = 128
"""What a shell adds to the number of a signal that ended its command."""

FATAL = "fatal: "
"""With this begins the last line of a process of ours that says why it ends
(`learner.trainer_api.last_resort_exit`).
"""

FAULTS = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
    "Bus error": signal.SIGBUS,
}
"""What Python's faulthandler says after "Fatal Python error: ", by the signal that it met."""

TIMED_OUT = re.compile(r"Timeout \(\d+:\d\d:\d\d(\.\d+)?\)!")
"""What it says before it ends a process whose time is over."""

THREW = re.compile(r"\s*what\(\):\s+(?P<what>.+)")
"""What C++ says of an exception that nobody caught."""

PLACE = re.compile(r'\s*File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')
"""A line of faulthandler's stack, the innermost first."""

ASIDE = re.compile(r"\[[WI]\d{4} \d\d:\d\d:\d\d")
"""So begin torch's warnings from C++, of which no process dies: they say nothing of an end."""

LOST_LINE = re.compile(r"gloo|nccl|processgroup|connection (closed|reset)|broken pipe|tcpstore", re.IGNORECASE)
"""Words of the libraries by which ranks speak to each other."""


def how_ended(returncode: int) -> str:
    """What a `returncode` as in subprocess means, where a negative one is a signal."""
    if returncode >= 0:
        by_shell = _signal_name(returncode - SHELL_SIGNALS) if returncode > SHELL_SIGNALS else ""
        return f"ended with exit code {returncode}{f', as of {by_shell}' if by_shell else ''}"
    name = _signal_name(-returncode) or f"signal {-returncode}"
    hint = "; if nobody did that, the machine ran out of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals, which have none
        return ""


@dataclass(frozen=True, kw_only=True)
class LastWords:
    """Why a process ended by its own word, if it said so, and what else it said last."""

    cause: str = ""
    quoted: tuple[str, ...] = ()


def last_words(lines: Iterable[str]) -> tuple[str, ...]:
    """The last of `lines` that are not blank, nor said aside, oldest first."""
    said = [line.strip() for line in lines if line.strip() and not ASIDE.match(line)]
    return tuple(map(cut, said[-LAST_WORDS:]))


def explained(returncode: int | None, lines: Sequence[str]) -> LastWords:
    """What the end of a process that said `lines` was by its own word; `returncode` None: unknown."""
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
    """Where a report of faulthandler begins that belongs to this end."""
    for place in reversed(range(len(said))):
        kind, _, fault = said[place].partition("Fatal Python error: ")
        if not kind and returncode is not None and returncode == -FAULTS.get(fault, 0) != 0:
            return place
        if returncode == 1 and TIMED_OUT.fullmatch(said[place]):
            return place
    return None


def _innermost(report: Sequence[str]) -> tuple[str, ...]:
    """Where the thread was that met the fault: faulthandler says it first or marks it as the current one."""
    threads = [place for place, line in enumerate(report) if line.startswith("Current thread")]
    found = (PLACE.match(line) for line in report[threads[0] if threads else 0 :])
    place = next((one for one in found if one), None)
    return () if place is None else (cut(f"at {place['file']}, line {place['line']}, in {place['function']}"),)


def is_of_a_lost_line(said: LastWords) -> bool:
    """Whether a rank ended because it could not speak to another one: then what happened to that one matters."""
    return any(LOST_LINE.search(line) for line in (said.cause, *said.quoted))


def cut(line: str) -> str:
    """`line` as far as LINE_CHARS go."""
    return line if len(line) <= LINE_CHARS else f"{line[: LINE_CHARS - 1]}…"
