"""Where TLS records end in a stream of bytes, from their headers alone.

    record = u8 type | u16 version | u16 length (big endian) | length bytes

OpenSSL does not say how much of a record it still lacks, and a few bytes that complete none are a wake-up for nothing.
What always holds: `before` never asks for more than will come, so whoever waits for it loses no time.
"""

from __future__ import annotations

HEADER_BYTES = 5

OVERHEAD_BYTES = 17
"""Of a record's length, at least: the inner type and the tag of TLS 1.3's ciphers."""


class RecordTracker:
    """Follows the records of one direction of one connection."""

    def __init__(self) -> None:
        self._num_begun = 0
        self._header = b""
        self._length = 0
        self._missing = 0

    @property
    def num_complete(self) -> int:
        """Records that have arrived whole."""
        return self._num_begun - (self._missing > 0)

    def feed(self, data: bytes | memoryview) -> None:
        """Take note of bytes that have arrived."""
        if self._header:
            data = self._header + data
        at, last_header = self._missing, len(data) - HEADER_BYTES
        while at <= last_header:
            self._length = data[at + 3] << 8 | data[at + 4]
            self._num_begun += 1
            at += HEADER_BYTES + self._length
        self._header = bytes(data[at:])
        self._missing = max(0, at - len(data))

    def before(self, plaintext: int) -> int:
        """Return how many bytes must arrive, at least, before `plaintext` more bytes, one or more, can be decrypted."""
        if self._missing:
            return self._missing + max(0, plaintext - max(0, self._length - OVERHEAD_BYTES))
        return max(HEADER_BYTES + OVERHEAD_BYTES + plaintext - len(self._header), 1)
