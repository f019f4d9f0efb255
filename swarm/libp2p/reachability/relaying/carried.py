"""Count what circuits carry, by the two peers at their ends, until somebody takes the sums to write them down.

What a relay says of it is its own word: a learner shows what it counted itself, and credits nobody by what others say.

Invariants:
- Each byte counts once, for one pair, whichever way it went.
- No more than MOST_PAIRS are told apart at a time; what others carried is in one sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.core.ids import PeerId

MOST_PAIRS = 4096
"""More than there are circuits in the seconds in which nobody takes the sums (`relay_budget.RelayLimits`)."""

Pair = tuple[PeerId, PeerId]

OTHERS: Pair = (PeerId(""), PeerId(""))
"""Where those count for whom there was no room."""


@dataclass(kw_only=True)
class Carried:
    """See the module's paragraph."""

    _pairs: dict[Pair, int] = field(default_factory=dict)

    def add(self, one: PeerId, other: PeerId, num_bytes: int) -> None:
        """So many bytes went from one of these to the other."""
        key = (one, other) if one < other else (other, one)
        if key not in self._pairs and len(self._pairs) >= MOST_PAIRS:
            key = OTHERS
        self._pairs[key] = self._pairs.get(key, 0) + num_bytes

    def take(self) -> Mapping[Pair, int]:
        """What was counted since this was last called."""
        taken, self._pairs = self._pairs, {}
        return taken
