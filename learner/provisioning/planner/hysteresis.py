"""For how long something has been so without a break: what is told from noise by staying.

Pure. What always holds: it follows from what was told and when, so whoever tells it more often learns nothing else.
"""

from __future__ import annotations


class Lasting:
    """Times are those of one clock that never goes back."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def update(self, is_so: bool, now_s: float) -> float:
        """Seconds; negative if it is not so."""
        if not is_so:
            self._since_s = None
            return -1.0
        self._since_s = now_s if self._since_s is None else self._since_s
        return now_s - self._since_s

    def restart(self) -> None:
        """What follows counts anew."""
        self._since_s = None
