"""Pass an operator's orders to a learner: one file for each in its state directory.

    <state>/orders/<time>-<number>.json      {"order": "ban", "peer": "12D3Koo...", "reason": "..."}     `volery ban`
                                             {"order": "pardon", "peer": "12D3Koo..."}                   `volery pardon`
                                             {"order": "change", "key": "staleness", "value": 4, "by": "the live page"}
                                             {"order": "stop", "by": "the live page"}

A ban or a pardon also reaches a learner that is not running. A change or a stop is for the run that it was given to.

Invariants:

- A file appears whole.
- Orders are obeyed in the order in which they were given, once each. An order is removed when its consequences are in
  the ledger.
- A file that is no order is left where it is, and reported.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from learner.artifacts.regular_file import read_file
from node.runtime.errors import RunError
from protocol.core.codec import PeerText, ready

FOLDER = "orders"
SUFFIX = ".json"
MAX_WAITING = 256
"""Most orders that are read at a time; nobody gives more in a second."""


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="order"):
    """An order of the operator."""


class Ban(Order, frozen=True, tag="ban"):
    """The peer is excluded, and its work is not trained on."""

    peer: PeerText
    reason: str


class Pardon(Order, frozen=True, tag="pardon"):
    """The peer may come back, as a newcomer."""

    peer: PeerText


class Change(Order, frozen=True, tag="change"):
    """A setting has another value until the learner ends. `by`: through what the operator asked for it."""

    key: str
    value: float
    by: str = ""


class Stop(Order, frozen=True, tag="stop"):
    """The learner ends in order after the training step that it takes now."""

    by: str = ""


AnyOrder = Ban | Pardon | Change | Stop


class NoOrder(ValueError):
    """Raised for a file that is no order. The message names the file and what is wrong."""


@dataclass(frozen=True)
class OperatorDecisions:
    """The orders in the state directory `root`."""

    root: Path

    def give(self, order: AnyOrder) -> None:
        """Leave an order for the learner. Raises RunError."""
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
        """Return the files that wait, the oldest first; none if nobody ever gave an order."""
        folder = self.root / FOLDER
        try:
            return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)[:MAX_WAITING]
        except FileNotFoundError:
            return []


def given_ns(path: Path) -> int | None:
    """Return when the order in a file was given, in nanoseconds since 1970; None if its name does not say."""
    time_of, _, _ = path.name.partition("-")
    return int(time_of) if time_of.isdecimal() and time_of.isascii() else None


def read_order(path: Path) -> AnyOrder:
    """Return the order in a file. Raises NoOrder."""
    try:
        order: AnyOrder = msgspec.json.decode(read_file(path), type=ready(AnyOrder))
    except (OSError, ValueError, RecursionError) as error:
        raise NoOrder(f"{path} is no order and was left where it is ({error}). Remove it.") from None
    return order
