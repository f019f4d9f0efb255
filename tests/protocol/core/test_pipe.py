"""Frames between a node and its children: round trips, bounds, and bytes that are no frame."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from protocol.core.pipe import (
    DTYPES,
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    PREFIX,
    BadFrame,
    decode_frame,
    encode_frame,
    frame_sizes,
)
from tests.support.examples import examples

Array = np.ndarray[Any, Any]
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAYS = st.sampled_from(sorted(DTYPES)).flatmap(lambda dtype: arrays_of.arrays(dtype, SHAPES))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
HEADERS = st.dictionaries(st.text(max_size=6).filter(lambda key: key != "arrays"), JSON, max_size=4)


def split(frame: bytes) -> tuple[bytes, bytes]:
    """Header and body, as a reader would get them after the 12 prefix bytes."""
    head, body = frame_sizes(frame[: PREFIX.size])
    assert len(frame) == PREFIX.size + head + body
    return frame[PREFIX.size : PREFIX.size + head], frame[PREFIX.size + head :]


def test_golden_bytes() -> None:
    frame = encode_frame({"do": "go"}, {"a": np.array([[1, -2]], np.int32)})
    assert frame == (
        b"\x00\x00\x00\x2a"  # header of 42 bytes
        b"\x00\x00\x00\x00\x00\x00\x00\x08"  # body of 8
        b'{"do":"go","arrays":[["a","int32",[1,2]]]}'
        b"\x01\x00\x00\x00\xfe\xff\xff\xff"  # 1 and -2, little-endian
    )


@settings(max_examples=examples(200), deadline=None)
@given(HEADERS, st.dictionaries(st.text(max_size=4), ARRAYS, max_size=3))
def test_round_trip(header: dict[str, Any], arrays: dict[str, Array]) -> None:
    read_header, read_arrays = decode_frame(*split(encode_frame(header, arrays)))
    assert read_header == header
    assert list(read_arrays) == list(arrays)
    for name, array in arrays.items():
        read = read_arrays[name]
        assert read.dtype == array.dtype
        assert read.shape == array.shape
        assert read.tobytes() == array.tobytes()
        assert not read.flags.writeable


def test_memory_order_and_byte_order_do_not_travel() -> None:
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    _, read = decode_frame(*split(encode_frame({}, {"a": array})))
    assert read["a"].tolist() == array.tolist()


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(TypeError, match="float16"):
        encode_frame({}, {"a": np.zeros(1, np.float16)})
    with pytest.raises(TypeError, match="object"):
        encode_frame({}, {"a": np.array([{}], object)})


@pytest.mark.parametrize(("head", "body"), [(MAX_HEADER_BYTES + 1, 0), (0, MAX_BODY_BYTES + 1), (2**32 - 1, 2**64 - 1)])
def test_sizes_over_the_bound_are_refused_before_anything_is_read(head: int, body: int) -> None:
    with pytest.raises(BadFrame, match="over the bound"):
        frame_sizes(struct.pack(">IQ", head, body))
    assert frame_sizes(struct.pack(">IQ", MAX_HEADER_BYTES, MAX_BODY_BYTES)) == (MAX_HEADER_BYTES, MAX_BODY_BYTES)


def table(*entries: Any) -> bytes:
    return json.dumps({"arrays": list(entries)}).encode()


BAD: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "no JSON": (b"{", b""),
    "no UTF-8": (b'{"arrays":[],"x":"\xff"}', b""),
    "no object": (b"[]", b""),
    "a number": (b"1", b""),
    "no table": (b"{}", b""),
    "table is no list": (b'{"arrays":1}', b""),
    "entry of two": (table(["a", "int32"]), b""),
    "unknown dtype": (table(["a", "object", [1]]), bytes(8)),
    "dtype is no name": (table(["a", 5, [1]]), bytes(8)),
    "body too short": (table(["a", "int32", [3]]), bytes(8)),
    "second array beyond the body": (table(["a", "int32", [2]], ["b", "int32", [1]]), bytes(8)),
    "shape is no list": (table(["a", "int32", 2]), bytes(8)),
    "shape of text": (table(["a", "int32", ["2"]]), bytes(8)),
    "shape of fractions": (table(["a", "int32", [1.5]]), bytes(8)),
    "a name that is no text": (table([["a"], "int32", [2]]), bytes(8)),
    "body too long": (table(["a", "int32", [1]]), bytes(8)),
    "a body without arrays": (table(), bytes(1)),
    "negative shape": (table(["a", "int32", [-1]]), bytes(8)),
    "shape of two negatives": (table(["a", "int32", [-1, -2]]), bytes(8)),
    "shape beyond memory": (table(["a", "int32", [2**70]]), bytes(8)),
    "nested too deeply": (b'{"x":' + b"[" * 100_000, b""),
}


@pytest.mark.parametrize(("head", "body"), BAD.values(), ids=BAD.keys())
def test_what_is_no_frame_is_a_bad_frame(head: bytes, body: bytes) -> None:
    with pytest.raises(BadFrame):
        decode_frame(head, body)
