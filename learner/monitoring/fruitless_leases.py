"""Notice that leases are granted and end again and again without bringing a record.

A pure core, over all peers together. Other alarms are about training steps (`learner.monitoring.alarms`), and a run in
this state makes none; this one is about leases. It counts the leases that ended since the last admitted record:
returned, expired, lost with their peer, or delivered and rejected. Leases that the learner recalled do not count.
Leases that end within ROUND_MS of each other are one round, since a node returns a batch at a time.

Invariants:

- The alarm stands after ROUNDS rounds over SPAN_MS or more, until the next record is admitted.
- Nothing grows with the number of leases.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

ALARM = "leases_without_records"
"""The alarm's name in events, metrics and reports."""

ADVICE = "Fix what the reason names ([model], [task], [learn] max_new_tokens), and start the learner again to continue."
"""The advice that goes with the alarm."""

ROUNDS, SPAN_MS = 5, 30_000
"""Five rounds in half a minute or more. A node that tries again after 1, 2, 4, ... seconds has made six rounds by then.
An owner who pauses the only node makes one."""

ROUND_MS = 1_000
"""Milliseconds: the shortest pause of a node that failed."""


class End(Enum):
    """How a lease ended that brought no record; messages about leases show the value."""

    RETURNED = "returned"
    EXPIRED = "expired"
    LOST = "lost with their node"
    REJECTED = "delivered and rejected"


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Leases since the last one that brought a record: how they ended, and over how many seconds."""

    ends: Counter[End]
    span_s: float

    @property
    def leases(self) -> int:
        return self.ends.total()

    def __str__(self) -> str:
        told = ", ".join(f"{self.ends[end]:,} {end.value}" for end in End if self.ends[end])
        return f"The last {self.leases:,} leases brought no record, over {self.span_s:.0f} s: {told}."


@dataclass(kw_only=True)
class Fruitless:
    """Counts leases without records. Times are milliseconds on the learner's clock."""

    ends: Counter[End] = field(default_factory=Counter)
    _rounds: int = 0
    _first_ms: int = 0
    _last_ms: int = 0

    def ended(self, how: End, leases: int, now_ms: int) -> None:
        """Count leases that ended in this way."""
        if leases <= 0:
            return
        if self._rounds == 0 or now_ms < self._first_ms:  # or the clock was set back
            self._first_ms, self._last_ms, self._rounds = now_ms, now_ms, max(1, self._rounds)
        elif now_ms - self._last_ms >= ROUND_MS:
            self._last_ms = now_ms
            self._rounds += 1
        self.ends[how] += leases

    def brought(self) -> None:
        """Start again, since a record was admitted."""
        if self._rounds:
            self.ends, self._rounds = Counter(), 0

    @property
    def loop(self) -> Loop | None:
        """Return how the leases ended if the alarm stands, else None."""
        span_ms = self._last_ms - self._first_ms
        if self._rounds < ROUNDS or span_ms < SPAN_MS:
            return None
        return Loop(ends=Counter(self.ends), span_s=span_ms / 1000)
