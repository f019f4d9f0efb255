"""What machines that train together say to each other, what happens to each, and what is to be done.

Each machine says one thing again and again: all that it knows, with a count that grows. So nothing depends on how often
something arrives, and a machine whose count stands still has gone.

    Present   any machine but the first: I am here, with so many ranks; later: my ranks have ended, in this way
    Word      the first: you may not take part; begin, all are here; stop, end your ranks; verdict, why it is over
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

FIRST = 0
"""The number of the machine on which the node runs."""

POLL_S = 0.25
"""How often each machine says what it knows: a few hundred bytes, so that an end is known in half a second."""

SILENT_S = 30.0
"""A machine that says nothing new for so long has gone. Longer than a network takes to find another way, and much
shorter than the ranks would wait for each other."""

STALE_S = 3.0
"""The same for a machine that leaves its place to another launcher of its number, and when it is asked why all ended:
ten times what it takes to say something."""

SETTLE_S = 5.0
"""How long the machines wait for each other's word on why it is over, once it is."""

FIRST_TOLD_S = 10.0
"""A wait is told after so long: whoever starts all machines with one command need not hear of it."""

TOLD_AGAIN_S = 60.0
"""And again so often, for as long as it lasts."""

WORD_CHARS = 2000
"""Of each sentence that travels: a paragraph."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """An end that nobody asked for: `cause` in words, what the rank said last, `ago_s` seconds before this was said.

    `lost_line`: all that the rank said was that it had lost another one, so what happened there comes first.
    """

    cause: str
    words: tuple[str, ...] = ()
    lost_line: bool = False
    ago_s: float = 0.0


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """What an other machine says. `address` is its own, `reaches` the first machine's as it sees it."""

    count: int
    machines: int
    ranks: int
    address: str = ""
    reaches: str = ""
    ended: bool = False
    end: End | None = None


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What the first machine says. `refused`: why, by place; `begin`: the places that take part, once all are here; an
    empty `verdict` says that all went well.
    """

    count: int
    refused: dict[str, str] = {}
    begin: tuple[str, ...] = ()
    stop: bool = False
    verdict: tuple[str, ...] | None = None


@dataclass(frozen=True, order=True)
class Place:
    """Which machine of how many, and which launcher of that number: each takes the next `seat`, from 1."""

    machine: int
    seat: int

    def __str__(self) -> str:
        return f"{self.machine}/{self.seat}"


# What happens.


@dataclass(frozen=True, kw_only=True)
class Read:
    """What the other machines say now, by place: to `First`."""

    present: Mapping[Place, Present]


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the first machine says now: to `Other`."""

    word: Word


@dataclass(frozen=True, kw_only=True)
class LineLost:
    """The first machine cannot be asked any more: to `Other`."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Ended:
    """This machine's ranks have ended; `end` None: well."""

    end: End | None


@dataclass(frozen=True, kw_only=True)
class Ticked:
    """Time has passed."""


Event = Read | Told | LineLost | Ended | Ticked

# What is to be done.


@dataclass(frozen=True, kw_only=True)
class Tell:
    """Tell people."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Begin:
    """All are here: start the ranks. `reached`: this machine's addresses, as the others see them."""

    reached: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EndRanks:
    """End this machine's ranks, at once."""


@dataclass(frozen=True, kw_only=True)
class Finish:
    """It is over; the lines say why, none that all went well."""

    lines: tuple[str, ...]


Effect = Tell | Begin | EndRanks | Finish


class State(Enum):
    GATHERING = auto()
    TRAINING = auto()
    ENDING = auto()
    OVER = auto()


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why it is over, from one machine: `text`, and what the rank said last."""

    machine: int
    text: str
    words: tuple[str, ...]
    lost_line: bool
    at_s: float

    @property
    def rank(self) -> tuple[bool, float]:
        """The least is told: the earliest, but for ranks that only lost another one."""
        return self.lost_line, self.at_s


def cause_of(machine: int, called: str, end: End, at_s: float) -> Cause:
    text = f"{called}: {end.cause}"[:WORD_CHARS]
    return Cause(machine=machine, text=text, words=end.words, lost_line=end.lost_line, at_s=at_s)


def explain_silence(machine: int, called: str, heard_s: float, why: str) -> Cause:
    """It went without a word after it was last heard, and so before whatever others lost by it."""
    return Cause(machine=machine, text=f"{called} has gone: {why}", words=(), lost_line=False, at_s=heard_s)


def silence(heard_s: float, now_s: float) -> str:
    return f"nothing has been heard of it for {now_s - heard_s:.0f} s"


@dataclass(kw_only=True)
class Wait:
    """When a wait is told: after FIRST_TOLD_S, then every TOLD_AGAIN_S."""

    since_s: float
    _told_s: float | None = None

    def is_news(self, now_s: float) -> bool:
        """Whether it is to be told now; it then counts as told."""
        due = self.since_s + FIRST_TOLD_S if self._told_s is None else self._told_s + TOLD_AGAIN_S
        if now_s < due:
            return False
        self._told_s = now_s
        return True
