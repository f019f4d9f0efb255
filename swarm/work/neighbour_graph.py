"""Who is whose neighbour: everybody up to `FULL_MESH` peers, about `NEIGHBOURS` at random above.

A plain function. Above the mesh, peers stand in `RINGS` circles, each in an order of its own that a hash gives, and a
peer's neighbours are those beside it in every circle. What always holds: being neighbours is mutual; nobody is cut off,
since each circle connects all; a peer that comes or goes changes only the neighbours beside it; everybody who knows the
same peers computes the same. A union of random circles spreads news in about log N steps, as a random regular graph
does, which Uber's Kraken builds for the same reason.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256

from protocol.core.ids import PeerId

FULL_MESH = 24
"""Up to so many peers everybody knows everybody. With 32 the mesh was no quicker in the simulation than rings, and took
twice the messages."""

RINGS = 10
"""Two neighbours in each: 20 in all, with whom a thousand peers are three or four steps apart. Uplinks are unequal, and
of five rings some peers had only slow neighbours: a hundred peers on mixed home lines were done a sixth later (one
seed). Eight to sixteen rings differed by less than two seeds do."""

NEIGHBOURS = 2 * RINGS


def neighbourhoods(peers: Collection[PeerId]) -> dict[PeerId, frozenset[PeerId]]:
    """Return for each of `peers`, in their order, whom it should be connected to."""
    everybody = frozenset(peers)
    if len(everybody) <= FULL_MESH:
        return {peer: everybody - {peer} for peer in peers}
    beside: dict[PeerId, set[PeerId]] = {peer: set() for peer in peers}
    for ring in range(RINGS):
        circle = sorted(everybody, key=lambda peer: sha256(f"{ring} {peer}".encode()).digest())
        for peer, following in zip(circle, [*circle[1:], circle[0]], strict=True):
            beside[peer].add(following)
            beside[following].add(peer)
    return {peer: frozenset(others) for peer, others in beside.items()}
