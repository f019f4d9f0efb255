"""The owner's signals from the program's first line on: the last of them is remembered until a node can heed it.

What always holds: it is imported before anything that takes time, and imports nothing itself but `signal`, so that a
node which is told to pause while Python still imports is not ended by that; programs that are none of a node, and
children, which take nothing of it over, lose nothing.
"""

from __future__ import annotations

import signal
from types import FrameType

_last: int | None = None


def remember() -> None:
    """From now on SIGUSR1 and SIGUSR2 end nothing; what is already handled stays so."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _note)


def remembered() -> int | None:
    """The last that came, None if none did; it is forgotten."""
    global _last
    number, _last = _last, None
    return number


def _note(number: int, _frame: FrameType | None) -> None:
    global _last
    _last = number
