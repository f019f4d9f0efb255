"""Measure how fast a link takes bytes, only while it is kept busy.

The first write after a pause goes into empty buffers and says nothing about the link. So neither that write nor the
pause is counted.

Invariants:

- `bytes_per_s` is infinite until the link was busy long enough for a measurement.
"""

from __future__ import annotations

from math import inf

PAUSE_S = 0.005
"""Seconds. Between two writes in direct succession there is less, also on a shared processor."""

ENOUGH_S, ENOUGH_BYTES = 0.05, 256 * 1024
"""Seconds or bytes counted for one measurement: two round trips of a home link, or one chunk if that is sooner."""


class Pace:
    """Measure one direction of one connection."""

    def __init__(self) -> None:
        self.bytes_per_s = inf
        self._ended = -inf
        self._bytes, self._seconds = 0, 0.0

    def wrote(self, size: int, began: float, ended: float) -> bool:
        """Count a write of `size` bytes from `began` to `ended`; return True if there is a new measurement."""
        follows, since = began - self._ended < PAUSE_S, self._ended
        self._ended = ended
        if not follows:
            return False
        self._bytes += size
        self._seconds += ended - since
        if self._seconds < ENOUGH_S and self._bytes < ENOUGH_BYTES:
            return False
        self.bytes_per_s = self._bytes / max(self._seconds, 1e-6)
        self._bytes, self._seconds = 0, 0.0
        return True

    def within(self, seconds: float, at_least: int, at_most: int) -> int:
        """Return how many bytes the link takes in so many seconds, within bounds."""
        return int(min(max(self.bytes_per_s * seconds, at_least), at_most))
