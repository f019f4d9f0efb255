"""What machines that train together say, in the store at the rendezvous: each has a place there, and reads the others'.

Invariants:
- A launcher has a place of its own, also beside another one of the same number.
- What cannot be read is taken for nothing: it is another version's, and its author is not heard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeVar

import msgspec
from torch._C._distributed_c10d import PrefixStore, TCPStore

from learner.training.distributed.machines.messages import Event, LineLost, Place, Present, Read, Told, Word
from protocol.core.codec import ready

PREFIX = "volery"
"""Before our keys: torchrun has others in the same store."""

WORD = "word"
"""Where the first machine writes."""

TRY_S = 10.0
"""How long one attempt to reach the first machine may take."""

ANSWER_S = 60.0
"""How long the store may take to answer; whoever waits for it hears of the silence before that."""

ANY_ADDRESS = "127.0.0.1"
"""By which the first machine reaches its own store, whatever its name means to others."""


class Board(Protocol):
    """One machine's view of it."""

    def exchange(self, said: bytes) -> Event:
        """Write what this machine says, and return what is said to it. Waits for the store."""
        ...


class NoStore(Exception):
    """The store cannot be had; the message says why."""


@dataclass(frozen=True)
class FirstBoard:
    """That of the first machine, which holds the store."""

    store: TCPStore
    machines: int
    holders: Callable[[], Collection[Place]]

    @classmethod
    def open(cls, port: int, machines: int, holders: Callable[[], Collection[Place]]) -> FirstBoard:
        """Hold the store at `port`, on all addresses of this machine. `holders`: who takes part so far; of each number
        these and the newest are read. Raises NoStore when the port is taken.
        """
        try:
            store = TCPStore(
                ANY_ADDRESS, port, None, True, timedelta(seconds=ANSWER_S), wait_for_workers=False, multi_tenant=True
            )
        except RuntimeError as error:
            why = "something else listens there" if "EADDRINUSE" in str(error) else first_line(error)
            raise NoStore(why) from None
        board = cls(store, machines, holders)
        for machine in range(1, machines):
            board._keys.add(_seats(machine), 0)
        return board

    @property
    def _keys(self) -> PrefixStore:
        return PrefixStore(PREFIX, self.store)

    def exchange(self, said: bytes) -> Event:
        keys = self._keys
        keys.set(WORD, said.decode())
        numbers = range(1, self.machines)
        taken = zip(numbers, map(int, keys.multi_get([_seats(machine) for machine in numbers])), strict=True)
        present = {}
        for place in {*self.holders(), *(Place(machine, seat) for machine, seat in taken if seat)}:
            if keys.check([str(place)]) and (one := _read(keys.get(str(place)), Present)) is not None:
                present[place] = one
        return Read(present=present)


@dataclass(frozen=True)
class OtherBoard:
    """That of any other machine."""

    store: TCPStore
    place: Place

    @classmethod
    def open(cls, host: str, port: int, machine: int) -> OtherBoard:
        """Take a place in the store at `host` and `port`. Raises NoStore when nothing answers there within TRY_S."""
        try:
            store = TCPStore(host, port, None, False, timedelta(seconds=TRY_S), wait_for_workers=False)
            store.set_timeout(timedelta(seconds=ANSWER_S))
            return cls(store, Place(machine, PrefixStore(PREFIX, store).add(_seats(machine), 1)))
        except RuntimeError as error:
            raise NoStore(first_line(error)) from None

    def exchange(self, said: bytes) -> Event:
        keys = PrefixStore(PREFIX, self.store)
        try:
            keys.set(str(self.place), said.decode())
            word = _read(keys.get(WORD), Word)
        except RuntimeError:
            return LineLost(why="the connection to it ended")
        return LineLost(why="it runs another version") if word is None else Told(word=word)


def first_line(error: Exception) -> str:
    """The first line of what torch's errors say: the rest is a stack of C++."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _seats(machine: int) -> str:
    return f"seats/{machine}"


Said = TypeVar("Said", Present, Word)


def _read(data: bytes, kind: type[Said]) -> Said | None:
    try:
        return msgspec.json.decode(data, type=ready(kind))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
