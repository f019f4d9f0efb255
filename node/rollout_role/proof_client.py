"""Fetch and keep a node's statements: proofs which versions its records trained, credit notes, and its reputation.

Credit notes say how much the learner credits the node for relaying.

Invariants:

- Each statement is checked before it is kept: against the operator's key and, if this node holds the version, against
  its manifest. So `volery prove` works without the learner.
- Each request continues after the last proof that is on disk.
- A rank is no statement: it is told to the owner, and not kept.
- If the learner's proofs are wrong, the owner is told. The learner is asked again when it has news, and work goes on.

Loop: `run` waits for news (`look`), and asks until there is no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from node.runtime.events import EventLog
from node.state.receipt_rows import KeptProof, KeptReputation
from node.state.receipts import Receipts
from protocol.accounting.credit_note import open_credit_note
from protocol.accounting.rank import Rank, rank_from
from protocol.accounting.reputation_note import open_reputation_note
from protocol.accounting.tally import check_proof, open_tally, tally_of
from protocol.core.errors import Fault, PeerError
from protocol.core.genesis import Authority
from protocol.core.ids import PeerId, PolicyVersion, RecordId
from protocol.work import NumberedNote, ProofRequest, Proofs
from swarm.store import ChunkStore
from swarm.work.client import WorkClient


@dataclass(kw_only=True)
class ProofKeeper:
    """Asks the learner for statements about this node, checks and keeps them.

    Args:
        work_client: the connection to the learner.
        receipts: the database that keeps the statements.
        authority: the swarm and the operator's key, which must have certified each statement's signer.
        peer: this node.
        tally_held: the tally in the manifest of a version that this node holds, None if there is none.
    """

    work_client: WorkClient
    receipts: Receipts
    authority: Authority
    peer: PeerId
    tally_held: Callable[[PolicyVersion], bytes | None]
    events: EventLog
    _news: trio.Event = field(default_factory=trio.Event)
    _rank: Rank | None = None

    def look(self) -> None:
        """Ask soon: there may be new proofs, because a connection is up or a version was published."""
        self._news.set()

    async def run(self) -> None:
        """Ask and keep until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            try:
                await self._catch_up()
            except PeerError as error:
                self.events.trouble(
                    f"The learner's proofs that our records were trained on are wrong ({error}). They were not kept. "
                    "This node asks again when the learner publishes a version.",
                )

    async def _catch_up(self) -> None:
        """Ask until there is no more. Raises PeerError."""
        kept = noted = 0
        while True:
            request = await trio.to_thread.run_sync(self._request)
            answer = await self.work_client.request_proofs(request)
            self._tell_rank(answer)
            if answer.is_empty:
                break
            checked, notes, reputation = await trio.to_thread.run_sync(self._check, request, answer)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self.receipts.add_proofs, answer.tally, checked, notes, reputation)
            if reputation is not None:
                found = reputation.note.reputation
                self.events.emit("reputation_told", band=found.band.value, score=round(found.score, 3))
            kept += len(checked)
            noted += len(notes)
        if kept or noted:
            self.events.emit("proofs_kept", records=kept, credit_notes=noted)

    def _tell_rank(self, answer: Proofs) -> None:
        """Tell the owner the node's rank if it is another one; an operator need not show any."""
        if (rank := rank_from(answer.ext)) is None or rank == self._rank:
            return
        self._rank = rank
        self.events.emit(
            "rank_told",
            place=rank.place,
            peers=rank.peers,
            admitted=rank.admitted,
            admitted_by_all=rank.admitted_by_all,
        )

    def _request(self) -> ProofRequest:
        version, place = self.receipts.proven_upto()
        known = self.receipts.reputation()
        reputed = 0 if known is None else known.note.issued_ms
        return ProofRequest(version=version, place=place, notes=self.receipts.credited_upto(), reputed=reputed)

    def _check(
        self, request: ProofRequest, answer: Proofs
    ) -> tuple[list[KeptProof], list[NumberedNote], KeptReputation | None]:
        notes = check_notes(request, answer, self.authority, self.peer)
        reputation = check_reputation(request, answer, self.authority, self.peer)
        if not answer.proofs:
            return [], notes, reputation
        checked = check_proofs(request, answer, self.authority, self.peer)
        held = self.tally_held(checked[0].version)
        if held is not None and held != answer.tally:
            raise PeerError(
                Fault.EQUIVOCATION, f"version {checked[0].version} has another tally in its manifest than in its proofs"
            )
        return checked, notes, reputation


def check_reputation(
    request: ProofRequest, answer: Proofs, authority: Authority, peer: PeerId
) -> KeptReputation | None:
    """Check and return the reputation of `peer` in the answer to `request`; None if there is none. Raises PeerError."""
    if not answer.reputation:
        return None
    note = open_reputation_note(answer.reputation, authority)
    if note.peer != peer:
        raise PeerError(Fault.BROKEN_PROMISE, f"the reputation of {note.peer}")
    if request.reputed is None or note.issued_ms <= request.reputed:
        raise PeerError(Fault.BROKEN_PROMISE, "a reputation that we have already")
    return KeptReputation(note=note, raw=answer.reputation)


def check_notes(request: ProofRequest, answer: Proofs, authority: Authority, peer: PeerId) -> list[NumberedNote]:
    """Check and return the credit notes in the answer to `request`, which all name `peer`. Raises PeerError."""
    after = request.notes
    for one in answer.notes:
        note = open_credit_note(one.note, authority)
        if peer not in [share.peer for share in note.shares]:
            raise PeerError(Fault.BROKEN_PROMISE, "a credit note that credits only others")
        if one.number <= after:
            raise PeerError(Fault.BROKEN_PROMISE, "credit notes that we have already, or out of order")
        after = one.number
    return answer.notes


def check_proofs(request: ProofRequest, answer: Proofs, authority: Authority, peer: PeerId) -> list[KeptProof]:
    """Check and return the proofs in the answer to `request`, all of records of `peer`. Raises PeerError."""
    tally = open_tally(answer.tally, authority)
    after = (request.version, request.place - 1)
    checked = []
    for proof in answer.proofs:
        leaf = check_proof(proof, tally)
        if leaf.peer != peer:
            raise PeerError(Fault.BROKEN_PROMISE, f"record {leaf.record.hex()[:8]} is {leaf.peer}'s")
        if (tally.version, proof.place) <= after:
            raise PeerError(Fault.BROKEN_PROMISE, "proofs that we have already, or out of order")
        after = (tally.version, proof.place)
        checked.append(KeptProof(record=RecordId(leaf.record), version=tally.version, proof=proof))
    return checked


def tally_in(store: ChunkStore, version: PolicyVersion) -> bytes | None:
    """Return the tally in the manifest of `version`; None if the store does not hold the version, or it has none."""
    held = next((held.hash for held in store.versions() if held.version == version), None)
    signed = None if held is None else store.manifest(held)
    return None if signed is None else tally_of(signed.manifest)
