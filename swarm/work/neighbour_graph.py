"""Decide which peers become neighbours: all that can connect, up to `FULL_MESH` peers, and about `NEIGHBOURS` above.

Above the mesh, peers have places in `RINGS` rings, each in an order of its own that a hash gives. A peer's neighbours
are those next to it in every ring. A union of random rings spreads news in about log N steps, as does a random regular
graph, which Uber's Kraken builds for the same reason.

Some peers cannot connect to each other. A hard peer (`Meets.OPEN_ONES`) can only dial, so it can connect only to open
peers (`Meets.ALL`), which all peers can dial. Hard peers have no place in the rings. Each gets the `RINGS` open peers
that follow its place as neighbours. Open peers leave rings to make room for hard peers, down to `OPEN_RINGS`: no other
peer can send to hard peers, while the peers in the rings have other neighbours.

Invariants:

- Being neighbours is mutual, and only peers that can connect to each other are neighbours.
- No peer that can connect to another is cut off: each ring connects all peers in it.
- A peer that comes or goes changes only the neighbours next to it, unless open peers leave or enter a ring because of
  it.
- The same peers always give the same result.
"""

from __future__ import annotations

from bisect import bisect, bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from hashlib import sha256

from protocol.core.ids import PeerId

FULL_MESH = 24
"""Up to this number of peers, all are neighbours. In the simulation, a mesh of 32 peers was no faster than rings and
took twice the messages."""

RINGS = 10
"""Number of rings. A peer has two neighbours in each, 20 in total, and a thousand peers are three or four steps apart.
Uplinks are unequal: with five rings, some peers had only slow neighbours, and a hundred peers on mixed home links
finished a sixth later (one seed). Between eight and sixteen rings, the differences were smaller than between two
seeds."""

NEIGHBOURS = 2 * RINGS

OPEN_RINGS = 2
"""Smallest number of rings with open peers, no matter how many hard peers need them: enough to get everything and to
relay it. In the simulation, thirty of a hundred homes could connect only to the twenty open ones. With these in two
rings, all finished at 1.16 of the bound; with these in all rings, at 1.25 (256 MiB, two seeds each)."""


class Meets(Enum):
    """The peers to which a peer can connect."""

    ALL = "all"
    """An open peer: all peers can dial it."""
    MOST = "most"
    """It can connect to open peers, and by hole punching to others of its kind."""
    OPEN_ONES = "open_ones"
    """A hard peer: it can connect only to open peers."""


def can_meet(one: Meets, other: Meets) -> bool:
    """Return whether two such peers can connect to each other."""
    return Meets.ALL in (one, other) or Meets.OPEN_ONES not in (one, other)


def neighbourhoods(peers: Mapping[PeerId, Meets]) -> dict[PeerId, frozenset[PeerId]]:
    """Return the neighbours of each of `peers`, in their order."""
    graph = NeighbourGraph()
    for peer, meets in peers.items():
        graph.put(peer, meets)
    return {peer: graph.beside(peer) for peer in peers}


def open_neighbourhoods(peers: Iterable[PeerId]) -> dict[PeerId, frozenset[PeerId]]:
    """Return the neighbours of each of `peers`, if all of them are open."""
    return neighbourhoods(dict.fromkeys(peers, Meets.ALL))


class NeighbourGraph:
    """The neighbours of all present peers, updated while peers come and go.

    A change costs only the work for the neighbours that it concerns: with N peers, 2 * RINGS searches among N. It needs
    no pass over all peers, unless open peers leave or enter rings because of it.
    """

    def __init__(self) -> None:
        self._meets: dict[PeerId, Meets] = {}
        self._circles = [_Circle() for _ in range(RINGS)]
        """Rings of all peers except hard ones."""
        self._inner = [_Circle() for _ in range(RINGS)]
        """The same rings without open peers, used where these have left the ring."""
        self._open = _Circle()
        self._hard = _Circle()

    def put(self, peer: PeerId, meets: Meets) -> set[PeerId]:
        """Add or update a peer. Return the peers, itself included, whose neighbours may have changed."""
        if self._meets.get(peer) is meets:
            return set()
        changed = self.remove(peer)
        before = self._shape
        self._meets[peer] = meets
        for ring, circles in self._places_of(meets):
            circles.add((_place(ring, peer), peer))
        if self._shape != before or self._is_mesh:
            return {*self._meets, *changed}
        return {peer, *changed, *self._around(peer)}

    def remove(self, peer: PeerId) -> set[PeerId]:
        """Remove a peer. Return the peers whose neighbours may have changed."""
        if (meets := self._meets.get(peer)) is None:
            return set()
        changed, before = self._around(peer), self._shape
        del self._meets[peer]
        for ring, circles in self._places_of(meets):
            circles.remove((_place(ring, peer), peer))
        changed = {*self._meets} if self._shape != before or self._is_mesh else changed
        return changed - {peer}

    def beside(self, peer: PeerId) -> frozenset[PeerId]:
        """Return the neighbours of a peer."""
        meets = self._meets[peer]
        if self._is_mesh:
            return frozenset(other for other, its in self._meets.items() if other != peer and can_meet(meets, its))
        if meets is Meets.OPEN_ONES:
            return frozenset(self._open.after((_place(0, peer), peer), self._num_given))
        found = set[PeerId]()
        for ring in range(RINGS):
            circles = self._circles if ring < self._num_circles else self._inner
            if circles is self._circles or meets is Meets.MOST:
                found.update(circles[ring].beside((_place(ring, peer), peer)))
        if meets is Meets.ALL:
            found.update(self._given_to(peer))
        return frozenset(found - {peer})

    @property
    def _is_mesh(self) -> bool:
        return len(self._meets) <= FULL_MESH

    @property
    def _num_given(self) -> int:
        """Number of open peers that each hard peer gets as neighbours."""
        return min(RINGS, len(self._open))

    @property
    def _num_circles(self) -> int:
        """Number of rings in which open peers have a place."""
        if not len(self._open):
            return RINGS
        return max(OPEN_RINGS, RINGS - self._num_given * len(self._hard) // len(self._open) // 2)

    @property
    def _shape(self) -> tuple[bool, int, int]:
        """The values on which the neighbours of all peers depend."""
        return self._is_mesh, self._num_given, self._num_circles

    def _places_of(self, meets: Meets) -> Iterator[tuple[int, _Circle]]:
        """Yield the circles in which such a peer has a place, each with the number of its ring."""
        if meets is Meets.OPEN_ONES:
            yield 0, self._hard
            return
        yield from enumerate(self._circles)
        if meets is Meets.MOST:
            yield from enumerate(self._inner)
        else:
            yield 0, self._open

    def _given_to(self, peer: PeerId) -> list[PeerId]:
        """Return the hard peers that an open peer gets as neighbours."""
        if self._num_given == len(self._open):
            return self._hard.peers()
        item = (_place(0, peer), peer)
        return self._hard.between(self._open.before(item, self._num_given), item)

    def _around(self, peer: PeerId) -> set[PeerId]:
        """Return the peer's neighbours, and the peers that hard neighbours get instead of it when it comes or goes."""
        beside = self.beside(peer)
        found = {*beside}
        if self._meets[peer] is Meets.ALL:
            for other in beside:
                if self._meets[other] is Meets.OPEN_ONES:
                    found.update(self._open.after((_place(0, other), other), self._num_given + 1))
        return found


_Item = tuple[bytes, PeerId]
"""A place and its peer."""


class _Circle:
    """Peers in the order of their places; the first follows the last."""

    def __init__(self) -> None:
        self._items: list[_Item] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: _Item) -> None:
        insort(self._items, item)

    def remove(self, item: _Item) -> None:
        del self._items[bisect_left(self._items, item)]

    def peers(self) -> list[PeerId]:
        return [peer for _, peer in self._items]

    def beside(self, item: _Item) -> Iterator[PeerId]:
        """Yield the peers before and after a peer of this circle; the peer itself if it is alone."""
        at = bisect_left(self._items, item)
        for place in (at - 1, at + 1):
            yield self._items[place % len(self._items)][1]

    def after(self, item: _Item, number: int) -> list[PeerId]:
        """Return the next `number` peers after a place, or all if there are fewer."""
        at = bisect(self._items, item)
        return [self._items[(at + step) % len(self._items)][1] for step in range(min(number, len(self._items)))]

    def before(self, item: _Item, number: int) -> _Item:
        """Return the item `number` places before."""
        return self._items[(bisect_left(self._items, item) - number) % len(self._items)]

    def between(self, first: _Item, last: _Item) -> list[PeerId]:
        """Return the peers from one place to another, around the circle."""
        begin, end = bisect_left(self._items, first), bisect_left(self._items, last)
        items = self._items[begin:end] if first < last else [*self._items[begin:], *self._items[:end]]
        return [peer for _, peer in items]


def _place(ring: int, peer: PeerId) -> bytes:
    """Return the place of a peer in a ring."""
    return sha256(f"{ring} {peer}".encode()).digest()
