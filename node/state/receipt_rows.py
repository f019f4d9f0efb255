"""Define the rows of a rollout node's receipts as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from learner.ledger.sqlite.files import Row
from protocol.accounting.claims import EnergySource, Price
from protocol.accounting.reputation_note import ReputationNote
from protocol.accounting.tally import Proof
from protocol.core.ids import LeaseId, PeerId, PolicyVersion, RecordId
from protocol.work import Rule


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The sums of all receipts.

    `verdicts`: records by rule. `tokens`: tokens that count. `engine_s`: engine time. `groups_scored` and
    `groups_rejected`: groups of a teacher's scores that were admitted and rejected, with `tokens_scored`. They are in
    no other count but `receipts` and `engine_s`. `oldest`, `newest`: the learner's first and last versions named; None
    without receipts, like the dates.
    """

    receipts: int
    tokens: int
    engine_s: float
    verdicts: Mapping[Rule, int]
    oldest: PolicyVersion | None
    newest: PolicyVersion | None
    first_ms: int | None
    last_ms: int | None
    groups_scored: int = 0
    groups_rejected: int = 0
    tokens_scored: int = 0

    @property
    def admitted(self) -> int:
        """The records and the scored groups that were admitted."""
        return self.verdicts.get(Rule.ADMITTED, 0) + self.groups_scored

    @property
    def rejected(self) -> int:
        """Those that were not."""
        judged = sum(self.verdicts.values()) + self.groups_scored + self.groups_rejected
        return judged - self.admitted


@dataclass(frozen=True, kw_only=True)
class Session:
    """A stay in the swarm: its beginning and end (ms since 1970), its price, the chunk bytes moved meanwhile, all bytes
    moved (None if an older program counted only chunks), and its joules by source."""

    began_ms: int
    ended_ms: int
    price: Price
    bytes_up: int
    bytes_down: int
    sent_bytes: int | None = None
    received_bytes: int | None = None
    energy: Mapping[EnergySource, float] = field(default_factory=dict)


class PeerTraffic(Row, frozen=True):
    """Chunk bytes exchanged with one peer, as counted here: sent to it, and received from it."""

    peer: PeerId
    bytes_up: int
    bytes_down: int


class RejectedVerdict(Row, frozen=True):
    """A record that was not admitted, and the learner's reason."""

    lease: LeaseId
    index: int
    rule: Rule
    detail: str
    issued_ms: int


class Rejection(Row, frozen=True):
    """How many `records` of a lease were rejected by one rule, and the learner's reason."""

    lease: LeaseId
    rule: Rule
    detail: str
    issued_ms: int
    records: int


class JudgedRecord(Row, frozen=True):
    """A record, and its receipt's verdict."""

    record: RecordId
    lease: LeaseId
    rule: Rule
    detail: str


@dataclass(frozen=True, kw_only=True)
class KeptProof:
    """Proof that a record trained a version: its place among those that the version's tally counts."""

    record: RecordId
    version: PolicyVersion
    proof: Proof


@dataclass(frozen=True, kw_only=True)
class KeptReputation:
    """The reputation of this node as the learner states it, and the envelope of the statement."""

    note: ReputationNote
    raw: bytes


@dataclass(frozen=True, kw_only=True)
class StoredProof:
    """A proof as it is kept: the envelope of the tally, and the bytes of the Proof."""

    record: RecordId
    version: PolicyVersion
    tally: bytes
    proof: bytes


class JudgedCompletion(Row, frozen=True):
    """A receipt's verdict on one record; `tokens` are those of its whole lease."""

    lease: LeaseId
    index: int
    record: RecordId
    rule: Rule
    detail: str
    reward: float | None
    issued_ms: int
    tokens: int


class StoredReceipt(Row, frozen=True):
    """A receipt's envelope as the learner sent it, and the peer that it names."""

    issued_ms: int
    lease: LeaseId
    peer: PeerId
    raw: bytes
