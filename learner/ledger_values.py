"""Values of a ledger that SQLite does not look into: JSON, names of versions, what was signed.

What always holds: what a learner writes is read as it was; anything else is a DamagedValue that names table and column,
never another exception, so that a row which somebody changed, or a disk, ends a command in a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from learner.ledger_file import DamagedValue
from learner.verification.choosing import Choice, Worth
from learner.verification.sequential import Margin, Measure
from protocol.errors import PeerError
from protocol.ids import PolicyVersion

T = TypeVar("T")

SHOWN_CHARS = 40
"""Of a value that is none, said back."""


def from_json(column: str, text: str | bytes, kind: Any) -> Any:
    """The value of type `kind` that `column` has as JSON. Raises DamagedValue."""
    try:
        return msgspec.convert(json.loads(text), kind)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise _damaged(column, text, str(error)) from error


def wealth_from(column: str, text: str) -> tuple[float, ...]:
    """The evidence, margin by margin, that `column` has. Raises DamagedValue."""
    return tuple(from_json(column, text, list[float]))


def worth_from(column: str, text: str) -> list[Worth]:
    """The completions, with what they are worth, that `column` has. Raises DamagedValue."""
    rows = from_json(column, text, list[tuple[int, float, float | None]])
    return [Worth(tokens=tokens, reward=reward, elsewhere=elsewhere) for tokens, reward, elsewhere in rows]


def choice_from(column: str, text: str) -> Choice:
    """The choice that `column` has. Raises DamagedValue."""
    try:
        return Choice(text)
    except ValueError as error:
        raise _damaged(column, text, str(error)) from error


def margins_from(column: str, text: str) -> tuple[Margin, ...]:
    """The margins that `column` has. Raises DamagedValue."""
    rows = from_json(column, text, list[tuple[float, float, Measure]])
    try:
        return tuple(Margin(gap=gap, rate=rate, measure=measure) for gap, rate, measure in rows)
    except ValueError as error:
        raise _damaged(column, text, str(error)) from error


def packed_in(column: str, raw: bytes, kind: Any) -> Any:
    """The value of type `kind` that `column` has as MessagePack. Raises DamagedValue."""
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _damaged(column, raw, str(error)) from error


def version_from(column: str, name: str) -> PolicyVersion:
    """The version that `column` names. Raises DamagedValue."""
    try:
        incarnation, version = map(int, name.split("."))
    except ValueError as error:
        raise _damaged(column, name, "no version") from error
    return PolicyVersion(incarnation, version)


def signed_in(column: str, raw: bytes | None, read: Callable[[bytes], T]) -> T:
    """What `read` makes of the envelope in `column`. Raises DamagedValue where there is none, or `read` a PeerError."""
    if raw is None:
        raise _damaged(column, b"", "it was forgotten, and is asked for")
    try:
        return read(raw)
    except PeerError as error:
        raise _damaged(column, raw, str(error)) from error


def _damaged(column: str, value: str | bytes, why: str) -> DamagedValue:
    shown = repr(value[:SHOWN_CHARS])
    return DamagedValue(
        f"{column} has a value that no learner writes ({shown}: {why[:200]}). Nothing was changed. Restore the ledger "
        "from a copy."
    )
