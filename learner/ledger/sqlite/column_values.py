"""Read the values of a ledger that SQLite does not check: JSON, names of versions, signed bytes.

So if somebody, or the disk, changed a row, a command ends with a message and not with a traceback.

Invariants:

- A value that a learner wrote is read as it was.
- Any other value raises DamagedValue, which names table and column, and never another exception.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from learner.ledger.sqlite.database import DamagedValue
from learner.trust.ban_evidence import Counted, Margin, Measure
from learner.trust.selection_test import CompletionValue, DeliveryOutcome, VersionGain
from protocol.core.codec import ready
from protocol.core.errors import PeerError
from protocol.core.ids import PolicyVersion

T = TypeVar("T")

SHOWN_CHARS = 40
"""Characters of a damaged value that the message shows."""

MAX_COUNTED = 2**53
"""Largest number that an audit counts; floats are exact up to it."""


def from_json(column: str, text: str | bytes, kind: Any) -> Any:
    """Return the value of type `kind` that `column` has as JSON. Raises DamagedValue."""
    try:
        return msgspec.convert(json.loads(text), ready(kind))
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise damaged_value(column, text, str(error)) from error


def wealth_from(column: str, text: str, bets: int | None = None) -> tuple[float, ...]:
    """Return the evidence that `column` has, bet by bet: none, or as many values as `bets`, if that is given. Raises
    DamagedValue."""
    found = from_json(column, text, list[float])
    if not all(value < math.inf for value in found):  # minus infinity: a bet that was lost for good
        raise damaged_value(column, text, "evidence must be below infinity")
    if bets is not None and len(found) not in (0, bets):
        raise damaged_value(column, text, f"{len(found)} bets instead of {bets}")
    return tuple(found)


def values_from(column: str, text: str) -> list[CompletionValue]:
    """Return the completions, with their values, that `column` has. Raises DamagedValue."""
    rows = from_json(column, text, list[tuple[int, float, tuple[int, float] | None]])
    return [
        CompletionValue(
            tokens=tokens, reward=reward, gains=None if gains is None else VersionGain(tokens=gains[0], value=gains[1])
        )
        for tokens, reward, gains in rows
    ]


def outcome_from(column: str, text: str) -> DeliveryOutcome:
    """Return the choice that `column` has. Raises DamagedValue."""
    try:
        return DeliveryOutcome(text)
    except ValueError as error:
        raise damaged_value(column, text, str(error)) from error


def counts_from(column: str, text: str) -> tuple[Counted, ...]:
    """Return what an audit counted, margin by margin, from `column`. Raises DamagedValue."""
    pairs = from_json(column, text, list[tuple[int, int]])
    if not all(0 <= above <= trials <= MAX_COUNTED for above, trials in pairs):
        raise damaged_value(column, text, "these counts are impossible")
    return tuple(Counted(above=above, trials=trials) for above, trials in pairs)


def margins_from(column: str, text: str) -> tuple[Margin, ...]:
    """Return the margins that `column` has. Raises DamagedValue."""
    rows = from_json(column, text, list[tuple[Measure, float, float, float | None, float | None]])
    try:
        return tuple(
            Margin(
                measure=measure,
                above=above,
                rate=rate,
                over=-math.inf if over is None else over,
                upto=math.inf if upto is None else upto,
            )
            for measure, above, rate, over, upto in rows
        )
    except ValueError as error:
        raise damaged_value(column, text, str(error)) from error


def packed_in(column: str, raw: bytes, kind: Any) -> Any:
    """Return the value of type `kind` that `column` has as MessagePack. Raises DamagedValue."""
    try:
        return msgspec.msgpack.decode(raw, type=ready(kind))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise damaged_value(column, raw, str(error)) from error


def version_from(column: str, name: str) -> PolicyVersion:
    """Return the version that `column` names. Raises DamagedValue."""
    try:
        incarnation, version = map(int, name.split("."))
    except ValueError as error:
        raise damaged_value(column, name, "it names no policy version") from error
    return PolicyVersion(incarnation, version)


def signed_in(column: str, raw: bytes | None, read: Callable[[bytes], T]) -> T:
    """Return what `read` makes of the envelope in `column`. Raises DamagedValue if there is none, or if `read` raises
    PeerError."""
    if raw is None:
        raise damaged_value(column, b"", "the signed bytes were deleted, and are needed")
    try:
        return read(raw)
    except PeerError as error:
        raise damaged_value(column, raw, str(error)) from error


def damaged_value(column: str, value: str | bytes, why: str) -> DamagedValue:
    """Return the exception to raise for a damaged value in `column`. `why` says what is wrong with it."""
    shown = repr(value[:SHOWN_CHARS])
    return DamagedValue(
        f"{column} has a value that no learner writes ({shown}: {why[:200]}). Nothing was changed. Restore the ledger "
        "from a copy."
    )
