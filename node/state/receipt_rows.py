"""Rows of the receipts that a rollout node keeps, as values."""

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
    """All receipts together. `verdicts` counts records by rule, `tokens` those that count, `engine_s` engine time.

    Of a teacher's scores `groups_scored` were admitted, with `tokens_scored`, and `groups_refused` were not. They are
    in no other count but `receipts` and `engine_s`.

    `oldest` and `newest` are the learner's first and last versions named, None without receipts, as are the dates.
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
    groups_refused: int = 0
    tokens_scored: int = 0


@dataclass(frozen=True, kw_only=True)
class Session:
    """One stay in the swarm: from when to when (ms since 1970), at what price, the chunk bytes moved meanwhile, and
    joules by source."""

    began_ms: int
    ended_ms: int
    price: Price
    bytes_up: int
    bytes_down: int
    energy: Mapping[EnergySource, float] = field(default_factory=dict)


class PeerTraffic(Row, frozen=True):
    """Chunk bytes exchanged with one peer, as counted here: sent to it, and had of it."""

    peer: PeerId
    bytes_up: int
    bytes_down: int


class RefusedVerdict(Row, frozen=True):
    """A record that was not admitted, and what the learner said of it."""

    lease: LeaseId
    index: int
    rule: Rule
    detail: str
    issued_ms: int


class Refusal(Row, frozen=True):
    """How many `records` of a lease were not admitted by one rule, and what the learner said of them."""

    lease: LeaseId
    rule: Rule
    detail: str
    issued_ms: int
    records: int


class JudgedRecord(Row, frozen=True):
    """A record, and what its receipt says of it."""

    record: RecordId
    lease: LeaseId
    rule: Rule
    detail: str


@dataclass(frozen=True, kw_only=True)
class KeptProof:
    """That a record trained a version: its place among those that the version's tally counts."""

    record: RecordId
    version: PolicyVersion
    proof: Proof


@dataclass(frozen=True, kw_only=True)
class KeptReputation:
    """How the learner says that this node stands, and the envelope of that."""

    note: ReputationNote
    raw: bytes


@dataclass(frozen=True, kw_only=True)
class StoredProof:
    """The same as it is kept: the envelope of the tally, and the bytes of the Proof."""

    record: RecordId
    version: PolicyVersion
    tally: bytes
    proof: bytes


class JudgedCompletion(Row, frozen=True):
    """What a receipt says of one record; `tokens` count for all of its lease."""

    lease: LeaseId
    index: int
    record: RecordId
    rule: Rule
    detail: str
    reward: float | None
    issued_ms: int
    tokens: int


class StoredReceipt(Row, frozen=True):
    """A receipt's envelope as the learner sent it, and whom it names."""

    issued_ms: int
    lease: LeaseId
    peer: PeerId
    raw: bytes
