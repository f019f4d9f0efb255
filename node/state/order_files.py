"""Leave orders for a running program: one file for each, in `orders` in its state directory.

    <state>/orders/<time>-<number>.json

Files need no listener, and are obeyed in the order in which they were given. `operator_orders` and `owner_orders` say
which orders there are.

Invariants:

- A file appears whole, and its name says when.
- A file that is no order is left where it is, and reported once.
- An order is handed out once, also if its file cannot be removed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import psutil

from learner.artifacts.regular_file import read_file
from node.runtime.errors import RunError
from protocol.core.codec import ready

FOLDER = "orders"
SUFFIX = ".json"
MAX_WAITING = 256
"""Most orders that are read at a time; nobody gives more in a second."""

MAX_ORDER_BYTES = 16 * 1024
"""Most bytes of an order: a ban with the longest reason has 3 KB."""

BY_FILE = "an order in the state directory"
"""Through what an order came that does not say it."""

T = TypeVar("T")


class NoOrder(ValueError):
    """Raised for a file that is no order. The message names the file and what is wrong."""


@dataclass(frozen=True)
class OrderFiles:
    """The orders in the state directory `root`."""

    root: Path

    def give(self, order: msgspec.Struct) -> None:
        """Leave an order for the program. Raises RunError."""
        folder = self.root / FOLDER
        name = f"{time.time_ns():020}-{secrets.token_hex(4)}"
        draft = folder / f".{name}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            draft.write_bytes(msgspec.json.encode(order))
            draft.replace(folder / f"{name}{SUFFIX}")
        except OSError as error:
            raise RunError(f"{folder} cannot be written: {error.strerror}. Check who owns it, and the disk.") from None

    def waiting(self) -> list[Path]:
        """Return the files that wait, the oldest first; none if nobody ever gave an order. Raises NoOrder."""
        folder = self.root / FOLDER
        try:
            return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)[:MAX_WAITING]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise NoOrder(f"Orders in {folder} cannot be read: {error.strerror}. Check who owns it.") from None


@dataclass(frozen=True)
class Given(Generic[T]):
    """An order, and its file."""

    path: Path
    order: T

    def was_before(self, began_ns: int) -> bool:
        """Return whether it was given before `began_ns`, in nanoseconds since 1970, as far as the file's name says."""
        given = given_ns(self.path)
        return given is not None and given < began_ns

    def remove(self) -> None:
        """Remove the file, if that is possible: it was obeyed."""
        with suppress(OSError):
            self.path.unlink()


@dataclass(eq=False)
class OrderInbox(Generic[T]):
    """The orders that a program has still to carry out. `read` returns the order in a file, or raises NoOrder."""

    files: OrderFiles
    read: Callable[[Path], T]
    _handed_out: set[Path] = field(default_factory=set)
    """Files that are still there."""
    _told: set[str] = field(default_factory=set)

    def take(self) -> tuple[list[Given[T]], list[str]]:
        """Return the orders that came since the last call, in order, and what is wrong with files, each once."""
        try:
            waiting = self.files.waiting()
        except NoOrder as error:
            return [], self._first_time(error)
        self._handed_out &= set(waiting)
        orders, troubles = list[Given[T]](), list[str]()
        for path in waiting:
            if path in self._handed_out:
                continue
            try:
                orders.append(Given(path, self.read(path)))
            except NoOrder as error:
                troubles += self._first_time(error)
            else:
                self._handed_out.add(path)
        return orders, troubles

    def _first_time(self, error: NoOrder) -> list[str]:
        known = str(error) in self._told
        self._told.add(str(error))
        return [] if known else [str(error)]


def given_ns(path: Path) -> int | None:
    """Return when the order in a file was given, in nanoseconds since 1970; None if its name does not say."""
    time_of, _, _ = path.name.partition("-")
    return int(time_of) if time_of.isdecimal() and time_of.isascii() else None


def process_began_ns() -> int:
    """Return when this process began, in nanoseconds since 1970: orders from before were for another run."""
    return round(psutil.Process().create_time() * 1e9)


def read_as(path: Path, kind: Any) -> Any:
    """Return the order in a file, of the type `kind`. Raises NoOrder."""
    try:
        return msgspec.json.decode(read_file(path, MAX_ORDER_BYTES), type=ready(kind))
    except (OSError, ValueError, RecursionError) as error:
        raise NoOrder(f"{path} is no order and was left where it is ({error}). Remove it.") from None
