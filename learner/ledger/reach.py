"""Keep how each peer says that others reach it and how it met others, and count both.

A pure core of the learner. Reports fill it from the ledger's rows, so that a number is the same everywhere. Each report
is a claim of its peer: it is shown and stored, and decides nothing here.

Invariants:

- Each peer has one verdict, and one way for each other peer that it met: the last that it reported.
- A peer can meet members only, so the number of members bounds what one peer can report.
- For two peers, one way counts, whichever of them reported it. The learners' own meetings are not counted among those
  of nodes.
- At most MOST_PEERS peers are remembered. The ledger has all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from learner.ledger.rows import MetRow, ReachRow
from protocol.core.ids import PeerId
from protocol.reach import Reach, ReachKind, Way

MOST_PEERS = 4096
"""Peers that a learner remembers, those heard last: about 30 MB if each has two dozen neighbours."""

VERDICTS = {
    ReachKind.DIRECTLY: "reachable",
    ReachKind.MAPPED: "mapped",
    ReachKind.BY_PUNCHING: "punchable",
    ReachKind.NOT: "outbound only",
    ReachKind.UNKNOWN: "not known",
    ReachKind.OTHER: "not known",
}
"""How a peer is reached: others dial it, or a port that its router maps to it; or both sides punch a hole; or it dials
others."""

WAYS = {
    Way.DIALLED: "dialled",
    Way.REVERSED: "dialled back",
    Way.PUNCHED: "punched",
    Way.RELAYED: "over a circuit",
    Way.OTHER: "otherwise",
}
"""How two peers connected."""

TELLING = (Way.PUNCHED, Way.REVERSED, Way.DIALLED, Way.WAS_DIALLED, Way.RELAYED, Way.OTHER)
"""Which report of two peers counts, the first in this order: the peer that accepted a connection often sees no more
than that."""

Two = tuple[PeerId, PeerId]
"""Two peers, by their ids."""


def two(one: PeerId, other: PeerId) -> Two:
    return (one, other) if one < other else (other, one)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """How two peers connected. `by` is the one that dialled, or dialled back; None if both punched or neither says.
    `since_ms` is when it was first reported."""

    one: PeerId
    other: PeerId
    way: Way
    by: PeerId | None
    since_ms: int


@dataclass(frozen=True, kw_only=True)
class ReachFigures:
    """Nodes by how they are reached, and pairs of nodes by how they met."""

    kinds: Mapping[ReachKind, int]
    ways: Mapping[Way, int]

    @property
    def text(self) -> str:
        """Return both in one line, "" if no peer reported anything."""
        if not self.kinds:
            return ""
        pairs = _listed(self.ways, WAYS) or "none has met"
        return f"how nodes are reached: {_listed(self.kinds, VERDICTS)}; how pairs met: {pairs}"


def _listed(numbers: Mapping[Any, int], words: Mapping[Any, str]) -> str:
    """Return how many of each there are, in the order of the words."""
    found = Counter[str]()
    for one, word in words.items():
        found[word] += numbers.get(one, 0)
    return ", ".join(f"{number:,} {word}" for word, number in found.items() if number)


@dataclass(kw_only=True)
class Reaches:
    """How all peers are reached and how they met. `learners` are peers that are not counted as nodes."""

    learners: Collection[PeerId] = ()
    _verdicts: dict[PeerId, ReachRow] = field(default_factory=dict)
    _met: dict[PeerId, dict[PeerId, MetRow]] = field(default_factory=dict)
    """The reports of each peer, by the peer that it met."""
    _pairs: dict[Two, Pair] = field(default_factory=dict)
    _ways: Counter[Way] = field(default_factory=Counter)
    _kinds: Counter[ReachKind] = field(default_factory=Counter)
    _unwritten: dict[PeerId, ReachRow] = field(default_factory=dict)
    _unwritten_met: dict[Two, MetRow] = field(default_factory=dict)
    """By (the peer that reports it, the peer that it met)."""

    def recall(
        self, learners: Collection[PeerId], verdicts: Iterable[ReachRow] = (), met: Iterable[MetRow] = ()
    ) -> None:
        """Load what the ledger has, before any peer is heard."""
        self.learners = learners
        for row in verdicts:
            self._judge(row)
        for meeting in met:
            self._meet(meeting)

    def hear(self, peer: PeerId, reach: Reach, members: Collection[PeerId], now_ms: int) -> None:
        """Record how a peer says that it is reached, and to which of `members` and of the learners it is connected."""
        row = self._verdicts.pop(peer, None)
        if row is not None:
            self._verdicts[peer] = row  # moves to the end: the peer heard last
        if row is None or (row.kind, row.why) != (reach.kind, reach.why):
            since_ms = row.since_ms if row is not None and row.kind is reach.kind else now_ms
            self._unwritten[peer] = ReachRow(peer=peer, kind=reach.kind, why=reach.why, since_ms=since_ms)
            self._judge(self._unwritten[peer])
        for meeting in reach.met:
            other = PeerId(meeting.peer)
            before = self._met.get(peer, {}).get(other)
            is_member = other != peer and (other in members or other in self.learners)
            if not is_member or (before is not None and before.way is meeting.way):
                continue
            self._unwritten_met[peer, other] = MetRow(peer=peer, other=other, way=meeting.way, since_ms=now_ms)
            self._meet(self._unwritten_met[peer, other])
        while len(self._verdicts) > MOST_PEERS:
            self._forget(next(iter(self._verdicts)))

    def unwritten(self) -> tuple[list[ReachRow], list[MetRow]]:
        """Return what the ledger does not have yet; it counts as written from now on."""
        rows, met = list(self._unwritten.values()), list(self._unwritten_met.values())
        self._unwritten, self._unwritten_met = {}, {}
        return rows, met

    def verdicts(self) -> list[ReachRow]:
        """Return how each peer is reached that ever said so."""
        return list(self._verdicts.values())

    def pairs(self) -> list[Pair]:
        """Return all pairs that have met, including those of learners."""
        return list(self._pairs.values())

    @property
    def figures(self) -> ReachFigures:
        """Return the counts over all nodes."""
        return ReachFigures(kinds=+self._kinds, ways=+self._ways)

    def _judge(self, row: ReachRow) -> None:
        before = self._verdicts.get(row.peer)
        self._verdicts[row.peer] = row
        if row.peer not in self.learners:
            self._kinds[row.kind] += 1
            if before is not None:
                self._kinds[before.kind] -= 1

    def _meet(self, row: MetRow) -> None:
        self._met.setdefault(row.peer, {})[row.other] = row
        self._recount(two(row.peer, row.other))

    def _forget(self, peer: PeerId) -> None:
        """Forget what the peer said, and what others said of it."""
        row = self._verdicts.pop(peer)
        if peer not in self.learners:
            self._kinds[row.kind] -= 1
        gone = [pair for pair in self._pairs if peer in pair]
        self._met.pop(peer, None)
        for pair in gone:
            other = next(one for one in pair if one != peer)
            self._met.get(other, {}).pop(peer, None)
            self._recount(pair)

    def _recount(self, key: Two) -> None:
        """Count a pair again, after one of the two said something new of the other."""
        before, now = self._pairs.pop(key, None), _pair_of(self._words(key))
        is_of_nodes = not any(peer in self.learners for peer in key)
        if now is not None:
            self._pairs[key] = now
            self._ways[now.way] += is_of_nodes
        if before is not None:
            self._ways[before.way] -= is_of_nodes

    def _words(self, key: Two) -> Iterator[MetRow]:
        """Yield what the two peers say of each other."""
        for peer, other in (key, key[::-1]):
            if (row := self._met.get(peer, {}).get(other)) is not None:
                yield row


def _pair_of(words: Iterable[MetRow]) -> Pair | None:
    """Return the pair that these reports of one or both peers describe."""
    told = sorted(words, key=lambda row: TELLING.index(row.way))
    if not told:
        return None
    best = told[0]
    one, other = two(best.peer, best.other)
    way = Way.DIALLED if best.way is Way.WAS_DIALLED else best.way
    by = best.other if best.way is Way.WAS_DIALLED else best.peer if way in {Way.DIALLED, Way.REVERSED} else None
    return Pair(one=one, other=other, way=way, by=by, since_ms=min(row.since_ms for row in told))
