"""Bytes of one stream that have arrived and were not read yet.

What always holds: they come out as they came in; what is held is little more than their number, however small the
pieces in which they came; a reader that keeps up gets each piece as it is, or several joined, copied once at most.
"""

from __future__ import annotations

from collections import deque

SMALL_BYTES = 4096
"""Pieces are gathered up to here, so that a peer that sends single bytes costs us bytes, and not an object for each."""


class Arrivals:
    """A queue of bytes. `len` is how many wait."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._start = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, data: bytes) -> None:
        """Append `data`."""
        if self._pieces and len(self._pieces[-1]) + len(data) <= SMALL_BYTES:
            self._pieces[-1] += data
        elif data:
            self._pieces.append(data)
        self._size += len(data)

    def peek(self, size: int) -> bytes:
        """Return the first `size` bytes, fewer where there are no more, and leave them."""
        if self._pieces and len(self._pieces[0]) - self._start >= size:
            return self._pieces[0][self._start : self._start + size]
        data = self.take(size)
        if data:
            self._pieces.appendleft(data if not self._start else data + self._pieces.popleft()[self._start :])
            self._start = 0
            self._size += len(data)
        return data

    def take(self, max_bytes: int) -> bytes:
        """Remove and return the first bytes, as many as there are, up to `max_bytes`."""
        taken: list[bytes] = []
        while self._pieces and max_bytes:
            end = self._start + max_bytes
            piece = self._pieces[0][self._start : end]
            if end < len(self._pieces[0]):
                self._start = end
            else:
                self._pieces.popleft()
                self._start = 0
            taken.append(piece)
            max_bytes -= len(piece)
        data = taken[0] if len(taken) == 1 else b"".join(taken)
        self._size -= len(data)
        return data

    def clear(self) -> None:
        """Throw all of it away."""
        self._pieces.clear()
        self._start = self._size = 0
