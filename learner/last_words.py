"""How a process ended, and what it said last, in words for people.

Pure, and without torch: the node says it of its children, the launcher of its ranks. What always holds: whatever a
process said, its last words are at most LAST_WORDS lines of LINE_CHARS characters, none of them blank.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

LAST_WORDS = 3
"""Lines that are quoted of a process that ended with an error: a traceback ends with where it was and why."""

LINE_CHARS = 300
"""Of each line; a message that is longer begins with what matters, and the log has the rest."""


def how_ended(returncode: int) -> str:
    """What a `returncode` as in subprocess means, where a negative one is a signal."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:  # one of the real-time signals, which have none
        name = f"signal {-returncode}"
    hint = "; if nobody did that, the machine ran out of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def last_words(lines: Iterable[str]) -> tuple[str, ...]:
    """The last of `lines` that are not blank, oldest first."""
    said = [line.strip() for line in lines if line.strip()]
    return tuple(map(cut, said[-LAST_WORDS:]))


def cut(line: str) -> str:
    """`line` as far as LINE_CHARS go."""
    return line if len(line) <= LINE_CHARS else f"{line[: LINE_CHARS - 1]}…"
