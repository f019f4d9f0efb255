"""How a peer is reached, and how it met others, as values of a report.

Invariants:
- What is counted here are the pairs of `learner.ledger.reach`, so a row, the sums and the live view agree.
- All of it but what circuits carried is the word of peers.
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
"""How a peer and its learner came together: the way, and whether it was the peer that dialled."""


@dataclass(frozen=True, kw_only=True)
class PeerReach:
    """How others reach a peer, why, and since when it is so, in seconds since the start; how it and the learner came
    together, "" for a learner; its neighbours, by how it met each; and what it exchanged with them over circuits
    through the learner, in bytes.
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
        """Neighbours that one of the two dialled."""
        return self.neighbours.get(Way.DIALLED, 0)

    @property
    def dialled_back(self) -> int:
        """Neighbours that were brought by a relay and dialled back."""
        return self.neighbours.get(Way.REVERSED, 0)

    @property
    def punched(self) -> int:
        """Neighbours at which it knocked while they knocked at it."""
        return self.neighbours.get(Way.PUNCHED, 0)

    @property
    def over_circuit(self) -> int:
        """Neighbours that it reaches through a relay alone."""
        return self.neighbours.get(Way.RELAYED, 0)


@dataclass(frozen=True, kw_only=True)
class PairReport:
    """Two peers that have met, how, which of them dialled, if one did, and when that was first told (milliseconds since
    1970); `bytes_carried` between them, over circuits through the learner, as it counted them."""

    one: PeerId
    other: PeerId
    way: Way
    by: PeerId | None
    since_ms: int
    bytes_carried: int = 0


def came_together(peer: PeerId, pair: Pair) -> str:
    """How a peer and its learner came together, as the rest of a sentence about the peer."""
    return CAME.get((pair.way, pair.by == peer), "otherwise")
