"""How long somebody was busy, when several things went on at once: each moment counts once.

Pure. What always holds: the seconds given out add up to the length of the union of all spells, as far back as SPELLS
separate ones.
"""

from __future__ import annotations

from collections import deque

SPELLS = 32
"""Separate spells that are remembered, for one that began before them and ends now: more than an engine works on."""


class Spells:
    """When one peer was busy. Spells come in the order of their ends, as deliveries do."""

    def __init__(self) -> None:
        self._spells: deque[tuple[float, float]] = deque(maxlen=SPELLS)

    def add(self, start_s: float, end_s: float) -> float:
        """Take in a spell; return by how many seconds the peer was busy longer than was known."""
        spells, known_s = self._spells, 0.0
        if spells:
            end_s = max(end_s, spells[-1][1])
        start_s = min(start_s, end_s)
        while spells and spells[-1][1] >= start_s:
            start, end = spells.pop()
            known_s += end - start
            start_s = min(start_s, start)
        spells.append((start_s, end_s))
        return max(0.0, end_s - start_s - known_s)
