"""Write and read one stream of bytes of a patch: left out, raw, or compressed with zstd, whichever is smallest.

docs/reference/protocol.md, "Patches", specifies the bytes.

Invariants:

- A reader knows a stream's size before it reads it, and never takes or allocates more bytes than that.
- A compressed stream is smaller than the bytes that it stands for, and its frame states their exact number. So it
  cannot be a decompression bomb.
- Every defect of a stream raises PeerError.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import numpy as np
import zstandard
from numpy.typing import NDArray

from protocol.core.errors import Fault, PeerError
from protocol.core.limits import MIB

Octets = NDArray[np.uint8]
Take = Callable[[int], bytes | memoryview]
"""A function `take(size)` that returns the next `size` bytes of a patch, or raises PeerError if there are fewer."""

LENGTH_BYTES = 4
"""Size of a length or a count. It is big-endian, as everywhere in this protocol."""

ZSTD_LEVEL = 3
"""Level for bytes of unknown kind. A patch is compared with the tensor compressed at this level."""

MAX_WINDOW_BYTES = 8 * MIB
"""The window that RFC 8878 recommends every decoder to support. Ours decodes a frame at once and needs none."""


class Codec(IntEnum):
    """How a stream is encoded: its first byte."""

    ZEROS = 0
    RAW = 1
    ZSTD = 2


class Packer:
    """Writes streams. Two threads must not use one at the same time."""

    def __init__(self) -> None:
        # Gaps and differences are nearly independent of each other, so a short match among them costs more than its
        # bytes as Huffman codes. With matches of at least 7 bytes and one fast table, changed elements took 10 % less
        # space than at level 3, in half the time.
        noise = zstandard.ZstdCompressionParameters(
            strategy=zstandard.STRATEGY_FAST, min_match=7, hash_log=12, window_log=21, write_content_size=True
        )
        self._noise = zstandard.ZstdCompressor(compression_params=noise)
        self._plain = zstandard.ZstdCompressor(level=ZSTD_LEVEL)

    def pack(self, stream: Octets) -> bytes:
        """Return the encoded stream, with settings for data that looks like noise."""
        if not stream.any():
            return bytes([Codec.ZEROS])
        return _smaller(stream, self._noise.compress(stream.data))

    def pack_plain(self, stream: Octets) -> bytes:
        """Return the encoded stream, with settings for data that may repeat itself at a distance."""
        return _smaller(stream, self.squeeze(stream))

    def squeeze(self, stream: Octets) -> bytes:
        """Return `stream` compressed with zstd at ZSTD_LEVEL."""
        return self._plain.compress(stream.data)


class Unpacker:
    """Reads streams. Two threads must not use one at the same time."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)

    def unpack(self, take: Take, size: int) -> Octets:
        """Take a stream that stands for `size` bytes and return these bytes; the array may be read-only.

        Raises PeerError.
        """
        match take(1)[0]:
            case Codec.ZEROS:
                return np.zeros(size, np.uint8)
            case Codec.RAW:
                return np.frombuffer(take(size), np.uint8)
            case Codec.ZSTD:
                length = take_number(take)
                if not 0 < length < size:
                    raise PeerError(Fault.OVERSIZED, f"patch: {length} bytes of zstd for a stream of {size}")
                return np.frombuffer(self._expand(take(length), size), np.uint8)
            case codec:
                raise PeerError(Fault.MALFORMED, f"patch: unknown codec {codec}")

    def _expand(self, frame: bytes | memoryview, size: int) -> bytes:
        try:
            # The size that the frame states is checked first, because zstandard allocates as much.
            if zstandard.frame_content_size(frame) != size:
                raise PeerError(Fault.OVERSIZED, f"patch: a zstd frame does not state that it has {size} bytes")
            return self._zstd.decompress(frame, max_output_size=size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise PeerError(Fault.MALFORMED, f"patch: {error}") from error


def number(value: int) -> bytes:
    """Return a length or a count as bytes."""
    return value.to_bytes(LENGTH_BYTES, "big")


def take_number(take: Take) -> int:
    """Take a number that `number` wrote, and return it."""
    return int.from_bytes(take(LENGTH_BYTES), "big")


def _smaller(stream: Octets, squeezed: bytes) -> bytes:
    if LENGTH_BYTES + len(squeezed) < len(stream):
        return b"".join([bytes([Codec.ZSTD]), number(len(squeezed)), squeezed])
    return b"".join([bytes([Codec.RAW]), stream.data])
