"""Notice that leases are granted and end again and again, and that no record comes of any.

A pure core, over all peers together. Other alarms are about training steps (`learner.monitoring.alarms`), and a run in
this state takes none; this one is about leases. It counts the leases that ended since the last admitted record: given
back, expired, lost with their peer, or delivered and refused. Leases that the learner recalled do not count. Leases
that end within ROUND_MS of each other are one round, for a node gives back a batch at a time.

Invariants:
- It stands after ROUNDS rounds over SPAN_MS or more, and until the next record is admitted.
- Nothing grows with the number of leases.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

ALARM = "leases_without_records"
"""Its name in events, metrics and reports."""

ADVICE = (
    "Mend what the reason names ([model], [task], [learn] max_new_tokens), and start the learner again: it goes on."
)
"""What to do, said with the alarm."""

ROUNDS, SPAN_MS = 5, 30_000
"""Five rounds in half a minute or more. A node that tries again after 1, 2, 4, ... seconds has made six by then; an
owner who pauses the only node makes one."""

ROUND_MS = 1_000
"""As short as the first pause of a node that failed."""


class End(Enum):
    """How a lease ended that brought no record; the value is said of leases."""

    RETURNED = "given back"
    EXPIRED = "expired"
    LOST = "lost with their node"
    REFUSED = "delivered and refused"


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
    """See the module's paragraph. Times are milliseconds on the learner's clock."""

    ends: Counter[End] = field(default_factory=Counter)
    _rounds: int = 0
    _first_ms: int = 0
    _last_ms: int = 0

    def ended(self, how: End, leases: int, now_ms: int) -> None:
        """So many leases ended in this way."""
        if leases <= 0:
            return
        if self._rounds == 0 or now_ms < self._first_ms:  # or somebody has set the clock back
            self._first_ms, self._last_ms, self._rounds = now_ms, now_ms, max(1, self._rounds)
        elif now_ms - self._last_ms >= ROUND_MS:
            self._last_ms = now_ms
            self._rounds += 1
        self.ends[how] += leases

    def brought(self) -> None:
        """A record was admitted."""
        if self._rounds:
            self.ends, self._rounds = Counter(), 0

    @property
    def loop(self) -> Loop | None:
        """What is wrong, if it is."""
        span_ms = self._last_ms - self._first_ms
        if self._rounds < ROUNDS or span_ms < SPAN_MS:
            return None
        return Loop(ends=Counter(self.ends), span_s=span_ms / 1000)
