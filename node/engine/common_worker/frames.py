"""Frames on a pipe: a copy of the few lines of `protocol.core.pipe`, which see. A test holds the two together."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

Header = dict[str, Any]
Arrays = dict[str, np.ndarray[Any, Any]]

PREFIX = struct.Struct(">IQ")


def encode_frame(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]] | None = None) -> bytes:
    items = (arrays or {}).items()
    blocks = [np.ascontiguousarray(a).astype(a.dtype.newbyteorder("<"), copy=False).tobytes() for _, a in items]
    table = [(name, array.dtype.name, list(array.shape)) for name, array in items]
    head = json.dumps({**header, "arrays": table}, separators=(",", ":")).encode()
    return b"".join([PREFIX.pack(len(head), sum(map(len, blocks))), head, *blocks])


def decode_frame(head: bytes, body: bytes) -> tuple[Header, Arrays]:
    header = json.loads(head)
    arrays: Arrays = {}
    offset = 0
    for name, dtype, shape in header.pop("arrays"):
        kind = np.dtype(dtype).newbyteorder("<")
        if any(size < 0 for size in shape):
            raise ValueError(f"array {name!r} has shape {shape}")
        arrays[name] = np.frombuffer(body, kind, math.prod(shape), offset).reshape(shape)
        offset += arrays[name].nbytes
    if offset != len(body):
        raise ValueError(f"the arrays take {offset} bytes, the body has {len(body)}")
    return header, arrays


def read_frame(stream: BinaryIO) -> tuple[Header, Arrays] | None:
    """Return the next frame of an unbuffered stream; None where it ends."""
    prefix = _read_exactly(stream, PREFIX.size)
    if prefix is None:
        return None
    head_size, body_size = PREFIX.unpack(prefix)
    head, body = _read_exactly(stream, head_size), _read_exactly(stream, body_size)
    return None if head is None or body is None else decode_frame(head, body)


def _read_exactly(stream: BinaryIO, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = stream.read(size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)
