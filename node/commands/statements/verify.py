"""Check a statement: read a file line by line, and report what is wrong or what it adds up to.

Two things cannot be checked from outside: that the learner signed with true dates, and that it signed receipts for all
deliveries.

Invariants:

- Only checked items are added up: their signatures, including the signer's certificate, are checked against the
  operator's key at the signed date.
- A lease, a relay receipt and a proof count once.
- Any file becomes sums or flaws, and each flaw has its line and field.
- No clock, network or ledger is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from node.commands.statements.format import (
    AnyLine,
    CreditLine,
    EndLine,
    FormError,
    ProofLine,
    ReceiptLine,
    RelayLine,
    ReputationLine,
    TooLong,
    read_head,
    read_line,
)
from protocol.accounting.credit_note import CreditNote, open_credit_note, require_match
from protocol.accounting.relay_receipt import MAX_RELAY_RECEIPT_BYTES, open_relay_receipt
from protocol.accounting.reputation_note import ReputationNote, open_reputation_note
from protocol.accounting.tally import MAX_PROOF_BYTES, Proof, Tally, check_proof, open_tally
from protocol.core.codec import decode
from protocol.core.digest import digest_of
from protocol.core.envelope import Kind, read_envelope
from protocol.core.errors import Fault, PeerError
from protocol.core.genesis import Authority, read_genesis
from protocol.core.identity import peer_id_of
from protocol.core.ids import Digest, PeerId, PolicyVersion, PublicKey, RecordId
from protocol.work import Receipt, Rule, open_receipt

MAX_LINES = 1 << 20
"""Most lines of a statement: a million deliveries. Larger ones are to be exported peer by peer."""

MAX_RECORDS = 1 << 22
"""Most records that are remembered to find double counting: 800 MB of memory."""

MAX_FLAWS = 1000
"""Most flaws that are listed. All are counted."""

MAX_REPUTATIONS = 1 << 14
"""Most reputations that are kept for printing: 120 MB of memory."""

PROOFS_LISTED = 1000
"""Most proven records that are listed. All are counted."""


ADMITTED_ONCE = frozenset({Rule.ADMITTED, Rule.AUDIT, Rule.BANNED, Rule.OTHER})
"""Rules of records that are admitted, or were until a later receipt revised that. A revised record may have trained a
version that a restart cut off, so a proof of it does not contradict the receipt."""


@dataclass(frozen=True, kw_only=True)
class Flaw:
    """An error in a field of a line. Lines count from 1; line 0 is the file as a whole."""

    line: int
    field: str
    what: str


@dataclass(kw_only=True)
class PeerSum:
    """The sums of one peer.

    Args:
        relayed_bytes: bytes that it is credited with for relaying.
        proven: its records that are proved to have trained a version.
        first_ms, last_ms: dates of its first and last receipt.
    """

    receipts: int = 0
    admitted: int = 0
    refused: int = 0
    tokens: int = 0
    relayed_bytes: int = 0
    proven: int = 0
    first_ms: int | None = None
    last_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Proven:
    """A record that trained a version: `version` is the one that its step made, `published` the published one."""

    record: RecordId
    peer: PeerId
    lease: bytes
    index: int
    version: PolicyVersion
    published: PolicyVersion
    place: int
    records: int


@dataclass(kw_only=True)
class Statement:
    """The valid content of a file, and its flaws.

    Args:
        uncredited: relay receipts without a credit note.
        is_expected: whether its operator or swarm is the expected one; None if none was named.
    """

    swarm: Digest | None = None
    name: str = ""
    operator: PublicKey | None = None
    is_expected: bool | None = None
    peers: dict[PeerId, PeerSum] = field(default_factory=dict)
    proven: list[Proven] = field(default_factory=list)
    reputations: dict[PeerId, ReputationNote] = field(default_factory=dict)
    uncredited: int = 0
    flaws: list[Flaw] = field(default_factory=list)
    more_flaws: int = 0

    @property
    def holds(self) -> bool:
        return not self.flaws

    def of(self, peer: str) -> PeerSum:
        return self.peers.setdefault(PeerId(peer), PeerSum())


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The expected operator, or the swarm's id and operator; None if not given."""

    operator: PublicKey | None = None
    authority: Authority | None = None


def check_statement(raw_lines: Iterable[bytes], expected: Expected) -> Statement:
    """Judge a file with these lines, which include their ends. The last one may be longer than MAX_LINE_BYTES."""
    checker = _Checker(expected)
    for number, raw in enumerate(raw_lines, 1):
        if not checker.take(number, raw):
            break
    checker.finish()
    return checker.statement


class _Checker:
    """Judges one line after the other."""

    def __init__(self, expected: Expected) -> None:
        self.statement = Statement()
        self._expected = expected
        self._authority: Authority | None = None
        self._digest = hashlib.sha256()
        self._lines = 0
        self._ended = False
        self._stopped = False
        self._num_records = 0
        self._leases: set[bytes] = set()
        self._admitted: dict[bytes, bytes] = {}
        self._relays: set[bytes] = set()
        self._notes: set[bytes] = set()
        self._proofs: set[bytes] = set()
        self._tallies: dict[PolicyVersion, Digest] = {}
        self._opened: tuple[bytes, Tally] | None = None

    def take(self, number: int, raw: bytes) -> bool:
        """Judge one line; return whether to continue."""
        if number > MAX_LINES + 2:
            return self._stop(number, "line", f"a statement has at most {MAX_LINES} lines: export peer by peer")
        if self._ended:
            return self._stop(number, "line", "there is something after the last line")
        if number == 1:
            return self._take_head(raw)
        try:
            line = read_line(raw)
            if isinstance(line, EndLine):
                self._take_end(number, line)
                return True
            self._take_line(line)
        except TooLong as error:
            return self._stop(number, error.field, str(error))
        except FormError as error:
            self._flaw(number, error.field, str(error))
        self._digest.update(raw)
        self._lines += 1
        if self._num_records > MAX_RECORDS:
            return self._stop(number, "line", f"there are more than {MAX_RECORDS} records: export peer by peer")
        return True

    def finish(self) -> None:
        """Judge the end of the file."""
        if self._lines == 0 and not self.statement.flaws:
            self._flaw(0, "file", "it is empty")
        elif not self._ended and not self._stopped:
            self._flaw(0, "file", "its last line is missing, so it was cut off. Ask for it again")

    def _take_head(self, raw: bytes) -> bool:
        self._digest.update(raw)
        self._lines = 1
        try:
            head = read_head(raw)
        except FormError as error:
            return self._stop(1, error.field, f"{error}. Is this a file that `volery` exported?")
        try:
            genesis, authority = read_genesis(head.genesis)
        except PeerError as error:
            return self._stop(1, "genesis", error.detail)
        if head.swarm != authority.swarm.hex():
            return self._stop(1, "swarm", f"the genesis is that of swarm {authority.swarm.hex()}")
        statement = self.statement
        statement.swarm, statement.name, statement.operator = Digest(authority.swarm), genesis.name, authority.operator
        wanted = self._expected.authority.operator if self._expected.authority else self._expected.operator
        if wanted is not None:
            statement.is_expected = False
        if wanted is not None and authority.operator != wanted:
            mine, theirs = peer_id_of(wanted), peer_id_of(authority.operator)
            return self._stop(1, "genesis", f"the operator is {theirs}, not {mine}")
        if self._expected.authority is not None and authority != self._expected.authority:
            return self._stop(
                1, "swarm", f"it is another swarm of this operator, not {self._expected.authority.swarm.hex()}"
            )
        if wanted is not None:
            statement.is_expected = True
        self._authority = authority
        return True

    def _take_line(self, line: AnyLine) -> None:
        """Add up one line. Raises FormError with its field if it is not valid."""
        assert self._authority is not None
        match line:
            case ReceiptLine():
                self._take_receipt(line, self._authority)
            case RelayLine():
                self._take_relay(line, self._authority)
            case CreditLine():
                with _in_field("note"):
                    note = open_credit_note(line.note, self._authority)
                self._add_credit(note)
            case ProofLine():
                self._take_proof(line, self._authority)
            case ReputationLine():
                self._take_reputation(line, self._authority)
            case EndLine():
                raise AssertionError("taken before")

    def _take_end(self, number: int, line: EndLine) -> None:
        self._ended = True
        if line.lines != self._lines:
            self._flaw(number, "lines", f"it says {line.lines} lines before it, but there are {self._lines}")
        elif line.sha256 != self._digest.hexdigest():
            self._flaw(number, "sha256", "the lines before it are not those that were written, so the file was changed")

    def _take_receipt(self, line: ReceiptLine, authority: Authority) -> None:
        with _in_field("envelope", "not a receipt of the learner: "):
            receipt = open_receipt(line.envelope, authority)
        if receipt.lease in self._leases:
            raise FormError("lease", f"lease {receipt.lease.hex()} already has a receipt above, and would count twice")
        self._leases.add(receipt.lease)
        self._take_verdicts(receipt)
        mine = self.statement.of(receipt.peer)
        admitted = sum(verdict.admitted for verdict in receipt.verdicts)
        mine.receipts += 1
        mine.admitted += admitted
        mine.refused += len(receipt.verdicts) - admitted
        mine.tokens += receipt.tokens
        mine.first_ms = min(receipt.issued_ms, receipt.issued_ms if mine.first_ms is None else mine.first_ms)
        mine.last_ms = max(receipt.issued_ms, mine.last_ms or 0)

    def _take_verdicts(self, receipt: Receipt) -> None:
        """Add the verdicts of a receipt. Raises FormError if anything would be counted twice."""
        indexes: set[int] = set()
        counts = False
        for verdict in receipt.verdicts:
            counts = counts or verdict.rule in (Rule.ADMITTED, Rule.ORPHANED)
            if verdict.rule not in ADMITTED_ONCE:
                continue
            if verdict.index in indexes:
                raise FormError("verdicts", f"two records with index {verdict.index} of one lease are admitted")
            indexes.add(verdict.index)
            if verdict.record in self._admitted:
                raise FormError("verdicts", f"record {verdict.record.hex()} is admitted above, and would count twice")
            self._num_records += 1
            self._admitted[verdict.record] = _owner(receipt.peer, receipt.lease, verdict.index)
        if receipt.tokens and not counts:
            raise FormError("tokens", f"{receipt.tokens} tokens are counted, but no record")

    def _take_relay(self, line: RelayLine, authority: Authority) -> None:
        with _in_field("envelope", "not a relay receipt: "):
            envelope = read_envelope(
                line.envelope, kind=Kind.RELAY_RECEIPT, swarm=authority.swarm, limit=MAX_RELAY_RECEIPT_BYTES
            )
            receipt = open_relay_receipt(line.envelope, authority.swarm, receiver=envelope.signer)
        key = digest_of(receipt.manifest + envelope.key)
        if key in self._relays:
            raise FormError("envelope", f"{envelope.signer} already has a relay receipt for this version above")
        self._relays.add(key)
        if not line.note:
            self.statement.uncredited += 1
            return
        with _in_field("note"):
            note = open_credit_note(line.note, authority)
            require_match(note, line.envelope, receipt)
        if note.receiver != envelope.signer:
            raise FormError("note", f"it names {note.receiver} as the receiver, which did not sign the relay receipt")
        self._add_credit(note)

    def _add_credit(self, note: CreditNote) -> None:
        key = digest_of(note.manifest + note.receiver.encode())
        if key in self._notes:
            raise FormError("note", f"the chunks of this version for {note.receiver} are already credited above")
        self._notes.add(key)
        for share in note.shares:
            self.statement.of(share.peer).relayed_bytes += share.size_bytes

    def _take_proof(self, line: ProofLine, authority: Authority) -> None:
        with _in_field("tally"):
            tally = self._tally(line.tally, authority)
        with _in_field("proof"):
            proof: Proof = decode(Proof, line.proof, MAX_PROOF_BYTES)
            leaf = check_proof(proof, tally)
        key = digest_of(leaf.record + line.tally)
        if key in self._proofs:
            raise FormError("proof", f"record {leaf.record.hex()} is already proved above to train {tally.version}")
        if leaf.lease in self._leases and self._admitted.get(leaf.record) != _owner(leaf.peer, leaf.lease, leaf.index):
            raise FormError("proof", f"the receipt for lease {leaf.lease.hex()} does not admit this record")
        self._proofs.add(key)
        self._num_records += 1
        self.statement.of(leaf.peer).proven += 1
        if len(self.statement.proven) < PROOFS_LISTED:
            proven = Proven(
                record=RecordId(leaf.record),
                peer=PeerId(leaf.peer),
                lease=leaf.lease,
                index=leaf.index,
                version=leaf.version,
                published=tally.version,
                place=proof.place,
                records=tally.records,
            )
            self.statement.proven.append(proven)

    def _take_reputation(self, line: ReputationLine, authority: Authority) -> None:
        with _in_field("note"):
            note = open_reputation_note(line.note, authority)
        if note.peer in self.statement.reputations:
            raise FormError("note", f"the reputation of {note.peer} is already given above")
        if len(self.statement.reputations) >= MAX_REPUTATIONS:
            raise FormError("note", f"there are more than {MAX_REPUTATIONS} peers: export peer by peer")
        self.statement.reputations[PeerId(note.peer)] = note

    def _tally(self, raw: bytes, authority: Authority) -> Tally:
        """Return the tally in `raw`. Raises PeerError, also if a different one of the same version was seen."""
        if self._opened is None or self._opened[0] != raw:  # the proofs of a version follow each other
            self._opened = raw, open_tally(raw, authority)
        tally = self._opened[1]
        if self._tallies.setdefault(tally.version, digest_of(raw)) != digest_of(raw):
            raise PeerError(
                Fault.EQUIVOCATION,
                f"the learner has signed two tallies of version {tally.version}: show both to others",
            )
        return tally

    def _stop(self, line: int, field: str, what: str) -> bool:
        """Note a flaw after which nothing can be judged; return False."""
        self._flaw(line, field, what)
        self._stopped = True
        return False

    def _flaw(self, line: int, field: str, what: str) -> None:
        if len(self.statement.flaws) < MAX_FLAWS:
            self.statement.flaws.append(Flaw(line=line, field=field, what=what))
        else:
            self.statement.more_flaws += 1


@contextmanager
def _in_field(field: str, said: str = "") -> Iterator[None]:
    """Raise a FormError about this field of a line for the PeerError inside."""
    try:
        yield
    except PeerError as error:
        raise FormError(field, f"{said}{error}") from None


def _owner(peer: str, lease: bytes, index: int) -> bytes:
    """Return a digest of a record's author and place, short enough to keep for millions of records."""
    return digest_of(f"{peer} {lease.hex()} {index}".encode())[:8]
