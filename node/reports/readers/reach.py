"""Read how peers are reached, and how they connected, from the learner's ledger."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from learner.ledger.queries.reader import LedgerReader
from learner.ledger.reach import Pair, Reaches, two
from node.reports.model.reach import PairReport, PeerReach, came_together
from protocol.core.ids import PeerId
from protocol.reach import Way


def read_reach(ledger: LedgerReader) -> Reaches:
    """Return everything that peers reported of it."""
    reaches = Reaches()
    reaches.recall({one.peer for one in ledger.peers.all("learner")}, ledger.peers.reach(), ledger.peers.met())
    return reaches


def pairs_of(reaches: Reaches, ledger: LedgerReader) -> tuple[PairReport, ...]:
    """Return pairs of nodes, in the order in which they connected."""
    carried = {two(row.one, row.other): row.num_bytes for row in ledger.peers.carried()}
    found = [pair for pair in reaches.pairs() if not {pair.one, pair.other} & set(reaches.learners)]
    return tuple(
        PairReport(
            one=pair.one, other=pair.other, way=pair.way, by=pair.by, since_ms=pair.since_ms,
            bytes_carried=carried.get((pair.one, pair.other), 0),
        )
        for pair in sorted(found, key=lambda pair: (pair.since_ms, pair.one, pair.other))
    )  # fmt: skip


def reach_by_peer(reaches: Reaches, ledger: LedgerReader, started_ms: int) -> Mapping[PeerId, PeerReach]:
    """Return the reach of each peer that ever reported it."""
    learners = set(reaches.learners)
    carried = Counter[PeerId]()
    for pair in ledger.peers.carried():
        carried.update({pair.one: pair.num_bytes, pair.other: pair.num_bytes})
    neighbours, to_learner = _by_peer(reaches.pairs(), learners)
    found = {}
    for row in reaches.verdicts():
        found[row.peer] = PeerReach(
            kind=row.kind,
            why=row.why,
            since_s=(row.since_ms - started_ms) / 1000,
            learner=to_learner.get(row.peer, ""),
            neighbours=neighbours[row.peer],
            bytes_carried=carried[row.peer],
        )
    return found


def _by_peer(
    pairs: Collection[Pair], learners: Collection[PeerId]
) -> tuple[defaultdict[PeerId, Counter[Way]], dict[PeerId, str]]:
    """Return how many nodes each node connected to in each way, and how it and the learner connected."""
    neighbours, to_learner = defaultdict[PeerId, Counter[Way]](Counter), dict[PeerId, str]()
    for pair in pairs:
        for peer, other in ((pair.one, pair.other), (pair.other, pair.one)):
            if other in learners:
                to_learner[peer] = came_together(peer, pair)
            elif peer not in learners:
                neighbours[peer][pair.way] += 1
    return neighbours, to_learner
