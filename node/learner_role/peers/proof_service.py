"""Answer peers that ask which of their records trained a version, for relay credits, and for their reputation.

Proofs and credit notes come from the ledger, reputations and ranks from `ReputationService`.

Invariants:

- A peer gets only its own records, credit, reputation and rank.
- Each peer has at most one open request, its latest. In the long run it is answered every PAUSE_S, and up to
  ANSWERS_SAVED times at once.
- One answer is computed at a time, on a worker thread, so neither training nor intake waits for this service.
- A proof is sent only if it agrees with the ledger's tally.

Loop: `run` consumes requests, and wakes when the turn of one has come.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import trio

from learner.ledger.rows import TallyRow
from learner.ledger.sqlite.column_values import signed_in
from node.learner_role.shared.context import Service
from node.learner_role.trust.reputation_service import ReputationService
from protocol.accounting.merkle import MerkleTree
from protocol.accounting.rank import RANK
from protocol.accounting.tally import in_order, open_tally, proofs_for, tree_of
from protocol.core.codec import encode
from protocol.core.ids import PeerId, PolicyVersion
from protocol.work import MAX_NOTES, MAX_PROOFS, NumberedNote, ProofRequest, Proofs

PAUSE_S = 0.2
"""Seconds between two answers to one peer in the long run. An answer is about one version, and versions are rarer."""

ANSWERS_SAVED = 256
"""Most answers without a pause, for a peer that has asked for few before. So a peer that returns catches up, and nobody
waits at the end of a run. A worker thread computes them in less than a second."""

MAX_LEAVES_KEPT = 1 << 18
"""Most leaves of the trees that are kept in memory, because all peers ask about a new version at once. They take 60 MB
at most, unless one version has more."""


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """The records that trained a version, in their order, and the places of each peer's."""

    leaves: Sequence[bytes]
    tree: MerkleTree
    places: Mapping[PeerId, Sequence[int]]


@dataclass(kw_only=True, eq=False)
class ProofService(Service):
    """Answers the requests of peers, one at a time."""

    reputations: ReputationService
    _asked: dict[PeerId, ProofRequest] = field(default_factory=dict)
    _paid: dict[PeerId, float] = field(default_factory=dict)
    _behind: set[PeerId] = field(default_factory=set)
    _versions: int = 0
    _news: trio.Event = field(default_factory=trio.Event)
    _settled: trio.Event = field(default_factory=trio.Event)
    _known: dict[PolicyVersion, _Counted] = field(default_factory=dict)

    def ask(self, peer: PeerId, request: ProofRequest) -> None:
        """Note a peer's request, which replaces the one before."""
        self._asked[peer] = request
        self._news.set()

    def forget(self, peer: PeerId) -> None:
        """Forget a peer whose connection ended, since nobody waits for the answer."""
        self._asked.pop(peer, None)
        self._note_caught_up(peer)

    def announce(self, tally: bytes, peers: Sequence[PeerId]) -> None:
        """Tell `peers`, which support proofs, that a version was published, so that they ask for theirs."""
        self._versions += 1
        self._behind.update(peers)
        for peer in peers:
            self.signals.tell(peer, Proofs(tally=tally))

    async def wait_settled(self) -> None:
        """Wait until all peers that were told of a version have all their proofs, or have left."""
        while self._behind:
            await self._settled.wait()

    async def run(self) -> None:
        """Answer until cancelled."""
        while True:
            self._news = trio.Event()
            now = trio.current_time()
            self._paid = {peer: paid for peer, paid in self._paid.items() if paid > now}
            if (peer := next((peer for peer in self._asked if self._due(peer) <= now), None)) is not None:
                self._paid[peer] = self._paid.get(peer, now) + PAUSE_S
                before = self._versions
                answer = await trio.to_thread.run_sync(self._answer, peer, self._asked.pop(peer))
                # If a version was published meanwhile, the answer may lack it, and the peer asks once more.
                if answer.is_empty and before == self._versions:
                    self._note_caught_up(peer)
                self.signals.tell(peer, answer)
                continue
            with trio.move_on_at(min(map(self._due, self._asked), default=math.inf)):
                await self._news.wait()

    def _due(self, peer: PeerId) -> float:
        """Return when `peer` may be answered next. An answer costs PAUSE_S, and ANSWERS_SAVED may come in advance."""
        return self._paid.get(peer, -math.inf) - (ANSWERS_SAVED - 1) * PAUSE_S

    def _note_caught_up(self, peer: PeerId) -> None:
        """Note that a peer has everything: it asked beyond its last answer, which it has kept, and there is no more."""
        self._behind.discard(peer)
        self._settled.set()
        self._settled = trio.Event()

    # On a worker thread, one call at a time.

    def _answer(self, peer: PeerId, request: ProofRequest) -> Proofs:
        found = self.ledger.evidence.notes_for(peer, request.notes, MAX_NOTES)
        proofs = self._proofs(peer, request)
        note = None if request.reputed is None else self.reputations.note(peer, request.reputed)
        notes = [NumberedNote(number, raw) for number, raw in found]
        rank = self.reputations.rank(peer)
        told = {} if rank is None else {RANK: encode(rank)}
        return msgspec.structs.replace(proofs, notes=notes, reputation=note or b"", ext=told)

    def _proofs(self, peer: PeerId, request: ProofRequest) -> Proofs:
        version, place = request.version, request.place
        while (row := self.ledger.evidence.tally_for(peer, version)) is not None:
            counted = self._count(row)
            mine = () if counted is None else counted.places.get(peer, ())
            first = bisect_left(mine, place if row.version == version else 0)
            if counted is not None and (places := mine[first : first + MAX_PROOFS]):
                return Proofs(tally=row.envelope, proofs=proofs_for(counted.leaves, counted.tree, places))
            version, place = PolicyVersion(row.version.incarnation, row.version.version + 1), 0
        return Proofs()

    def _count(self, row: TallyRow) -> _Counted | None:
        """Return the records that a tally counts; None if a restart has freed them since the tally was read."""
        if (known := self._known.get(row.version)) is not None:
            return known
        trained = self.ledger.evidence.trained(row.after, row.version.version)
        leaves, tree = tree_of(trained)
        tally = signed_in("tallies.envelope", row.envelope, lambda raw: open_tally(raw, self.identity.authority))
        if (tally.records, tally.root) != (tree.size, tree.root):
            return None
        places: dict[PeerId, list[int]] = {}
        for place, one in enumerate(in_order(trained)):
            places.setdefault(PeerId(one.peer), []).append(place)
        if sum(len(one.leaves) for one in self._known.values()) + len(leaves) > MAX_LEAVES_KEPT:
            self._known.clear()
        self._known[row.version] = _Counted(leaves=leaves, tree=tree, places=places)
        return self._known[row.version]
