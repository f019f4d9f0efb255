"""Define the messages between machines that train together, their events and their effects.

Each machine repeats one message: all that it knows, with a count that grows. So nothing depends on how often a message
arrives, and a machine whose count stands still is gone.

    Present   from any machine but the first: I am here, with so many ranks; later: my ranks have ended, in this way
    Word      from the first: you may not take part; begin, all are here; stop, end your ranks; verdict, why it is over
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

FIRST = 0
"""The number of the machine on which the node runs."""

POLL_S = 0.25
"""Seconds between two messages of a machine: a few hundred bytes, so that an end is known in half a second."""

TIMEOUT_S = 30.0
"""A machine that says nothing new for so many seconds is gone. It is longer than a network takes to find another way,
and much shorter than the ranks would wait for each other."""

STALE_S = 3.0
"""The same for a machine whose number another launcher wants, and when the reason for an end is sought: more than ten
times the time between two messages."""

SETTLE_S = 5.0
"""Seconds that the machines wait for each other's report on why it is over."""

FIRST_TOLD_S = 10.0
"""Seconds until a wait is reported. If one command starts all machines, the wait is shorter and needs no report."""

TOLD_AGAIN_S = 60.0
"""Seconds until the report of a wait is repeated, for as long as it lasts."""

WORD_CHARS = 2000
"""Most characters of each sentence that is sent: a paragraph."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """An end that nobody ordered, `ago_s` seconds before this message: `cause` in words, and the rank's last lines.

    `lost_line`: the rank only lost its connection to another rank, so the other rank's end is the cause.
    """

    cause: str
    words: tuple[str, ...] = ()
    lost_line: bool = False
    ago_s: float = 0.0


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """The message of any machine but the first. `address` is its own, `reaches` the first machine's as it sees it."""

    count: int
    machines: int
    ranks: int
    address: str = ""
    reaches: str = ""
    ended: bool = False
    end: End | None = None


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """The message of the first machine. `refused`: reasons by place; `begin`: the places that take part, once all are
    here; an empty `verdict` means that all went well.
    """

    count: int
    refused: dict[str, str] = {}
    begin: tuple[str, ...] = ()
    stop: bool = False
    verdict: tuple[str, ...] | None = None


@dataclass(frozen=True, order=True)
class Place:
    """A machine's number and its launcher: each launcher of a number takes the next `seat`, from 1."""

    machine: int
    seat: int

    def __str__(self) -> str:
        return f"{self.machine}/{self.seat}"


# Events.


@dataclass(frozen=True, kw_only=True)
class Read:
    """The current messages of the other machines, by place; for `First`."""

    present: Mapping[Place, Present]


@dataclass(frozen=True, kw_only=True)
class Told:
    """The current message of the first machine; for `Other`."""

    word: Word


@dataclass(frozen=True, kw_only=True)
class ConnectionLost:
    """The first machine can no longer be reached; for `Other`."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Ended:
    """This machine's ranks have ended; `end` is None if they ended well."""

    end: End | None


@dataclass(frozen=True, kw_only=True)
class Ticked:
    """Time has passed."""


Event = Read | Told | ConnectionLost | Ended | Ticked

# Effects.


@dataclass(frozen=True, kw_only=True)
class Tell:
    """Report a text to people."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Begin:
    """All machines are here: start the ranks. `reached`: this machine's addresses, as the others see them."""

    reached: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EndRanks:
    """End this machine's ranks, at once."""


@dataclass(frozen=True, kw_only=True)
class Finish:
    """All is over; the lines say why, none if all went well."""

    lines: tuple[str, ...]


Effect = Tell | Begin | EndRanks | Finish


class State(Enum):
    GATHERING = auto()
    TRAINING = auto()
    ENDING = auto()
    OVER = auto()


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why all is over, from one machine: `text`, and the last lines of the rank."""

    machine: int
    text: str
    words: tuple[str, ...]
    lost_line: bool
    at_s: float

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key; the smallest cause is reported: the earliest, but ranks that only lost another rank come last."""
        return self.lost_line, self.at_s


def cause_of(machine: int, called: str, end: End, at_s: float) -> Cause:
    text = f"{called}: {end.cause}"[:WORD_CHARS]
    return Cause(machine=machine, text=text, words=end.words, lost_line=end.lost_line, at_s=at_s)


def explain_timeout(machine: int, called: str, heard_s: float, why: str) -> Cause:
    """Return the cause that a machine vanished. It dates from when the machine was last heard, and so before the
    losses that it caused in others."""
    return Cause(machine=machine, text=f"{called} has gone: {why}", words=(), lost_line=False, at_s=heard_s)


def timeout(heard_s: float, now_s: float) -> str:
    return f"nothing has been heard of it for {now_s - heard_s:.0f} s"


@dataclass(kw_only=True)
class Wait:
    """Decides when to report a wait: after FIRST_TOLD_S, then every TOLD_AGAIN_S."""

    since_s: float
    _told_s: float | None = None

    def is_news(self, now_s: float) -> bool:
        """Return whether to report the wait now; if so, it counts as reported."""
        due = self.since_s + FIRST_TOLD_S if self._told_s is None else self._told_s + TOLD_AGAIN_S
        if now_s < due:
            return False
        self._told_s = now_s
        return True
