"""Read from a state directory what it can state: a volunteer's receipts and proofs, or all of a learner's ledger.

Invariants:

- Signed bytes are written as they were stored, in a fixed order, so that one state directory makes one file.
- Nothing is judged here. Only reputations are signed here, because they change every day.
- The databases are opened only for reading, so a node or a learner may be running.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Protocol

from learner.artifacts.regular_file import read_file
from learner.ledger.evidence import Evidence
from learner.ledger.queries.reader import read_ledger
from learner.ledger.sqlite.database import LedgerError
from node.commands.statements.format import CreditLine, Head, Line, ProofLine, ReceiptLine, RelayLine, ReputationLine
from node.reports.model.verdict_meanings import JUDGING
from node.runtime.errors import RunError, UsageError, as_run_error
from node.state.keys import load_key
from node.state.locate import StateLocation
from node.state.receipt_queries import ReceiptQueries, ReceiptsError
from protocol.accounting.reputation import DAY_MS
from protocol.accounting.reputation_note import open_reputation_note, reputation_note
from protocol.accounting.tally import in_order, proofs_for, tree_of
from protocol.core.codec import decode, encode
from protocol.core.envelope import Kind, read_envelope, sign
from protocol.core.errors import PeerError
from protocol.core.genesis import Authority, open_certificate, read_genesis
from protocol.core.ids import LeaseId, PeerId, PolicyVersion, RecordId, short
from protocol.work import MAX_RECEIPT_BYTES, Receipt, Rule

LONGER = "Give more digits; `volery receipts list --records` shows whole ids."


class NotProven(RunError):
    """Why a database proves nothing about a record. The caller adds its name, since another file may be damaged."""


class ReceiptSource(Protocol):
    """The queries that both kinds of databases answer."""

    def newest(self, limit: int, peer: PeerId | None) -> Sequence[bytes]:
        """Return the latest receipts, newest first."""

    def trained_of(self, receipt: Receipt) -> Mapping[RecordId, PolicyVersion]:
        """Return the versions that its records trained, as far as that is known here."""

    def lines(self, peer: PeerId | None, *, proofs: bool) -> Iterator[Line]:
        """Yield everything that is signed, or all that concerns one peer."""

    def proof_of(self, prefix: str) -> Sequence[Line]:
        """Return the receipt and the proofs of the record whose id begins with `prefix`.

        Raises UsageError, or NotProven with the reason if there are none.
        """


@dataclass(frozen=True, kw_only=True)
class NodeReceipts:
    """A volunteer's database, which is about one peer."""

    receipts: ReceiptQueries

    def newest(self, limit: int, peer: PeerId | None) -> Sequence[bytes]:
        return self.receipts.newest(limit)

    def trained_of(self, receipt: Receipt) -> Mapping[RecordId, PolicyVersion]:
        return self.receipts.trained_of([RecordId(verdict.record) for verdict in receipt.verdicts])

    def lines(self, peer: PeerId | None, *, proofs: bool) -> Iterator[Line]:
        for stored in self.receipts.stored():
            yield ReceiptLine(envelope=stored.raw)
        for raw in self.receipts.relay_receipts():
            yield RelayLine(envelope=raw)
        for raw in self.receipts.credit_notes():
            yield CreditLine(note=raw)
        if (known := self.receipts.reputation()) is not None:
            yield ReputationLine(note=known.raw)
        for proof in self.receipts.proofs() if proofs else ():
            yield ProofLine(tally=proof.tally, proof=proof.proof)

    def proof_of(self, prefix: str) -> Sequence[Line]:
        found = self.receipts.find(prefix, 2)
        _require_one(prefix, [one.record for one in found])
        known = found[0]
        proofs = [ProofLine(tally=one.tally, proof=one.proof) for one in self.receipts.proofs(known.record)]
        if not proofs:
            _require_admitted(known.record, known.rule, known.detail)
            raise NotProven(
                f"Record {known.record.hex()} was admitted, but there is no proof here that it trained a version. It "
                "may wait, be stale, belong to a group that teaches nothing, or the learner may be older than proofs "
                "are. A node asks for its proofs whenever a version is published: run `volery join` again."
            )
        receipt = self.receipts.receipt_for(known.lease)
        return [*([ReceiptLine(envelope=receipt)] if receipt else []), *proofs]


@dataclass(frozen=True, kw_only=True)
class LedgerReceipts:
    """A learner's ledger."""

    evidence: Evidence

    def newest(self, limit: int, peer: PeerId | None) -> Sequence[bytes]:
        return self.evidence.newest_receipts(limit, peer)

    def trained_of(self, receipt: Receipt) -> Mapping[RecordId, PolicyVersion]:
        return self.evidence.trained_of(LeaseId(receipt.lease))

    def lines(self, peer: PeerId | None, *, proofs: bool) -> Iterator[Line]:
        for given in self.evidence.receipts(peer):
            yield ReceiptLine(envelope=given.receipt)
        for relay in self.evidence.relays(peer):
            yield RelayLine(envelope=relay.receipt, note=relay.note or b"")
        for row in self.evidence.tallies() if proofs else ():
            trained = self.evidence.trained(row.after, row.version.version)
            leaves, tree = tree_of(trained)
            mine = [place for place, one in enumerate(in_order(trained)) if peer is None or one.peer == peer]
            for proof in proofs_for(leaves, tree, mine):
                yield ProofLine(tally=row.envelope, proof=encode(proof))

    def proof_of(self, prefix: str) -> Sequence[Line]:
        found = self.evidence.find(prefix, 2)
        _require_one(prefix, [one.record for one in found])
        known = found[0]
        name = f"Record {known.record.hex()}"
        if known.step is None:
            _require_admitted(known.record, Rule(known.rule), known.detail)
        if known.dropped is not None:
            raise NotProven(f"{name} was admitted and credited, but was dropped without training: {known.dropped}.")
        if known.step is None:
            raise NotProven(f"{name} was admitted and waits for a batch: no version was trained on it yet.")
        if (row := self.evidence.tally_of_step(known.step)) is None:
            raise NotProven(
                f"{name} was used by training step {known.step}, but there is no signed tally of that: its version is "
                "not published yet, or an older volery published it."
            )
        leaves, tree = tree_of(trained := self.evidence.trained(row.after, row.version.version))
        places = [place for place, one in enumerate(in_order(trained)) if one.record == known.record]
        if not places:
            raise NotProven(f"{name} was used by training step {known.step}, but too little is kept to prove it.")
        (proof,) = proofs_for(leaves, tree, places[:1])
        receipt = self.evidence.receipt_for(known.lease)
        return [
            *([ReceiptLine(envelope=receipt)] if receipt else []),
            ProofLine(tally=row.envelope, proof=encode(proof)),
        ]


def reputation_lines(
    place: StateLocation, authority: Authority, *, now_ms: int, peer: PeerId | None = None
) -> list[ReputationLine]:
    """Return the reputation of each rollout peer, or of one, signed now with the learner's key.

    It is of the day of the ledger's last entry. Raises UsageError, and RunError if the key may not sign.
    """
    learner, path = load_key(place.key), place.state / "certificate"
    try:
        certificate = read_file(path)
        open_certificate(certificate, authority)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}. Start the learner once to make one.") from None
    except PeerError as error:
        raise RunError(
            f"{path} is not a certificate of this swarm ({error}). Restore it from a copy. Or move it away, and start "
            "the learner once with operator.key in place, to make another one."
        ) from None
    with as_run_error(LedgerError), read_ledger(place.state / "ledger.sqlite") as ledger:
        at_ms = min(ledger.training.last_moment_ms(), now_ms)
        days = ledger.observed_days(at_ms, JUDGING)
        peers = [one.peer for one in ledger.peers.all("rollout")]
        bans = {one: known.banned for one, (known, _) in ledger.trust.confidence().items()}
    notes = [
        reputation_note(
            peer=one,
            day=at_ms // DAY_MS,
            days=days.get(one, []),
            banned=bans.get(one, ""),
            issued_ms=now_ms,
            certificate=certificate,
        )
        for one in peers
        if peer in (None, one)
    ]
    lines = [ReputationLine(note=sign(learner, authority.swarm, note)) for note in notes]
    try:
        for line in lines:
            open_reputation_note(line.note, authority)
    except PeerError as error:
        raise RunError(
            f"{path} does not let {place.key} sign now ({error}). Start the learner once with operator.key in place, "
            "to make another certificate."
        ) from None
    return lines


@contextmanager
def open_receipts(place: StateLocation) -> Iterator[ReceiptSource]:
    """Open the database of a state directory. Raises RunError."""
    with as_run_error(LedgerError, ReceiptsError):
        if place.is_learner:
            with read_ledger(place.state / "ledger.sqlite") as ledger:
                yield LedgerReceipts(evidence=ledger.evidence)
        else:
            with closing(ReceiptQueries(place.state / "receipts.sqlite")) as receipts:
                yield NodeReceipts(receipts=receipts)


def head_of(place: StateLocation) -> tuple[Head, Authority]:
    """Return the first line of a statement from this state directory. Raises RunError."""
    path = place.state / ("genesis" if place.is_learner else "store/genesis")
    try:
        raw = read_file(path)
        authority = read_genesis(raw)[1]
    except OSError as error:
        raise RunError(
            f"{path} cannot be read: {error.strerror}. Nobody can check receipts without it. Restore it from a copy."
        ) from None
    except PeerError as error:
        raise RunError(f"{path} is not a swarm's genesis ({error}). Restore it from a copy.") from None
    return Head(swarm=authority.swarm.hex(), genesis=raw), authority


def peer_named(place: StateLocation, text: str) -> PeerId | None:
    """Return the peer whose id is, or ends in, `text`; None if `text` is empty. Raises UsageError."""
    if not text:
        return None
    if not place.is_learner:
        raise UsageError(
            f"--peer: all receipts in {place.state} are one node's. Omit it; it is for a learner's ledger."
        )
    with open_receipts(place) as kept:
        assert isinstance(kept, LedgerReceipts)
        found = kept.evidence.peers(text)
    if not found:
        raise UsageError(f"--peer {text}: no rollout node with such an id has joined. `volery report` lists them.")
    if len(found) > 1:
        raise UsageError(f"--peer {text}: several peers match: {', '.join(found)}. Give more of the id.")
    return found[0]


def as_receipt(raw: bytes, authority: Authority, place: StateLocation) -> Receipt:
    """Return the content of a stored receipt; `verify` checks whether it is valid. Raises RunError."""
    try:
        envelope = read_envelope(raw, kind=Kind.RECEIPT, swarm=authority.swarm, limit=MAX_RECEIPT_BYTES)
        receipt: Receipt = decode(Receipt, envelope.payload, MAX_RECEIPT_BYTES)
    except PeerError as error:
        raise RunError(
            f"A receipt in {place.database} cannot be read ({error}). `volery receipts export` and `verify` show which."
        ) from None
    return receipt


def _require_one(prefix: str, found: Sequence[RecordId]) -> None:
    if not found:
        raise NotProven(
            f"No record here has an id that begins with {prefix}. `volery receipts list --records` shows the ids."
        )
    if len(set(found)) > 1:
        raise UsageError(f"Several records have ids that begin with {prefix}, such as {short(found[0])}. {LONGER}")


def _require_admitted(record: RecordId, rule: Rule, detail: str) -> None:
    if rule is not Rule.ADMITTED:
        raise NotProven(
            f"Record {record.hex()} was rejected ({rule.value}{f': {detail}' if detail else ''}), so nothing was "
            "trained on it."
        )
