"""Who is whose neighbour, of those that can meet: everybody up to `FULL_MESH` peers, about `NEIGHBOURS` above.

A pure core. Above the mesh, peers stand in `RINGS` circles, each in an order of its own that a hash gives, and a
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

from bisect import bisect, bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
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
    graph = NeighbourGraph()
    for peer, meets in peers.items():
        graph.put(peer, meets)
    return {peer: graph.beside(peer) for peer in peers}


def open_neighbourhoods(peers: Iterable[PeerId]) -> dict[PeerId, frozenset[PeerId]]:
    """The same where anybody can dial everybody."""
    return neighbourhoods(dict.fromkeys(peers, Meets.ALL))


class NeighbourGraph:
    """The neighbours of those that are here, kept while peers come and go.

    A change costs what the neighbours that it concerns cost: with N peers 2 * RINGS searches among N, and no pass over
    all of them, unless circles are to be left or entered because of it.
    """

    def __init__(self) -> None:
        self._meets: dict[PeerId, Meets] = {}
        self._circles = [_Circle() for _ in range(RINGS)]
        """Of everybody but the hard to meet."""
        self._inner = [_Circle() for _ in range(RINGS)]
        """Of those of them that are not open, where the open ones have left the circle."""
        self._open = _Circle()
        self._hard = _Circle()

    def put(self, peer: PeerId, meets: Meets) -> set[PeerId]:
        """It is here, and meets these; return whose neighbours may be others now, itself among them."""
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
        """It is here no more; return whose neighbours may be others now."""
        if (meets := self._meets.get(peer)) is None:
            return set()
        changed, before = self._around(peer), self._shape
        del self._meets[peer]
        for ring, circles in self._places_of(meets):
            circles.remove((_place(ring, peer), peer))
        changed = {*self._meets} if self._shape != before or self._is_mesh else changed
        return changed - {peer}

    def beside(self, peer: PeerId) -> frozenset[PeerId]:
        """Whom it should be connected to."""
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
        """To how many open peers each of those is given that meet nobody else."""
        return min(RINGS, len(self._open))

    @property
    def _num_circles(self) -> int:
        """In how many circles open peers stand."""
        if not len(self._open):
            return RINGS
        return max(OPEN_RINGS, RINGS - self._num_given * len(self._hard) // len(self._open) // 2)

    @property
    def _shape(self) -> tuple[bool, int, int]:
        """What the neighbours of all depend on."""
        return self._is_mesh, self._num_given, self._num_circles

    def _places_of(self, meets: Meets) -> Iterator[tuple[int, _Circle]]:
        """The circles in which such a peer has a place, each with its ring."""
        if meets is Meets.OPEN_ONES:
            yield 0, self._hard
            return
        yield from enumerate(self._circles)
        if meets is Meets.MOST:
            yield from enumerate(self._inner)
        else:
            yield 0, self._open

    def _given_to(self, peer: PeerId) -> list[PeerId]:
        """Those that an open peer is given."""
        if self._num_given == len(self._open):
            return self._hard.peers()
        item = (_place(0, peer), peer)
        return self._hard.between(self._open.before(item, self._num_given), item)

    def _around(self, peer: PeerId) -> set[PeerId]:
        """Its neighbours, and those who are theirs instead when it comes or goes."""
        beside = self.beside(peer)
        found = {*beside}
        if self._meets[peer] is Meets.ALL:
            for other in beside:
                if self._meets[other] is Meets.OPEN_ONES:
                    found.update(self._open.after((_place(0, other), other), self._num_given + 1))
        return found


_Item = tuple[bytes, PeerId]
"""A peer behind its place."""


class _Circle:
    """Peers in the order of their places; behind the last comes the first."""

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
        """Those before and behind one that stands here; itself where it is alone."""
        at = bisect_left(self._items, item)
        for place in (at - 1, at + 1):
            yield self._items[place % len(self._items)][1]

    def after(self, item: _Item, number: int) -> list[PeerId]:
        """The next `number` behind a place, or all."""
        at = bisect(self._items, item)
        return [self._items[(at + step) % len(self._items)][1] for step in range(min(number, len(self._items)))]

    def before(self, item: _Item, number: int) -> _Item:
        """The one that stands so many places before."""
        return self._items[(bisect_left(self._items, item) - number) % len(self._items)]

    def between(self, first: _Item, last: _Item) -> list[PeerId]:
        """Those from one place to another, round the circle."""
        begin, end = bisect_left(self._items, first), bisect_left(self._items, last)
        items = self._items[begin:end] if first < last else [*self._items[begin:], *self._items[:end]]
        return [peer for _, peer in items]


def _place(ring: int, peer: PeerId) -> bytes:
    """Where a peer stands in a circle."""
    return sha256(f"{ring} {peer}".encode()).digest()
