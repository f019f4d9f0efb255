"""Hold how a peer is reached, and how it connected to others, as values of a report.

Invariants:

- The pairs counted here are those of `learner.ledger.reach`, so a row, the sums and the live view agree.
- Everything except the bytes of circuits is what peers report themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from learner.ledger.reach import VERDICTS, Pair
from protocol.core.ids import PeerId
from protocol.reach import ReachKind, Way

CAME = {
    (Way.DIALLED, True): "dials it",
    (Way.DIALLED, False): "is dialled",
    (Way.REVERSED, True): "dials it back",
    (Way.REVERSED, False): "is dialled back",
    (Way.PUNCHED, False): "punched",
    (Way.RELAYED, False): "over a circuit",
}
"""How a peer connected to its learner: the way, and whether the peer was the one that dialled."""


@dataclass(frozen=True, kw_only=True)
class PeerReach:
    """How others reach a peer, why, and since when (`since_s`, seconds since the start).

    `learner`: how it and the learner connected, "" for a learner. `neighbours`: counted by the way in which they
    connected. `bytes_carried`: exchanged with them over circuits through the learner.
    """

    kind: ReachKind
    why: str
    since_s: float
    learner: str
    neighbours: Mapping[Way, int]
    bytes_carried: int = 0

    @property
    def verdict(self) -> str:
        """The kind in a word or two."""
        return VERDICTS[self.kind]

    @property
    def dialled(self) -> int:
        """Neighbours where one of the two dialled the other."""
        return self.neighbours.get(Way.DIALLED, 0)

    @property
    def dialled_back(self) -> int:
        """Neighbours that a relay introduced and that dialled back."""
        return self.neighbours.get(Way.REVERSED, 0)

    @property
    def punched(self) -> int:
        """Neighbours with a hole-punched connection: both dialled at the same moment."""
        return self.neighbours.get(Way.PUNCHED, 0)

    @property
    def over_circuit(self) -> int:
        """Neighbours that it reaches only through a relay."""
        return self.neighbours.get(Way.RELAYED, 0)


@dataclass(frozen=True, kw_only=True)
class PairReport:
    """Two peers that have connected: the way, which of them dialled, if one did, and when this was first reported, in
    milliseconds since 1970. `bytes_carried`: between them, over circuits through the learner, as it counted them."""

    one: PeerId
    other: PeerId
    way: Way
    by: PeerId | None
    since_ms: int
    bytes_carried: int = 0


def came_together(peer: PeerId, pair: Pair) -> str:
    """Return how a peer and its learner connected, as the end of a sentence about the peer."""
    return CAME.get((pair.way, pair.by == peer), "otherwise")
