"""Count the bytes that circuits carry, by the two peers at their ends, until a caller takes the sums and records them.

A relay's count is only its own claim. A learner shows what it counted itself, and credits nobody by others' counts.

Invariants:

- Each byte counts once, for one pair, in whichever direction it went.
- At most MOST_PAIRS pairs are counted apart at a time; bytes of all other pairs are in one sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.core.ids import PeerId

MOST_PAIRS = 4096
"""More than the circuits in the seconds between two calls that take the sums (`relay_budget.RelayLimits`)."""

Pair = tuple[PeerId, PeerId]

OTHERS: Pair = (PeerId(""), PeerId(""))
"""The pair that counts for all pairs without room."""


@dataclass(kw_only=True)
class Carried:
    """Count bytes by pair of peers."""

    _pairs: dict[Pair, int] = field(default_factory=dict)

    def add(self, one: PeerId, other: PeerId, num_bytes: int) -> None:
        """Add bytes that went from one of these peers to the other."""
        key = (one, other) if one < other else (other, one)
        if key not in self._pairs and len(self._pairs) >= MOST_PAIRS:
            key = OTHERS
        self._pairs[key] = self._pairs.get(key, 0) + num_bytes

    def take(self) -> Mapping[Pair, int]:
        """Return the counts since the last call."""
        taken, self._pairs = self._pairs, {}
        return taken
