"""Exchange the messages of machines that train together, in the store at the rendezvous.

Each machine has a place there, and reads the others'.

Invariants:

- A launcher has its own place, even beside another launcher of the same number.
- An unreadable message is ignored: it is from another version, and its author is not heard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeVar

import msgspec
from torch._C._distributed_c10d import PrefixStore, TCPStore

from learner.training.distributed.machines.messages import ConnectionLost, Event, Place, Present, Read, Told, Word
from protocol.core.codec import ready

PREFIX = "volery"
"""Prefix of this program's keys: torchrun has others in the same store."""

WORD = "word"
"""Key under which the first machine writes."""

TRY_S = 10.0
"""Seconds that one attempt to reach the first machine may take."""

ANSWER_S = 60.0
"""Seconds that the store may take to reply; a machine that waits for it is declared gone before that."""

ANY_ADDRESS = "127.0.0.1"
"""Address by which the first machine reaches its own store, whatever its name means to others."""


class Board(Protocol):
    """One machine's view of the store."""

    def exchange(self, said: bytes) -> Event:
        """Write this machine's message, and return what the others say. Waits for the store."""
        ...


class NoStore(Exception):
    """The store cannot be opened or reached; the message says why."""


@dataclass(frozen=True)
class FirstBoard:
    """The view of the first machine, which holds the store."""

    store: TCPStore
    machines: int
    holders: Callable[[], Collection[Place]]

    @classmethod
    def open(cls, port: int, machines: int, holders: Callable[[], Collection[Place]]) -> FirstBoard:
        """Hold the store at `port`, on all addresses of this machine. `holders` returns the places that take part so
        far; for each number these and the newest place are read. Raises NoStore when the port is taken.
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
    """The view of any other machine."""

    store: TCPStore
    place: Place

    @classmethod
    def open(cls, host: str, port: int, machine: int) -> OtherBoard:
        """Take a place in the store at `host` and `port`. Raises NoStore when it does not reply within TRY_S."""
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
            return ConnectionLost(why="the connection to it ended")
        return ConnectionLost(why="it runs another version") if word is None else Told(word=word)


def first_line(error: Exception) -> str:
    """Return the first line of torch's error message; the rest is a C++ stack."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _seats(machine: int) -> str:
    return f"seats/{machine}"


Said = TypeVar("Said", Present, Word)


def _read(data: bytes, kind: type[Said]) -> Said | None:
    try:
        return msgspec.json.decode(data, type=ready(kind))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
