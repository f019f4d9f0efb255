"""Values of a ledger that SQLite does not look into: JSON, names of versions, what was signed.

What always holds: what a learner writes is read as it was; anything else is a DamagedValue that names table and column,
never another exception, so that a row which somebody changed, or a disk, ends a command in a sentence.
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
"""Of a value that is none, said back."""

MAX_COUNTED = 2**53
"""Of what an audit counts; floats are exact up to there."""


def from_json(column: str, text: str | bytes, kind: Any) -> Any:
    """The value of type `kind` that `column` has as JSON. Raises DamagedValue."""
    try:
        return msgspec.convert(json.loads(text), ready(kind))
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise damaged_value(column, text, str(error)) from error


def wealth_from(column: str, text: str, bets: int | None = None) -> tuple[float, ...]:
    """The evidence, bet by bet, that `column` has: of so many `bets` if it has any. Raises DamagedValue."""
    found = from_json(column, text, list[float])
    if not all(value < math.inf for value in found):  # minus infinity: what was lost for good
        raise damaged_value(column, text, "so much evidence cannot be")
    if bets is not None and len(found) not in (0, bets):
        raise damaged_value(column, text, f"{len(found)} bets instead of {bets}")
    return tuple(found)


def worth_from(column: str, text: str) -> list[CompletionValue]:
    """The completions, with what they are worth, that `column` has. Raises DamagedValue."""
    rows = from_json(column, text, list[tuple[int, float, tuple[int, float] | None]])
    return [
        CompletionValue(
            tokens=tokens, reward=reward, gains=None if gains is None else VersionGain(tokens=gains[0], worth=gains[1])
        )
        for tokens, reward, gains in rows
    ]


def choice_from(column: str, text: str) -> DeliveryOutcome:
    """The choice that `column` has. Raises DamagedValue."""
    try:
        return DeliveryOutcome(text)
    except ValueError as error:
        raise damaged_value(column, text, str(error)) from error


def counts_from(column: str, text: str) -> tuple[Counted, ...]:
    """What an audit counted, margin by margin, that `column` has. Raises DamagedValue."""
    pairs = from_json(column, text, list[tuple[int, int]])
    if not all(0 <= above <= trials <= MAX_COUNTED for above, trials in pairs):
        raise damaged_value(column, text, "so many of so many cannot be")
    return tuple(Counted(above=above, trials=trials) for above, trials in pairs)


def margins_from(column: str, text: str) -> tuple[Margin, ...]:
    """The margins that `column` has. Raises DamagedValue."""
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
    """The value of type `kind` that `column` has as MessagePack. Raises DamagedValue."""
    try:
        return msgspec.msgpack.decode(raw, type=ready(kind))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise damaged_value(column, raw, str(error)) from error


def version_from(column: str, name: str) -> PolicyVersion:
    """The version that `column` names. Raises DamagedValue."""
    try:
        incarnation, version = map(int, name.split("."))
    except ValueError as error:
        raise damaged_value(column, name, "no version") from error
    return PolicyVersion(incarnation, version)


def signed_in(column: str, raw: bytes | None, read: Callable[[bytes], T]) -> T:
    """What `read` makes of the envelope in `column`. Raises DamagedValue where there is none, or `read` a PeerError."""
    if raw is None:
        raise damaged_value(column, b"", "it was forgotten, and is asked for")
    try:
        return read(raw)
    except PeerError as error:
        raise damaged_value(column, raw, str(error)) from error


def damaged_value(column: str, value: str | bytes, why: str) -> DamagedValue:
    """What to raise where `column` has a value that is none, and why it is none."""
    shown = repr(value[:SHOWN_CHARS])
    return DamagedValue(
        f"{column} has a value that no learner writes ({shown}: {why[:200]}). Nothing was changed. Restore the ledger "
        "from a copy."
    )
