"""Define a peer's rank among all peers, which a learner tells it if the operator wants that.

A rank is for people to read. Nothing is admitted, paid or decided because of it, so it has no signature: the connection
shows that the learner said it. A node that does not know the extension ignores it.

Invariants:

- Peers with the same number of admitted rollouts share a place.
- A rank tells nothing about any other single peer but how many peers there are, and what all of them did together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from protocol.core.codec import Count, Message, decode
from protocol.core.errors import PeerError
from protocol.core.ids import PeerId
from protocol.core.limits import MAX_EXTENSION_BYTES

RANK = "volery.rank"
"""The extension of Proofs that carries the Rank of the peer that asked."""

Place = Annotated[int, Meta(ge=1, lt=1 << 53)]


class Rank(Message, frozen=True, kw_only=True):
    """The place of a peer among `peers`, those with an admitted rollout, by the number of their admitted rollouts.

    `place` is 1 and the number of peers with more. `admitted`: rollouts of this peer; `admitted_by_all`: those of all.
    """

    place: Place
    peers: Place
    admitted: Count
    admitted_by_all: Count

    @property
    def share(self) -> float:
        """Return the fraction of all admitted rollouts that are this peer's."""
        return self.admitted / max(1, self.admitted_by_all)


def ranks_of(admitted: Mapping[PeerId, int]) -> dict[PeerId, Rank]:
    """Return the ranks of all peers with an admitted rollout. `admitted`: the numbers, by peer."""
    counted = {peer: number for peer, number in admitted.items() if number}
    ascending, together = sorted(counted.values()), sum(counted.values())
    return {
        peer: Rank(
            place=1 + len(ascending) - bisect_right(ascending, number),
            peers=len(counted),
            admitted=number,
            admitted_by_all=together,
        )
        for peer, number in counted.items()
    }


def rank_from(extensions: Mapping[str, bytes]) -> Rank | None:
    """Return the Rank in a message's extensions; None if there is none, or none that can be true."""
    if (raw := extensions.get(RANK)) is None:
        return None
    try:
        told: Rank = decode(Rank, raw, MAX_EXTENSION_BYTES)
    except PeerError:
        return None
    return told if told.place <= told.peers and told.admitted <= told.admitted_by_all else None
