"""Turn bytes into yamux frames and back; there are no connections in this module.

    frame = u8 version (0) | u8 type | u16 flags | u32 stream id | u32 length (big endian) | payload of a DATA frame

Specification: https://github.com/hashicorp/yamux/blob/master/spec.md.

Invariants:

- A header is checked before its payload is used, and no memory is allocated by a length that a peer wrote.
- A DATA frame is passed on piece by piece as it arrives, its opening flags with the first piece and its closing flags
  with the last. So no frame is ever held whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from typing import NamedTuple

HEADER = struct.Struct("!BBHII")
HEADER_BYTES = HEADER.size
VERSION = 0

INITIAL_WINDOW = 256 * 1024
"""Bytes that either side may send on a new stream before the first window update; fixed by the specification."""


class FrameType(IntEnum):
    DATA = 0
    WINDOW_UPDATE = 1
    PING = 2
    GO_AWAY = 3


class Flag(IntFlag):
    NONE = 0
    SYN = 1
    ACK = 2
    FIN = 4
    RST = 8


SYN, ACK, FIN, RST = map(int, Flag)
"""Plain integers, for frames of bulk data: `&` on an IntFlag takes ten times as long."""

OPENING = SYN | ACK
CLOSING = FIN | RST
ALL_FLAGS = OPENING | CLOSING
TYPES = tuple(FrameType)
_DATA = FrameType.DATA


class FrameError(Exception):
    """The peer does not speak yamux, and the connection cannot be used. The message says which field was wrong."""


class Frame(NamedTuple):
    """One frame, or one piece of a DATA frame.

    Attributes:
        length: for DATA the payload's bytes in this piece, for WINDOW_UPDATE the delta in bytes, for PING an opaque
            value, for GO_AWAY the reason.
    """

    type: FrameType
    flags: int
    stream_id: int
    length: int
    payload: bytes = b""


def encode_header(frame_type: FrameType, flags: int, stream_id: int, length: int) -> bytes:
    """Return the 12 header bytes."""
    return HEADER.pack(VERSION, frame_type, flags, stream_id, length)


class FrameParser:
    """Cut a byte stream into frames. At most one partial header is held."""

    def __init__(self) -> None:
        self._partial = b""
        self._stream_id = 0
        self._flags = 0
        self._missing = 0

    @property
    def expected(self) -> int:
        """Bytes still missing from the frame that has begun; 1 between frames."""
        return self._missing or 1

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames, and pieces of DATA frames, that `data` completes. Raises FrameError."""
        if self._partial:
            data = self._partial + data
            self._partial = b""
        offset, size = 0, len(data)
        while offset < size:
            if missing := self._missing:
                piece = data[offset : offset + missing]
                offset += len(piece)
                yield self._piece(piece)
            elif size - offset < HEADER_BYTES:
                self._partial = data[offset:]
                return
            else:
                frame = self._header(data, offset)
                offset += HEADER_BYTES
                if frame is not None:
                    yield frame

    def _header(self, data: bytes, offset: int) -> Frame | None:
        """Parse a header; None when it opens a DATA payload, whose pieces follow."""
        version, kind, flags, stream_id, length = HEADER.unpack_from(data, offset)
        if version != VERSION:
            raise FrameError(f"yamux version {version}, expected {VERSION}")
        if kind >= len(TYPES):
            raise FrameError(f"yamux frame type {kind}")
        if flags & ~ALL_FLAGS:
            raise FrameError(f"yamux flags {flags:#x}")
        if (kind <= FrameType.WINDOW_UPDATE) != (stream_id != 0):
            raise FrameError(f"yamux frame type {kind} on stream {stream_id}")
        if kind == FrameType.DATA and length:
            self._stream_id, self._flags, self._missing = stream_id, flags, length
            return None
        return Frame(TYPES[kind], flags, stream_id, length)

    def _piece(self, piece: bytes) -> Frame:
        size = len(piece)
        self._missing -= size
        if not self._flags:
            return Frame(_DATA, 0, self._stream_id, size, piece)
        flags = self._flags if self._missing == 0 else self._flags & OPENING
        self._flags &= CLOSING
        return Frame(_DATA, flags, self._stream_id, size, piece)
