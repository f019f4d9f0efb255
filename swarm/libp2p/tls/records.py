"""Find where TLS records end in a stream of bytes, from their headers alone.

    record = u8 type | u16 version | u16 length (big endian) | length bytes

OpenSSL does not say how much of a record is still missing. To wake a reader for a few bytes that complete no record
would be waste.

Invariants:

- `before` never asks for more bytes than will come, so waiting for them loses no time.
"""

from __future__ import annotations

HEADER_BYTES = 5

OVERHEAD_BYTES = 17
"""Bytes of a record's length, at least: the inner type and the tag of TLS 1.3's ciphers."""


class RecordTracker:
    """Follow the records of one direction of one connection. `num_complete` is how many have arrived whole."""

    __slots__ = ("_header", "_length", "_missing", "num_complete")

    def __init__(self) -> None:
        self.num_complete = 0
        self._header = b""
        self._length = 0
        self._missing = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Count bytes that have arrived."""
        if self._header:
            data = self._header + data
        at, size = self._missing, len(data)
        num_begun = self.num_complete + (at > 0)
        while at <= size - HEADER_BYTES:
            self._length = data[at + 3] << 8 | data[at + 4]
            num_begun += 1
            at += HEADER_BYTES + self._length
        if at < size:
            self._header, self._missing = bytes(data[at:]), 0
        else:
            self._header, self._missing = b"", at - size
        self.num_complete = num_begun - (self._missing > 0)

    def before(self, plaintext: int) -> int:
        """Return the least number of bytes that must arrive until `plaintext` (1 or more) more can be decrypted."""
        if self._missing:
            return self._missing + max(0, plaintext - max(0, self._length - OVERHEAD_BYTES))
        return max(HEADER_BYTES + OVERHEAD_BYTES + plaintext - len(self._header), 1)
