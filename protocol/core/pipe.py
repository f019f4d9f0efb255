"""Encode and decode frames between a node and its child processes: a small JSON header, then arrays as raw bytes.

    frame  = u32 header_size | u64 body_size (big endian) | header (UTF-8 JSON object) | body
    header = {..., "arrays": [[name, dtype, shape], ...]}
    body   = the arrays' C-order little-endian bytes, in that order, and nothing else

This module imports numpy and the standard library only, so that an engine worker can load it by its path in any virtual
environment.

Invariants:

- Both sizes are checked against their bounds before anything is read or allocated.
- Decoding never executes anything (no pickle).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

PREFIX = struct.Struct(">IQ")
MAX_HEADER_BYTES = 64 * 1024 * 1024
"""A header names requests one by one; 64 MiB hold tens of thousands of them."""
MAX_BODY_BYTES = 4 * 1024 * 1024 * 1024
"""One training batch of a billion tokens in int32. This bound stops a faulty child process; it is not a target."""
DTYPES = frozenset({"int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"})

Header = dict[str, Any]
Arrays = dict[str, np.ndarray[Any, Any]]


class BadFrame(ValueError):
    """The other end of the pipe does not use this format, so the child process cannot be used any longer."""


def encode_frame(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]] | None = None) -> bytes:
    """Return one frame. `header` must be JSON-encodable and must not use the key "arrays"."""
    blocks: list[bytes] = []
    table: list[tuple[str, str, list[int]]] = []
    for name, array in (arrays or {}).items():
        if array.dtype.name not in DTYPES:
            raise TypeError(f"array {name!r} has dtype {array.dtype.name}; a pipe carries {sorted(DTYPES)}")
        table.append((name, array.dtype.name, list(array.shape)))
        blocks.append(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    head = json.dumps({**header, "arrays": table}, separators=(",", ":")).encode()
    return b"".join([PREFIX.pack(len(head), sum(map(len, blocks))), head, *blocks])


def frame_sizes(prefix: bytes) -> tuple[int, int]:
    """Return (header size, body size) from the 12 prefix bytes. Raise BadFrame if one is out of bounds."""
    header_size, body_size = PREFIX.unpack(prefix)
    if header_size > MAX_HEADER_BYTES or body_size > MAX_BODY_BYTES:
        raise BadFrame(f"frame of {header_size} + {body_size} bytes is over the bound")
    return header_size, body_size


def decode_frame(head: bytes, body: bytes) -> tuple[Header, Arrays]:
    """Return the header without its array table, and the arrays by name as read-only views of `body`.

    Raises BadFrame.
    """
    try:
        header = json.loads(head)
        table = header.pop("arrays")
        arrays: Arrays = {}
        offset = 0
        for name, dtype, shape in table:
            if dtype not in DTYPES:
                raise BadFrame(f"array {name!r} has dtype {dtype!r}")
            if any(size < 0 for size in shape):  # numpy would read it as "the rest"
                raise BadFrame(f"array {name!r} has shape {shape}")
            kind = np.dtype(dtype).newbyteorder("<")
            count = math.prod(shape)
            arrays[name] = np.frombuffer(body, kind, count, offset).reshape(shape)
            offset += count * kind.itemsize
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadFrame(f"unreadable frame: {error}") from error
    if offset != len(body):
        raise BadFrame(f"the arrays take {offset} bytes, the body has {len(body)}")
    return header, arrays


def read_exactly(stream: BinaryIO, size: int) -> bytes | None:
    """Return `size` bytes of a stream, buffered or not. Return None at its end, even within a frame: the other process
    is gone."""
    data = bytearray()
    while len(data) < size:
        part = stream.read(size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


def read_frame(stream: BinaryIO) -> tuple[Header, Arrays] | None:
    """Return the next frame, or None at the end of the stream. Raises BadFrame."""
    if (prefix := read_exactly(stream, PREFIX.size)) is None:
        return None
    head_size, body_size = frame_sizes(prefix)
    head, body = read_exactly(stream, head_size), read_exactly(stream, body_size)
    return None if head is None or body is None else decode_frame(head, body)
