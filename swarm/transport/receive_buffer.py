"""Buffer the bytes of one stream that have arrived and were not read yet.

Invariants:

- Bytes leave in the order in which they arrived.
- The memory in use is little more than their number, even if they arrived in very small pieces.
- A reader that keeps up gets each piece as it arrived, or several joined. A byte is copied at most once.
"""

from __future__ import annotations

from collections import deque

SMALL_BYTES = 4096
"""Small pieces are joined up to this size, so that a peer that sends single bytes does not cost an object for each."""


class Arrivals:
    """A queue of bytes. `size` is the number of bytes in it."""

    __slots__ = ("_pieces", "_start", "size")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._start = 0
        self.size = 0

    def put(self, data: bytes) -> None:
        """Append `data`."""
        if not data:
            return
        pieces = self._pieces
        if pieces and len(data) < SMALL_BYTES and len(pieces[-1]) + len(data) <= SMALL_BYTES:
            pieces[-1] += data
        else:
            pieces.append(data)
        self.size += len(data)

    def peek(self, size: int) -> bytes:
        """Return the first `size` bytes, or fewer if there are no more, without removing them."""
        start = self._start
        if self._pieces and len(self._pieces[0]) - start >= size:
            return self._pieces[0][start : start + size]
        data = self.take(size)
        if data:
            self._pieces.appendleft(data if not self._start else data + self._pieces.popleft()[self._start :])
            self._start = 0
            self.size += len(data)
        return data

    def take(self, max_bytes: int) -> bytes:
        """Remove and return up to `max_bytes` of the first bytes."""
        pieces, start = self._pieces, self._start
        if not pieces:
            return b""
        first = pieces[0]
        if not start and len(first) <= max_bytes and (len(first) == max_bytes or len(pieces) == 1):
            pieces.popleft()
            self.size -= len(first)
            return first
        if start + max_bytes < len(first):
            self._start = start + max_bytes
            self.size -= max_bytes
            return first[start : self._start]
        return self._join(min(max_bytes, self.size))

    def clear(self) -> None:
        """Discard all bytes."""
        self._pieces.clear()
        self._start = self.size = 0

    def _join(self, size: int) -> bytes:
        """Remove and return `size` bytes; there must be as many."""
        self.size -= size
        taken: list[bytes | memoryview] = []
        while size:
            piece, start = self._pieces[0], self._start
            left = len(piece) - start
            if left > size:
                taken.append(memoryview(piece)[start : start + size])
                self._start += size
                break
            taken.append(memoryview(piece)[start:] if start else piece)
            self._pieces.popleft()
            self._start = 0
            size -= left
        return b"".join(taken)
