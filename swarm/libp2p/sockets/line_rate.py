"""How fast a line takes what it is given, measured only while it is kept busy.

The first write after a pause goes into empty buffers and says nothing about the line, so it is not counted; neither is
the pause. What always holds: `bytes_per_s` is infinite until the line was busy long enough to tell.
"""

from __future__ import annotations

from math import inf

PAUSE_S = 0.005
"""Between two writes that follow each other at once there is less, also on a processor that is shared."""

ENOUGH_S, ENOUGH_BYTES = 0.05, 256 * 1024
"""What is counted until the next measure: two round trips of a line at home, or where that is sooner one chunk."""


class Pace:
    """Of one direction of one connection."""

    def __init__(self) -> None:
        self.bytes_per_s = inf
        self._ended = -inf
        self._bytes, self._seconds = 0, 0.0

    def wrote(self, size: int, began: float, ended: float) -> bool:
        """Take in a write of `size` bytes and when it began and ended; True when there is a new measure."""
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
        """Return how many bytes the line takes in so long, within bounds."""
        return int(min(max(self.bytes_per_s * seconds, at_least), at_most))
