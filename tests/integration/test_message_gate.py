"""Test the one gate: every field of every message at and around each of its bounds, in both directions.

A peer's bytes are decoded, or raise a PeerError that names the field. A message of our own passes `checked`, or is a
LocalProtocolError. The messages are found by walking the package, so none can be forgotten.
"""

from __future__ import annotations

import base64
import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from protocol.accounting.claims import Price, cost_micros
from protocol.core.codec import decode, encode, pack_tokens, packed_fields, require_bounds, texts_of
from protocol.core.errors import Fault, LocalProtocolError, PeerError, ProtocolError
from protocol.core.ids import PolicyVersion
from protocol.core.limits import MAX_MICROS_PER_HOUR, MAX_MILLIS, MAX_SECONDS, MAX_TOKEN_ID
from protocol.core.visible import one_line
from protocol.trouble import Trouble, TroubleKind
from protocol.work import Farewell, Refused
from tests.integration.test_specification import CLASSES
from tests.protocol.core.test_codec import fields_of, smallest

NUM_CLASSES = 83
"""Number of messages and parts of messages. An author of a new one raises it, so that no message is missed here."""

LIMIT = 1 << 30
SMALL = 10_000
"""A list with more entries than this is tried at its end alone."""


@dataclass(frozen=True)
class Edge:
    """A value of one field, and whether it is within the bounds."""

    field: str
    value: Any
    is_legal: bool

    def __str__(self) -> str:
        shown = repr(self.value) if not isinstance(self.value, str | bytes | list) else f"{len(self.value)} long"
        return f"{self.field}={shown[:40]}"


def edges(kind: inspect.Type) -> Iterator[tuple[Any, bool]]:
    """Yield values around each bound of `kind`, and whether they are allowed."""
    match kind:
        case inspect.IntType(ge=ge, lt=lt, le=le):
            low = 0 if ge is None else ge
            high = le if le is not None else lt - 1 if lt is not None else 2**64 - 1
            yield from ((value, low <= value <= high) for value in (low, low + 1, high - 1, high))
            yield low - 1, False
            if high < 2**64 - 1:
                yield high + 1, False
            yield from ((value, False) for value in ("1", 0.5, None))
        case inspect.FloatType(ge=float(low) | int(low), le=float(high) | int(high)):
            yield from ((float(value), True) for value in (low, high, (low + high) / 2))
            yield from ((math.nextafter(low, -math.inf), False), (math.nextafter(high, math.inf), False))
            yield from ((value, False) for value in (math.nan, math.inf, -math.inf))
        case inspect.StrType(min_length=low, max_length=int(high), pattern=pattern):
            yield from (("X" * size, True) for size in {low or 0, high})
            yield "X" * (high + 1), False
            if low:
                yield "X" * (low - 1), False
            if pattern is not None:
                yield from ((odd + "X" * (high - 1), False) for odd in "\0\x1b\n\x9b")
                yield "X" * (high - 1) + "\n", False
        case inspect.BytesType(min_length=low, max_length=int(high)):
            yield from ((bytes(size), True) for size in {low or 0, high})
            yield bytes(high + 1), False
            if low:
                yield bytes(low - 1), False
            yield from ((base64.b64encode(bytes(size)).decode(), False) for size in {low or 0, min(high, SMALL)})
        case inspect.ListType(item_type=item, min_length=low, max_length=int(high)):
            one = smallest(item)
            yield from (([one] * size, True) for size in {low or 0, high})
            yield [one] * (high + 1), False
            if low:
                yield [one] * (low - 1), False
            yield from (([value], is_legal) for value, is_legal in edges(item) if not is_legal)
        case inspect.UnionType(types=types):
            yield None, True
            for one in types:
                if not isinstance(one, inspect.NoneType):
                    yield from (edge for edge in edges(one) if edge[0] is not None)


def edges_of(cls: type[Any]) -> list[Edge]:
    found = []
    for field in fields_of(cls):
        if field.name in packed_fields(cls):
            found += [
                Edge(field.name, pack_tokens([0, MAX_TOKEN_ID]), True),
                Edge(field.name, pack_tokens([0, MAX_TOKEN_ID + 1]), False),
                Edge(field.name, pack_tokens([2**32 - 1]), False),
                Edge(field.name, bytes(5), False),
            ]
        found += [Edge(field.name, value, is_legal) for value, is_legal in edges(field.type)]
    return found


def travelling(cls: type[Any], edge: Edge) -> bytes:
    """Return a message of smallest values as it travels, with this field at the edge."""
    config, fields = cls.__struct_config__, fields_of(cls)
    named = {one.encode_name: smallest(one.type) for one in fields if one.required or config.array_like}
    named |= {edge.field: edge.value}
    if config.array_like:
        return msgspec.msgpack.encode(list(named.values()))
    return msgspec.msgpack.encode(named if config.tag is None else {"type": config.tag, **named})


def ours(cls: type[Any], edge: Edge) -> Any:
    """Return the same message, built by ourselves."""
    sound = decode(cls, travelling(cls, Edge(edge.field, legal_of(cls, edge.field), True)), LIMIT)
    return require_bounds(msgspec.structs.replace(sound, **{edge.field: edge.value}))


def legal_of(cls: type[Any], name: str) -> Any:
    return next(smallest(one.type) for one in fields_of(cls) if one.name == name)


def test_every_message_is_seen() -> None:
    assert len(CLASSES) == NUM_CLASSES
    assert sum(len(edges_of(cls)) for cls in CLASSES) > 1300


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_field_is_taken_within_its_bounds_and_named_beyond_them(cls: type[Any]) -> None:
    for edge in edges_of(cls):
        raw = travelling(cls, edge)
        if edge.is_legal:
            message = decode(cls, raw, LIMIT)
            assert require_bounds(message) is message
            assert decode(cls, encode(message), LIMIT) == message
            continue
        with pytest.raises(PeerError) as caught:
            decode(cls, raw, LIMIT)
        assert caught.value.fault is Fault.MALFORMED
        place = [one.name for one in fields_of(cls)].index(edge.field)
        assert edge.field in caught.value.detail or f"[{place}]" in caught.value.detail, (edge, caught.value.detail)
        # Token ids are read while a message is built, before anything looks at types.
        is_text_for_tokens = isinstance(edge.value, str) and edge.field in packed_fields(cls)
        with pytest.raises(TypeError if is_text_for_tokens else LocalProtocolError):
            ours(cls, edge)


@given(st.data())
def test_whatever_is_decoded_can_be_said_again(data: st.DataObject) -> None:
    """Any value at all is refused by both ends, or accepted by both."""
    cls = data.draw(st.sampled_from([one for one in CLASSES if fields_of(one)]))
    field = data.draw(st.sampled_from(fields_of(cls)))
    value = data.draw(
        st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=60) | st.binary(max_size=60) | st.none()
    )
    edge = Edge(field.name, value, is_legal=True)
    try:
        message = decode(cls, travelling(cls, edge), LIMIT)
    except PeerError:
        with pytest.raises((ProtocolError, TypeError, AttributeError)):
            ours(cls, edge)
    else:
        assert decode(cls, encode(require_bounds(message)), LIMIT) == message


def numbers(kind: inspect.Type) -> Iterator[inspect.Type]:
    match kind:
        case inspect.ListType(item_type=item):
            yield from numbers(item)
        case inspect.UnionType(types=types):
            for one in types:
                yield from numbers(one)
        case inspect.IntType() | inspect.FloatType():
            yield kind


def test_every_number_fits_where_consumers_put_it() -> None:
    """Columns have 64 bits, floats are exact; a seed is kept as its bits."""
    wide = set()
    for cls in CLASSES:
        for field in fields_of(cls):
            for kind in numbers(field.type):
                high = kind.le if kind.le is not None else None if kind.lt is None else kind.lt - 1  # type: ignore[attr-defined]
                if high is None or high > 2**53:
                    wide.add(f"{cls.__name__}.{field.name}")
    assert wide == {"Lease.seeds"}


def test_a_moment_is_a_date_in_every_zone() -> None:
    for hours in (-12, 0, 14):
        last = datetime.fromtimestamp(MAX_MILLIS / 1000, UTC).astimezone(timezone(timedelta(hours=hours)))
        assert last + timedelta(days=300) > last


def test_the_largest_cost_is_an_integer_of_64_bits() -> None:
    assert cost_micros(MAX_SECONDS, Price(micros_per_hour=MAX_MICROS_PER_HOUR)) < 2**63


POISON = "\x1b]0;owned\x07\x1b[2J\rno\x9b31m\u202egnp\u2028\u2029\u200b\x7f\n\tend"


@given(st.text(max_size=200) | st.just(POISON))
def test_text_for_people_is_one_harmless_line(text: str) -> None:
    seen = 0
    for cls in CLASSES:
        for name, limit in texts_of(cls):
            seen += 1
            message = decode(cls, travelling(cls, Edge(name, text[:limit], True)), LIMIT)
            shown = getattr(message, name)
            assert len(shown) <= limit
            assert shown.isprintable()
            assert shown == (text[:limit] if text[:limit].isprintable() else one_line(text[:limit], limit) or "-")
            assert decode(cls, encode(message), LIMIT) == message
    assert seen == 20


NOT_FOR_PEOPLE = {
    "AskTerms.token", "Hello.token", "Invite.token",  # compared, never shown
    "Lease.task", "FileEntry.name", "PatchFile.name", "TensorEntry.name", "TensorEntry.dtype",  # looked up
}  # fmt: skip


def test_all_other_text_is_of_a_pattern_or_is_not_for_people() -> None:
    free = set()
    for cls in CLASSES:
        shown = {name for name, _ in texts_of(cls)}
        for field in fields_of(cls):
            if isinstance(field.type, inspect.StrType) and field.type.pattern is None and field.name not in shown:
                free.add(f"{cls.__name__}.{field.name}")
    assert free == NOT_FOR_PEOPLE


def test_what_we_say_ourselves_is_harmless_as_well() -> None:
    for shown in (
        Refused(reason=POISON).reason,
        Farewell(reason=POISON).reason,
        Trouble(TroubleKind.FETCH, 1, POISON, PolicyVersion(1, 1)).reason,
        PeerError(Fault.MALFORMED, POISON).detail,
        str(PeerError(Fault.MALFORMED, POISON)),
    ):
        assert all(unicodedata.category(letter)[0] != "C" for letter in shown)
        assert "\\x1b]0;owned\\x07" in shown


@pytest.mark.parametrize("text", ["volunteer", "a  b ", "Ærø, 東京", "ok " * 30])
def test_what_is_printable_stays_as_it_is(text: str) -> None:
    assert Farewell(reason=text).reason == text
