"""Proofs that come home: a node asks which versions its records trained, and keeps what the learner can prove; and the
learner's notes on what it is credited with for relaying, and on how it stands.

What always holds: what is kept was checked first, against the operator's key and, where this node holds the version,
against its manifest, so that `volery prove` needs nobody any more; a question goes on from the last proof that is on
disk, whatever was lost in between; a learner that answers wrongly is told of and asked again when it has news, and work
goes on meanwhile.

Loop: `work` consumes what it is told (`news`), and asks until there is no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from node.runtime.events import EventLog
from node.state.receipt_rows import KeptProof, KeptReputation
from node.state.receipts import Receipts
from protocol.accounting.credit_note import open_credit_note
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
    """See the module's paragraph.

    Args:
        tally_held: the tally in the manifest of a version that this node holds, None if there is none.
    """

    line: WorkClient
    receipts: Receipts
    authority: Authority
    peer: PeerId
    tally_held: Callable[[PolicyVersion], bytes | None]
    events: EventLog
    _news: trio.Event = field(default_factory=trio.Event)

    def look(self) -> None:
        """There may be proofs that we do not have: a new line is up, or a version was published."""
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
                    f"The learner's proofs of what our records trained do not hold ({error}). They were not kept; "
                    "it is asked again when it publishes a version.",
                )

    async def _catch_up(self) -> None:
        """Ask until there is no more. Raises PeerError."""
        kept = noted = 0
        while True:
            request = await trio.to_thread.run_sync(self._request)
            answer = await self.line.request_proofs(request)
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
    """The reputation note in the answer to `request`, checked, on `peer`; None if there is none. Raises PeerError."""
    if not answer.reputation:
        return None
    note = open_reputation_note(answer.reputation, authority)
    if note.peer != peer:
        raise PeerError(Fault.BROKEN_PROMISE, f"the reputation of {note.peer}")
    if request.reputed is None or note.issued_ms <= request.reputed:
        raise PeerError(Fault.BROKEN_PROMISE, "a reputation that we have already")
    return KeptReputation(note=note, raw=answer.reputation)


def check_notes(request: ProofRequest, answer: Proofs, authority: Authority, peer: PeerId) -> list[NumberedNote]:
    """The credit notes in the answer to `request`, each checked, all naming `peer` as a relay. Raises PeerError."""
    after = request.notes
    for one in answer.notes:
        note = open_credit_note(one.note, authority)
        if peer not in [share.peer for share in note.shares]:
            raise PeerError(Fault.BROKEN_PROMISE, "a credit note that credits others alone")
        if one.number <= after:
            raise PeerError(Fault.BROKEN_PROMISE, "credit notes that we have already, or out of order")
        after = one.number
    return answer.notes


def check_proofs(request: ProofRequest, answer: Proofs, authority: Authority, peer: PeerId) -> list[KeptProof]:
    """The proofs in the answer to `request`, each checked, all of records of `peer`. Raises PeerError."""
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
    """The tally in the manifest of `version`, None if the store does not hold that, or it has none."""
    held = next((held.hash for held in store.versions() if held.version == version), None)
    signed = None if held is None else store.manifest(held)
    return None if signed is None else tally_of(signed.manifest)
