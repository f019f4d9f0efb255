"""Who is whose neighbour, of those that can meet: everybody up to `FULL_MESH` peers, about `NEIGHBOURS` above.

A plain function. Above the mesh, peers stand in `RINGS` circles, each in an order of its own that a hash gives, and a
peer's neighbours are those beside it in every circle. A union of random circles spreads news in about log N steps, as a
random regular graph does, which Uber's Kraken builds for the same reason.

Some peers cannot meet: who only reaches others (`Meets.OPEN_ONES`) meets those that anybody can dial, and nobody else.
Such peers stand in no circle. Each is given to the `RINGS` open peers that follow it in one. These leave circles for
it, down to `OPEN_RINGS`: nobody else sends to it, and whoever stands in circles has others to ask.

Invariants:
- Being neighbours is mutual, and only those are neighbours who can meet.
- Nobody is cut off who can meet anybody: each circle connects all who are in it.
- A peer that comes or goes changes only the neighbours beside it, unless open peers leave a circle for it.
- Everybody who knows the same computes the same.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping
from enum import Enum
from hashlib import sha256
from itertools import cycle, islice, pairwise

from protocol.core.ids import PeerId

FULL_MESH = 24
"""Up to so many peers everybody knows everybody. With 32 the mesh was no quicker in the simulation than rings, and took
twice the messages."""

RINGS = 10
"""Two neighbours in each: 20 in all, with whom a thousand peers are three or four steps apart. Uplinks are unequal, and
of five rings some peers had only slow neighbours: a hundred peers on mixed home lines were done a sixth later (one
seed). Eight to sixteen rings differed by less than two seeds do."""

NEIGHBOURS = 2 * RINGS

OPEN_RINGS = 2
"""Circles in which open peers stand however many need them: enough to get everything, and to pass it on. A hundred
homes, of which thirty meet only the twenty that are open, were done at 1.16 of the bound in the simulation where these
stood in two circles, and at 1.25 where they stood in all (256 MiB, two seeds each)."""


class Meets(Enum):
    """Whom a peer can meet."""

    ALL = "all"
    """Anybody can dial it."""
    MOST = "most"
    """Whoever can be dialled, and whoever knocks at the same time."""
    OPEN_ONES = "open_ones"
    """Whoever can be dialled."""


def can_meet(one: Meets, other: Meets) -> bool:
    """Whether two such peers can be connected."""
    return Meets.ALL in (one, other) or Meets.OPEN_ONES not in (one, other)


def neighbourhoods(peers: Mapping[PeerId, Meets]) -> dict[PeerId, frozenset[PeerId]]:
    """Return for each of `peers`, in their order, whom it should be connected to."""
    if len(peers) <= FULL_MESH:
        return {
            peer: frozenset(other for other in peers if other != peer and can_meet(peers[other], meets))
            for peer, meets in peers.items()
        }
    beside: dict[PeerId, set[PeerId]] = {peer: set() for peer in peers}
    open_ones = sorted((_place(0, peer), peer) for peer, meets in peers.items() if meets is Meets.ALL)
    hard = [peer for peer, meets in peers.items() if meets is Meets.OPEN_ONES]
    num_given = min(RINGS, len(open_ones))
    num_circles = RINGS if not open_ones else max(OPEN_RINGS, RINGS - num_given * len(hard) // len(open_ones) // 2)
    for ring in range(RINGS):
        stand = {Meets.ALL, Meets.MOST} if ring < num_circles else {Meets.MOST}
        circle = sorted((peer for peer, meets in peers.items() if meets in stand), key=lambda peer: _place(ring, peer))
        for peer, following in pairwise([*circle, *circle[:1]]):
            _join(beside, peer, following)
    for peer in hard:
        at = bisect(open_ones, (_place(0, peer), peer))
        for _, following in islice(cycle([*open_ones[at:], *open_ones[:at]]), num_given):
            _join(beside, peer, following)
    return {peer: frozenset(others) for peer, others in beside.items()}


def open_neighbourhoods(peers: Iterable[PeerId]) -> dict[PeerId, frozenset[PeerId]]:
    """The same where anybody can dial everybody."""
    return neighbourhoods(dict.fromkeys(peers, Meets.ALL))


def _join(beside: dict[PeerId, set[PeerId]], one: PeerId, other: PeerId) -> None:
    if one != other:
        beside[one].add(other)
        beside[other].add(one)


def _place(ring: int, peer: PeerId) -> bytes:
    """Where a peer stands in a circle."""
    return sha256(f"{ring} {peer}".encode()).digest()
