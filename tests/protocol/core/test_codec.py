"""Bytes to messages and back: round trips, older readers, bounds, and input that is not a message at all."""

from __future__ import annotations

import math
import re
import struct
import tracemalloc
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Meta, inspect

from protocol.core.codec import (
    MAX_ERROR_CHARS,
    MAX_POSITIVE_LOGPROB,
    MIN_LOGPROB,
    Message,
    Seconds,
    decode,
    encode,
    pack_logprobs,
    pack_tokens,
    packed_fields,
    require_bounds,
    unpack_logprobs,
    unpack_tokens,
)
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.ids import PolicyVersion
from protocol.core.limits import MAX_EXTENSION_BYTES, MAX_EXTENSIONS, MAX_TOKEN_ID
from protocol.work import Grant, Refused, Span, Started, Verdict
from tests.support.examples import examples
from tests.support.protocol_modules import protocol_modules

LIMIT = 1 << 20


def message_classes() -> list[type[Message]]:
    """Every message class of `protocol`, whichever module it lives in."""
    protocol_modules()
    found: list[type[Message]] = []
    queue: list[type[Message]] = [Message]
    for cls in queue:
        queue += cls.__subclasses__()
    found += [cls for cls in queue[1:] if cls.__module__.startswith("protocol.")]
    return sorted(found, key=lambda cls: cls.__name__)


MESSAGES = message_classes()
LATER = st.one_of(st.none(), st.integers(-5, 5), st.binary(max_size=8), st.lists(st.text(max_size=4), max_size=3))
"""What a field of a later version might hold."""


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Values that the declared bounds of a field allow, short ones."""
    match kind:
        case inspect.IntType(ge=ge, lt=lt, le=le):
            highest = 2**64 - 1 if lt is None and le is None else min(lt - 1 if lt else math.inf, le or math.inf)
            return st.integers(ge or 0, int(highest))
        case inspect.FloatType(ge=ge, gt=gt, le=le):
            lowest = ge if ge is not None else gt
            return st.floats(lowest, le, exclude_min=ge is None, allow_nan=False)
        case inspect.StrType(min_length=low, max_length=high, pattern=str(pattern)):
            letters = [letter for letter in map(chr, range(1, 256)) if re.match(pattern, letter)]
            return st.text(
                st.sampled_from(letters), min_size=low or 0, max_size=min(high or 8, (low or 0) + 8, high or 99)
            )
        case inspect.StrType(min_length=low, max_length=high):
            return st.text(min_size=low or 0, max_size=min(high or 8, (low or 0) + 8))
        case inspect.BytesType(min_length=low, max_length=high):
            return st.binary(min_size=low or 0, max_size=min(high or 8, (low or 0) + 8))
        case inspect.ListType(item_type=item, min_length=low):
            return st.lists(values(item), min_size=low or 0, max_size=(low or 0) + 2)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(values(key), values(value), max_size=2)
        case inspect.UnionType(types=types):
            return st.one_of([values(one) for one in types])
        case inspect.EnumType(cls=cls):
            return st.sampled_from(cls)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.StructType(cls=cls):
            return messages(cls)
    raise NotImplementedError(f"no strategy for {kind}")


def messages(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Messages of class `cls` that its declared bounds allow."""
    packed = st.lists(st.integers(0, MAX_TOKEN_ID), min_size=1, max_size=3).map(pack_tokens)
    fields = {field.name: values(field.type) for field in fields_of(cls)}
    return st.builds(cls, **fields | dict.fromkeys(packed_fields(cls), packed))


def fields_of(cls: type[Any]) -> tuple[inspect.Field, ...]:
    shape = inspect.type_info(cls)
    assert isinstance(shape, inspect.StructType)
    return shape.fields


each_message = pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
few = settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_all_modules_are_covered() -> None:
    assert {cls.__module__.split(".")[-1] for cls in MESSAGES} >= {
        "announcement", "claims", "exchange", "genesis", "manifest", "work",
    }  # fmt: skip


@each_message
def test_round_trip(cls: type[Message]) -> None:
    @few
    @given(messages(cls))
    def check(message: Message) -> None:
        assert require_bounds(message) is message
        assert decode(cls, encode(message), LIMIT) == message

    check()


@each_message
def test_older_reader_ignores_what_it_does_not_know(cls: type[Message]) -> None:
    @few
    @given(messages(cls), st.dictionaries(st.text("xyz", min_size=4), LATER, min_size=1), st.binary(max_size=20))
    def check(message: Message, later: dict[str, Any], word: bytes) -> None:
        fields = msgspec.msgpack.decode(encode(message))
        ext = {"later": word, **fields.get("ext", {})}
        newer = msgspec.msgpack.encode({**later, **fields, "ext": ext})
        assert decode(cls, newer, LIMIT) == msgspec.structs.replace(message, ext=ext)

    check()


@each_message
def test_a_default_reads_the_same_whether_sent_or_left_out(cls: type[Message]) -> None:
    short = minimal(cls)
    spelled_out = {
        field.encode_name: field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        for field in fields_of(cls)
        if not field.required
    }
    said = decode(cls, msgspec.msgpack.encode(short), LIMIT)
    assert decode(cls, msgspec.msgpack.encode(short | spelled_out), LIMIT) == said
    assert msgspec.msgpack.decode(encode(said)) == short


def test_arrays_grow_at_the_end_but_names_of_versions_do_not() -> None:
    span = Span(0, 2, PolicyVersion(1, 7), bytes(32))
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(encode(span)), "later"])
    assert decode(Span, longer, LIMIT) == span
    with pytest.raises(PeerError):
        decode(PolicyVersion, msgspec.msgpack.encode([1, 7, 0]), LIMIT)


UNBOUNDED = {
    "Lease.seeds[]": "unsigned 64-bit: MessagePack has no larger integer",
    "Handback.records[]": "as those of Delivery",
    "Delivery.records[]": "bounded by the frame; one that is too long gets a verdict of its own",
}


def unbounded(name: str, kind: inspect.Type) -> Iterator[str]:
    match kind:
        case inspect.IntType() | inspect.FloatType():
            if (kind.ge is None and kind.gt is None) or (kind.le is None and kind.lt is None):
                yield name
        case inspect.StrType() | inspect.BytesType():
            if kind.max_length is None:
                yield name
        case inspect.ListType():
            if kind.max_length is None:
                yield name
            yield from unbounded(f"{name}[]", kind.item_type)
        case inspect.DictType():
            if kind.max_length is None:
                yield name
            yield from unbounded(f"{name}{{key}}", kind.key_type)
            yield from unbounded(f"{name}{{value}}", kind.value_type)
        case inspect.UnionType():
            for one in kind.types:
                yield from unbounded(name, one)
        case inspect.StructType():
            for field in kind.fields:
                yield from unbounded(f"{kind.cls.__name__}.{field.name}", field.type)
        case inspect.EnumType() | inspect.BoolType() | inspect.NoneType():
            pass
        case _:
            yield name


def test_every_field_is_bounded() -> None:
    found = {name for cls in MESSAGES for name in unbounded(cls.__name__, inspect.type_info(cls))}
    assert found == set(UNBOUNDED)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_is_other_than_finite(value: float) -> None:
    """One NaN in a reward or a cost would spread through every sum it enters."""
    seen = 0
    for cls in MESSAGES:
        for field in fields_of(cls):
            kinds = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
            if any(isinstance(kind, inspect.FloatType) for kind in kinds):
                seen += 1
                with pytest.raises(PeerError, match=field.encode_name):
                    decode(cls, msgspec.msgpack.encode(minimal(cls) | {field.encode_name: value}), LIMIT)
    assert seen >= 4


def minimal(cls: type[Any]) -> dict[str, Any]:
    """The required fields of `cls` with the smallest values allowed, as they travel."""
    zeros: dict[str, Any] = {}
    for field in fields_of(cls):
        if field.required:
            zeros[field.encode_name] = smallest(field.type)
    tag = cls.__struct_config__.tag
    return zeros if tag is None else {"type": tag, **zeros}


def smallest(kind: inspect.Type) -> Any:
    match kind:
        case inspect.IntType():
            return kind.ge or 0
        case inspect.FloatType():
            return float(kind.ge or 1)
        case inspect.StrType():
            return "X" * (kind.min_length or 0)
        case inspect.BytesType():
            return bytes(kind.min_length or 0)
        case inspect.ListType():
            return [smallest(kind.item_type)] * (kind.min_length or 0)
        case inspect.EnumType():
            return next(iter(kind.cls)).value
        case inspect.UnionType():
            return None
        case inspect.BoolType():
            return False
        case inspect.DictType():
            return {}
        case inspect.StructType(array_like=True):
            return [smallest(field.type) for field in kind.fields]
        case inspect.StructType():
            return minimal(kind.cls)
    raise NotImplementedError(str(kind))


@each_message
def test_a_missing_field_is_named(cls: type[Message]) -> None:
    whole = minimal(cls)
    decode(cls, msgspec.msgpack.encode(whole), LIMIT)
    for name in whole.keys() - {"type"}:
        with pytest.raises(PeerError, match=name) as caught:
            decode(cls, msgspec.msgpack.encode({k: v for k, v in whole.items() if k != name}), LIMIT)
        assert caught.value.fault is Fault.MALFORMED


class Explosive(Message, frozen=True, kw_only=True):
    """A message that cannot be parsed without being noticed."""

    data: bytes

    def __post_init__(self) -> None:
        raise SystemError("parsed")


def test_oversize_is_refused_before_anything_is_parsed() -> None:
    raw = msgspec.msgpack.encode({"data": bytes(100)})
    with pytest.raises(SystemError, match="parsed"):
        decode(Explosive, raw, len(raw))
    with pytest.raises(PeerError) as caught:
        decode(Explosive, raw, len(raw) - 1)
    assert caught.value.fault is Fault.OVERSIZED


HUGE = b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x80\x80",  # a second message behind the first
        b"\xdd" + HUGE,  # array of 2**32 - 1
        b"\xdf" + HUGE,  # map of as many
        b"\xc6" + HUGE,  # bytes
        b"\xdb" + HUGE,  # text
        b"\x81\xa3ext\xdf" + HUGE,
        b"\x81\xa6reason\xdb" + HUGE,
        b"\x81\xa5later\xdd" + HUGE,
        b"\x81\xa5later" + b"\x91" * 60_000,  # 60,000 deep
        b"\x91" * 60_000,
        b"\x81\xa6reason\xa2\xff\xfe",  # not UTF-8
        b"\x81\xa2\xff\xfe\x00",
        b"\x81\xc0\xc0",  # a key that is not text
        b"\xd7\xff" + b"\xff" * 8,  # an impossible timestamp
        b"\xc9" + HUGE + b"\x05",  # an extension type of 4 GiB
    ],
    ids=lambda raw: raw[:8].hex() or "empty",
)
def test_hostile_bytes_are_malformed_and_cost_nothing(raw: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(PeerError) as caught:
        decode(Refused, raw, LIMIT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.fault is Fault.MALFORMED
    assert peak < 1 << 20


def test_an_error_does_not_repeat_a_megabyte() -> None:
    raw = msgspec.msgpack.encode({"type": "x" * 500_000})
    with pytest.raises(PeerError) as caught:
        decode(Grant | Started, raw, LIMIT)
    assert len(caught.value.detail) <= MAX_ERROR_CHARS


def test_extensions_are_bounded() -> None:
    def refuse(ext: dict[str, bytes]) -> None:
        with pytest.raises(PeerError, match="ext"):
            decode(Refused, msgspec.msgpack.encode({"type": "refused", "reason": "", "ext": ext}), LIMIT)
        with pytest.raises(LocalProtocolError, match="ext"):
            require_bounds(Refused(reason="", ext=ext))

    full = {f"name{n}": bytes(MAX_EXTENSION_BYTES) for n in range(MAX_EXTENSIONS)}
    assert require_bounds(Refused(reason="", ext=full))
    refuse({**full, "one more": b""})
    refuse({"large": bytes(MAX_EXTENSION_BYTES + 1)})
    refuse({"n" * 65: b""})


def test_our_own_mistake_names_the_field() -> None:
    verdict = msgspec.structs.replace(decode(Verdict, msgspec.msgpack.encode(minimal(Verdict)), LIMIT), record=b"x")
    with pytest.raises(LocalProtocolError, match=r"Verdict.*record"):
        require_bounds(verdict)


def test_a_bound_holds_at_its_edge() -> None:
    class Bill(Message, frozen=True, kw_only=True):
        amount: Seconds
        name: Annotated[str, Meta(max_length=2)]

    def read(amount: float, name: str) -> Bill:
        bill: Bill = decode(Bill, msgspec.msgpack.encode({"amount": amount, "name": name}), LIMIT)
        return bill

    assert read(1e10, "ab").amount == 1e10
    assert read(0, "äß").name == "äß"  # characters, not bytes
    for amount, name in [(math.nextafter(1e10, math.inf), ""), (-5e-324, ""), (0.0, "abc")]:
        with pytest.raises(PeerError):
            read(amount, name)


def test_packing_golden_bytes() -> None:
    assert pack_tokens([0, 1, 256, 2**32 - 1]).hex() == "000000000100000000010000ffffffff"
    assert pack_logprobs([0.0, -0.5, -1.0]).hex() == "00000000000000bf000080bf"


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_tokens_round_trip(tokens: list[int]) -> None:
    assert pack_tokens(tokens) == struct.pack(f"<{len(tokens)}I", *tokens)
    assert unpack_tokens(pack_tokens(tokens)) == tuple(tokens)


@given(st.lists(st.floats(min_value=MIN_LOGPROB, max_value=0, width=32, allow_nan=False), max_size=50))
def test_logprobs_round_trip(logprobs: list[float]) -> None:
    assert pack_logprobs(logprobs) == struct.pack(f"<{len(logprobs)}f", *logprobs)
    assert unpack_logprobs(pack_logprobs(logprobs)) == tuple(logprobs)


@given(st.binary(max_size=40))
def test_unpacking_any_bytes_gives_what_was_promised_or_a_peer_error(raw: bytes) -> None:
    if len(raw) % 4:
        for unpack in (unpack_tokens, unpack_logprobs):
            with pytest.raises(PeerError):
                unpack(raw)
        return
    assert pack_tokens(unpack_tokens(raw)) == raw
    floats = np.frombuffer(raw, "<f4")
    if ((floats >= MIN_LOGPROB) & (floats <= MAX_POSITIVE_LOGPROB)).all():
        assert pack_logprobs(unpack_logprobs(raw)) == raw
    else:
        with pytest.raises(PeerError):
            unpack_logprobs(raw)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.01, 1e30, -101.0, -1e4])
def test_a_logprob_is_one_that_the_sampler_can_draw(value: float) -> None:
    with pytest.raises(PeerError):
        unpack_logprobs(pack_logprobs([-1.0, value]))


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_that_does_not_fit_is_our_own_mistake(token: int) -> None:
    with pytest.raises(OverflowError):
        pack_tokens([token])
