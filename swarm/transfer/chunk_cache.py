"""Keep chunks that were stored a moment ago in memory: peers ask for these next.

Every neighbour asks for a new chunk within a second or two. The cache spares a turn of a thread, a read from the disk
and a hash for each of them.

Invariants:

- Cached chunks were verified.
- They take at most `RECENT_BYTES`; the oldest is dropped first.
"""

from __future__ import annotations

from protocol.core.ids import Cid
from protocol.core.limits import MIB

RECENT_BYTES = 32 * MIB
"""Five seconds of 50 Mbit/s; 128 chunks of 256 KiB, or eight of 4 MiB."""


class RecentChunks:
    """Keep the newest chunks, up to RECENT_BYTES."""

    def __init__(self) -> None:
        self._chunks: dict[Cid, bytes | memoryview] = {}
        self._size = 0

    def add(self, cid: Cid, data: bytes | memoryview) -> None:
        """Keep a verified chunk for a while."""
        if cid not in self._chunks and len(data) <= RECENT_BYTES:
            self._chunks[cid] = data
            self._size += len(data)
        while self._size > RECENT_BYTES:
            self._size -= len(self._chunks.pop(next(iter(self._chunks))))

    def get(self, cid: Cid) -> bytes | memoryview | None:
        """Return the chunk, or None if it is no longer here."""
        return self._chunks.get(cid)
