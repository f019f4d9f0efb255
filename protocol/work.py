"""Define leases, records, verdicts and receipts: the messages about work between a rollout node and the learner.

A lease grants one group: one prompt, one seed per completion, the settings, a deadline. A record is the signed
evidence of one completion. A receipt is the learner's signed answer to a delivery and holds a verdict per record. The
rollout node opens the `WORK` stream, which carries frames (u32 big-endian length, then one message) both ways.

Invariants:

- A lease is bound to one peer, and a record to one lease and one index of it.
- The learner sends a receipt only after its contents are on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from protocol.accounting.claims import CostClaim, EnergyList, Price
from protocol.accounting.credit_note import MAX_CREDIT_NOTE_BYTES
from protocol.accounting.relay_receipt import MAX_RELAY_RECEIPT_BYTES
from protocol.accounting.reputation_note import MAX_REPUTATION_NOTE_BYTES
from protocol.accounting.tally import MAX_TALLY_BYTES, Proof
from protocol.core.codec import (
    Address,
    Bytes16,
    Bytes32,
    Count,
    Label,
    Message,
    Millis,
    Name,
    OpenEnum,
    Packed,
    PeerText,
    Reason,
    Reward,
    Seconds,
    Seed,
    TokenId,
    decode,
    unpack_logprobs,
    unpack_tokens,
)
from protocol.core.envelope import OVERHEAD_BYTES, Envelope, Kind, Signable, open_envelope, read_envelope
from protocol.core.errors import Fault, PeerError
from protocol.core.genesis import MAX_CERTIFICATE_BYTES, Authority
from protocol.core.ids import PeerId, PolicyVersion, RecordId, SwarmId
from protocol.core.limits import (
    MAX_ADDRESSES,
    MAX_COMPLETION_TOKENS,
    MAX_EXPERT_BYTES,
    MAX_GROUP_SIZE,
    MAX_LEASES_PER_GRANT,
    MAX_PEERS_TOLD,
    MAX_PROMPT_TOKENS,
    MAX_PUBLISH_EVERY,
    MAX_RECORDS_PER_DELIVERY,
    MAX_SPANS,
    MAX_SPEED,
    MAX_STALENESS,
    MAX_STOP_IDS,
    MAX_TEMPERATURE,
    MAX_TOKEN_CHARS,
    MIN_TEMPERATURE,
)
from protocol.scores import ScoreGrant
from protocol.trouble import TroubleList
from protocol.versions.exchange import PeerAddresses

WORK = "/volery/work/1"


def lease_bytes(prompt_tokens: int, completions: int) -> int:
    """Return the largest size of a lease in bytes: 4 per token id, 9 and one spare per seed, and the other fields."""
    return 4 * prompt_tokens + 10 * completions + 4096


MAX_LEASE_BYTES = lease_bytes(MAX_PROMPT_TOKENS, MAX_GROUP_SIZE)
MAX_PLAIN_RECORD_BYTES = 8 * MAX_COMPLETION_TOKENS + 64 * MAX_SPANS + 4096
"""Largest record, in bytes, if the lease does not ask for experts."""
MAX_RECORD_BYTES = MAX_PLAIN_RECORD_BYTES + MAX_EXPERT_BYTES
MAX_RECEIPT_BYTES = (MAX_GROUP_SIZE + 1) * 768
MAX_LEASES_HELD = 1024
"""Leases that one node works on at a time."""
RELAY_RECEIPTS = "volery.relay-receipts"
"""An empty extension of Welcome: the learner understands Relayed."""
LEASE_RECALLS = "volery.lease-recalls"
"""An empty extension of Hello: the rollout node understands LeaseRecall."""
PROOFS = "volery.proofs"
"""An empty extension. In Welcome, the learner answers ProofRequest; in Hello, the node accepts Proofs that it did not
request."""
MAX_PROOFS = 256
"""Proofs in one answer. For a batch of 100,000 records they take 170 KB."""
MAX_NOTES = 64
"""Credit notes in one answer. With 255 relays each they take 1.3 MB."""
RECEIPT_REVISIONS = "volery.receipt-revisions"
"""An empty extension of Hello: the rollout node understands Revised."""
WINDOW = "volery.window"
"""An empty extension of Hello: the rollout node understands Window."""
PARTS = "volery.parts"
"""An empty extension. In Welcome, the learner accepts Handback; in Hello, the node continues completions that others
began (`Lease.start`)."""
EXPERTS = "volery.experts"
"""An empty extension. In Lease, the learner asks for `experts` in each RolloutRecord. In Hello, the rollout node's
engine can report them. In TellTerms, the learner grants leases only to such nodes."""
INSTANCE = "volery.instance"
"""The extension of Hello that distinguishes processes with the same key: INSTANCE_BYTES random bytes that the rollout
node drew when it started."""
INSTANCE_BYTES = 16
KEY_IN_USE = "volery.key-in-use"
"""An empty extension of Refused: another process with the same key connected first and is still here."""
MAX_HOURS_LEFT_S = 7 * 86_400
"""Seconds in a week: owners set hours by day and week, and a node that stays longer need not announce an end."""


Speed = Annotated[float, Meta(ge=0, le=MAX_SPEED)]


class Sampler(Message, frozen=True, kw_only=True):
    """How tokens are drawn: by the seeded sampler at `temperature`.

    There is nothing else to choose: top-p and top-k are refused.
    """

    temperature: Annotated[float, Meta(ge=MIN_TEMPERATURE, le=MAX_TEMPERATURE)] = 1.0


class Lease(Signable, frozen=True, kw_only=True):
    """Granted work: generate `len(seeds)` completions of one prompt.

    `prompt` is packed token ids. Completion i uses `seeds[i]`, ends with one of `stop_ids` or after `max_new_tokens`,
    and comes from `minimum` or a newer version. `issued_ms` and `deadline_ms` are times on the learner's clock, which
    `Grant.now_ms` reports. If `start` is not 0, another node began the completions: the last `start` tokens of the
    prompt are theirs, and the first token to generate has position `start`. Only nodes that sent PARTS get such leases.
    """

    KIND: ClassVar[Kind] = Kind.LEASE

    id: Bytes16
    peer: PeerText
    task: Label
    prompt: Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_PROMPT_TOKENS), Packed]
    seeds: Annotated[list[Seed], Meta(min_length=1, max_length=MAX_GROUP_SIZE)]
    sampler: Sampler
    stop_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_IDS)]
    max_new_tokens: Annotated[int, Meta(ge=1, le=MAX_COMPLETION_TOKENS)]
    minimum: PolicyVersion
    issued_ms: Millis
    deadline_ms: Millis
    start: Annotated[int, Meta(ge=0, lt=MAX_COMPLETION_TOKENS)] = 0


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Tokens [start, end) of a completion came from `version`, whose manifest has the hash `manifest`."""

    start: Annotated[int, Meta(ge=0, le=MAX_COMPLETION_TOKENS)]
    end: Annotated[int, Meta(ge=1, le=MAX_COMPLETION_TOKENS)]
    version: PolicyVersion
    manifest: Bytes32


class Timing(Message, frozen=True, kw_only=True):
    """When generation began (on the author's clock, corrected to the learner's) and its duration, in milliseconds."""

    started_ms: Millis
    generation_ms: Millis


class RolloutRecord(Signable, frozen=True, kw_only=True):
    """One completion: packed token ids, packed behaviour logprobs, spans, claims.

    A behaviour logprob is log_softmax(logits / T) of the drawn token under the version that generated it. `experts`
    holds the experts of a mixture (`protocol.experts`) if the lease has the extension EXPERTS; else it is empty.
    """

    KIND: ClassVar[Kind] = Kind.RECORD

    lease: Bytes16
    index: Annotated[int, Meta(ge=0, lt=MAX_GROUP_SIZE)]
    tokens: Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_COMPLETION_TOKENS), Packed]
    logprobs: Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_COMPLETION_TOKENS)]
    spans: Annotated[list[Span], Meta(min_length=1, max_length=MAX_SPANS)]
    sampler: Sampler
    timing: Timing
    cost: CostClaim
    reward: Reward | None = None
    experts: Annotated[bytes, Meta(max_length=MAX_EXPERT_BYTES)] = b""


class Rule(OpenEnum):
    """Why a record was admitted or rejected: one name for each rule, in the order in which the learner applies them. If
    a reader does not know a rule, the verdict's detail still says what was wrong."""

    ADMITTED = "admitted"
    OVERSIZED = "oversized"
    MALFORMED = "malformed"
    UNKNOWN_LEASE = "unknown_lease"
    LATE = "late"
    UNKNOWN_VERSION = "unknown_version"
    ORPHANED = "orphaned"
    STALE = "stale"
    BAD_SIGNATURE = "bad_signature"
    WRONG_PEER = "wrong_peer"
    SETTINGS = "settings"
    DUPLICATE = "duplicate"
    INCOMPLETE = "incomplete"
    REWARD = "reward"
    AUDIT = "audit"
    BANNED = "banned"
    OTHER = "other"


class Verdict(Message, frozen=True, kw_only=True):
    """The verdict on one record: which rule decided, and in words the measured and the allowed value."""

    record: Bytes32
    index: Annotated[int, Meta(ge=0, lt=MAX_GROUP_SIZE)]
    rule: Rule
    reward: Reward | None = None
    detail: Reason = ""

    @property
    def admitted(self) -> bool:
        return self.rule is Rule.ADMITTED


class Receipt(Signable, frozen=True, kw_only=True):
    """The learner's signed acknowledgement of one delivery. Its contents are on the learner's disk.

    `tokens` is the number of completion tokens that are credited to the author: those of admitted records, and those of
    a group that was rejected only because a restart of the learner orphaned its behaviour version.
    """

    KIND: ClassVar[Kind] = Kind.RECEIPT

    lease: Bytes16
    peer: PeerText
    version: PolicyVersion
    issued_ms: Millis
    tokens: Count
    verdicts: Annotated[list[Verdict], Meta(max_length=MAX_RECORDS_PER_DELIVERY)]
    certificate: Annotated[bytes, Meta(max_length=MAX_CERTIFICATE_BYTES)]


SealedLease = Annotated[bytes, Meta(max_length=MAX_LEASE_BYTES + OVERHEAD_BYTES)]

# Messages of the WORK stream. From the rollout node:


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """First frame: it introduces the node. `token` is the join token of the invite, if it had one.

    After a lost connection, `leases` names the leases that the node still works on or has yet to deliver. It has
    forgotten the others.
    """

    protocol: Count
    name: Name = ""
    token: Annotated[str, Meta(max_length=MAX_TOKEN_CHARS)] = ""
    addresses: Annotated[list[Address], Meta(max_length=MAX_ADDRESSES)] = msgspec.field(default_factory=list)
    price: Price
    engine: Name = ""
    machine: Name = ""
    leases: Annotated[list[Bytes16], Meta(max_length=MAX_LEASES_HELD)] = msgspec.field(default_factory=list)


class Heartbeat(Message, frozen=True, kw_only=True, tag="heartbeat"):
    """Shows that the node is alive: the installed version, rollouts queued or running, chunk bytes sent and received.

    Counts begin at the node's start. A node also sends a heartbeat at once when it installed a version, when `troubles`
    change, and when its owner stops or resumes lending the machine (hours, a pause). `tokens_per_s` is the speed of the
    engine, measured when the node started; 0 while it is unknown. The learner expects this speed until it has observed
    deliveries. `hours_left_s` is the time in seconds for which the owner still lends the machine: 0 if not now, absent
    if there is no such end. `energy` is joules since the start, by source; it is empty if nothing can be measured or
    the owner does not report it. `troubles` says what the node cannot do now, and why.
    """

    installed: PolicyVersion | None = None
    pending: Count = 0
    bytes_up: Count = 0
    bytes_down: Count = 0
    engine_s: Seconds = 0.0
    tokens_per_s: Speed = 0.0
    hours_left_s: Annotated[float, Meta(ge=0, le=MAX_HOURS_LEFT_S)] | None = None
    energy: EnergyList = msgspec.field(default_factory=list)
    troubles: TroubleList = msgspec.field(default_factory=list)


class LeaseRequest(Message, frozen=True, kw_only=True, tag="lease?"):
    """Asks for leases: the node is ready for up to `rollouts` more completions."""

    rollouts: Annotated[int, Meta(ge=1, le=65_536)]


class Started(Message, frozen=True, kw_only=True, tag="started"):
    """Generation for this lease began with `version`.

    Sent before the first token, so that the node cannot choose the version afterwards.
    """

    lease: Bytes16
    version: PolicyVersion


class LeaseReturn(Message, frozen=True, kw_only=True, tag="return"):
    """Returns leases that the node will not deliver (it lost its engine, or leaves), for others to take over."""

    leases: Annotated[list[Bytes16], Meta(max_length=MAX_LEASES_PER_GRANT)]
    reason: Reason


class Delivery(Message, frozen=True, kw_only=True, tag="delivery"):
    """All records of one lease, as signed envelopes. Sent again until acknowledged; the answer is the same each time.

    Here only the frame limits the size of records. So a record that is too long gets its own verdict and does not
    affect the others.
    """

    lease: Bytes16
    records: Annotated[list[bytes], Meta(max_length=MAX_RECORDS_PER_DELIVERY)]


class Handback(Message, frozen=True, kw_only=True, tag="handback"):
    """Returns a lease that the node does not finish, with signed records of what it generated. Completions that ended
    have a record, and so have unfinished ones, as far as they came. Completions that it did not begin have none.

    Sent again until acknowledged, as a Delivery is, and only to a learner that sent PARTS.
    """

    lease: Bytes16
    records: Annotated[list[bytes], Meta(min_length=1, max_length=MAX_RECORDS_PER_DELIVERY)]
    reason: Reason = ""


class Relayed(Message, frozen=True, kw_only=True, tag="relayed"):
    """The envelope of a RelayReceipt: which peers relayed a version to this node.

    Sent again on every new connection; the learner counts it once.
    """

    receipt: Annotated[bytes, Meta(max_length=MAX_RELAY_RECEIPT_BYTES + OVERHEAD_BYTES)]


class NumberedNote(msgspec.Struct, frozen=True, array_like=True):
    """The envelope of a CreditNote, and its number in the learner's ledger."""

    number: Count
    note: Annotated[bytes, Meta(max_length=MAX_CREDIT_NOTE_BYTES + OVERHEAD_BYTES)]


class ProofRequest(Message, frozen=True, kw_only=True, tag="proofs?"):
    """Asks for proofs, credit notes and a reputation note. The answer is Proofs. A second request replaces the first.

    Proofs: of the asker's records that `version` was trained on, from `place` on, or of the next version that has some.
    Credit notes: those that name the asker, with numbers above `notes`. Reputation note: one that is well newer than
    `reputed`, the date of the asker's newest note. `reputed` is 0 if the asker has none, and absent if it wants none.
    """

    version: PolicyVersion
    place: Count = 0
    notes: Count = 0
    reputed: Millis | None = None


IN_GOOD_ORDER = "left in good order"
"""The reason for the end of a connection after Goodbye. After any other reason the peer may be back in a moment."""


class Goodbye(Message, frozen=True, kw_only=True, tag="goodbye"):
    """Says that the node leaves in good order. This also returns the leases that it still holds."""

    reason: Reason = ""


# From the learner:


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """Answer to Hello: the terms, and peers to exchange chunks with."""

    protocol: Count
    now_ms: Millis
    heartbeat_ms: Annotated[int, Meta(ge=100, le=600_000)]
    staleness: Annotated[int, Meta(ge=0, le=MAX_STALENESS)]
    publish_every: Annotated[int, Meta(ge=1, le=MAX_PUBLISH_EVERY)]
    newest: PolicyVersion | None = None
    peers: Annotated[list[PeerAddresses], Meta(max_length=MAX_PEERS_TOLD)] = msgspec.field(default_factory=list)


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """Answer to Hello, or the last message on a stream: the reason, and when to try again (absent: never)."""

    reason: Reason
    retry_after_ms: Annotated[int, Meta(ge=0, le=3_600_000)] | None = None


class Grant(Message, frozen=True, kw_only=True, tag="grant"):
    """Answer to LeaseRequest: signed leases. If there are none, `reason` says why and `retry_after_ms` when to ask
    again."""

    leases: Annotated[list[SealedLease], Meta(max_length=MAX_LEASES_PER_GRANT)]
    now_ms: Millis
    reason: Reason = ""
    retry_after_ms: Annotated[int, Meta(ge=0, le=600_000)] = 0


class LeaseRecall(Message, frozen=True, kw_only=True, tag="recall"):
    """Recalls leases: no future batch can use their rollouts, unless `minimum` or a newer version generates them.

    The node answers with LeaseReturn for each lease that it began, or would begin, with an older version. The learner
    repeats the recall until the leases are returned or delivered.
    """

    leases: Annotated[list[Bytes16], Meta(max_length=MAX_LEASES_PER_GRANT)]
    minimum: PolicyVersion


class Acknowledgement(Message, frozen=True, kw_only=True, tag="ack"):
    """Answer to Delivery: the receipt's envelope."""

    lease: Bytes16
    receipt: Annotated[bytes, Meta(max_length=MAX_RECEIPT_BYTES + OVERHEAD_BYTES)]


class InboxFull(Message, frozen=True, kw_only=True, tag="full"):
    """Answer to Delivery: the learner has neither stored nor judged it. Deliver it again after `retry_after_ms`."""

    lease: Bytes16
    retry_after_ms: Annotated[int, Meta(ge=0, le=600_000)]


class Proofs(Message, frozen=True, kw_only=True, tag="proofs"):
    """Answer to ProofRequest. Parts are empty while there is nothing to send.

    - `tally`, `proofs`: the envelope of one version's tally, and proofs of some of the asker's records, by place.
    - `notes`: credit notes that name the asker as a relay, by number.
    - `reputation`: the envelope of a ReputationNote on the asker.

    A message with a tally alone is no answer: it announces that a version was published.
    """

    tally: Annotated[bytes, Meta(max_length=MAX_TALLY_BYTES + OVERHEAD_BYTES)] = b""
    proofs: Annotated[list[Proof], Meta(max_length=MAX_PROOFS)] = msgspec.field(default_factory=list)
    notes: Annotated[list[NumberedNote], Meta(max_length=MAX_NOTES)] = msgspec.field(default_factory=list)
    reputation: Annotated[bytes, Meta(max_length=MAX_REPUTATION_NOTE_BYTES + OVERHEAD_BYTES)] = b""

    @property
    def is_empty(self) -> bool:
        """Whether it has no proofs, credit notes or reputation note."""
        return not self.proofs and not self.notes and not self.reputation


class Revised(Message, frozen=True, kw_only=True, tag="revised"):
    """A later receipt for a lease that was acknowledged, with what an audit found since. It replaces the earlier one.

    The learner tries on every new connection until it was sent once, and only to nodes that sent RECEIPT_REVISIONS.
    """

    receipt: Annotated[bytes, Meta(max_length=MAX_RECEIPT_BYTES + OVERHEAD_BYTES)]


class Window(Message, frozen=True, kw_only=True, tag="window"):
    """The operator changed the staleness window S while the run goes on. Sent only to nodes that sent WINDOW."""

    staleness: Annotated[int, Meta(ge=0, le=MAX_STALENESS)]


class Introduction(Message, frozen=True, kw_only=True, tag="peers"):
    """The whole list of peers, sent again because peers joined or left since the Welcome."""

    peers: Annotated[list[PeerAddresses], Meta(max_length=MAX_PEERS_TOLD)]


class Farewell(Message, frozen=True, kw_only=True, tag="farewell"):
    """Says that the run ended as planned and no more work will come. The node may stay to relay, or leave."""

    reason: Reason = ""


FromNode = (
    Hello | Heartbeat | LeaseRequest | Started | LeaseReturn | Delivery | Handback | Relayed | ProofRequest | Goodbye
)
FromLearner = (
    Welcome
    | Refused
    | Grant
    | ScoreGrant
    | LeaseRecall
    | Acknowledgement
    | InboxFull
    | Proofs
    | Revised
    | Window
    | Introduction
    | Farewell
)


@dataclass(frozen=True, kw_only=True)
class SignedRecord:
    """A record whose shape was checked and whose signature was not: bytes as sent, id, claimed author, unpacked
    contents."""

    raw: bytes
    id: RecordId
    envelope: Envelope
    record: RolloutRecord
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def author(self) -> PeerId:
        return self.envelope.signer

    @property
    def behaviour(self) -> tuple[PolicyVersion, ...]:
        """The versions that produced the tokens, in order."""
        return tuple(span.version for span in self.record.spans)


def open_lease(raw: bytes, swarm: SwarmId, *, learner: PeerId) -> Lease:
    """Return the lease in `raw`. Raise PeerError unless `learner` signed it."""
    envelope = open_envelope(raw, kind=Kind.LEASE, swarm=swarm, limit=MAX_LEASE_BYTES)
    if envelope.signer != learner:
        raise PeerError(Fault.UNAUTHORISED, f"a lease signed by {envelope.signer}, which is not the learner")
    lease: Lease = decode(Lease, envelope.payload, MAX_LEASE_BYTES)
    return lease


def read_record(raw: bytes, swarm: SwarmId, limit: int = MAX_RECORD_BYTES) -> SignedRecord:
    """Parse a record and check its shape: as many logprobs as tokens, and spans that cover all tokens in order.

    The caller verifies the signature, after cheaper checks. Raises PeerError.
    """
    envelope = read_envelope(raw, kind=Kind.RECORD, swarm=swarm, limit=limit)
    record: RolloutRecord = decode(RolloutRecord, envelope.payload, limit)
    tokens, logprobs = unpack_tokens(record.tokens), unpack_logprobs(record.logprobs)
    if len(tokens) != len(logprobs):
        raise PeerError(Fault.MALFORMED, f"record: {len(tokens)} tokens but {len(logprobs)} logprobs")
    position = 0
    for span in record.spans:
        if span.start != position or span.end <= span.start:
            raise PeerError(Fault.MALFORMED, f"record: spans do not follow each other at token {position}")
        position = span.end
    if position != len(tokens):
        raise PeerError(Fault.MALFORMED, f"record: spans cover {position} of {len(tokens)} tokens")
    return SignedRecord(
        raw=raw, id=RecordId(envelope.digest), envelope=envelope, record=record, tokens=tokens, logprobs=logprobs
    )


def open_receipt(raw: bytes, authority: Authority) -> Receipt:
    """Return the receipt in `raw`. Raise PeerError unless a key that was certified at its date signed it."""
    envelope = open_envelope(raw, kind=Kind.RECEIPT, swarm=authority.swarm, limit=MAX_RECEIPT_BYTES)
    receipt: Receipt = decode(Receipt, envelope.payload, MAX_RECEIPT_BYTES)
    authority.require_learner(envelope, receipt.certificate, receipt.issued_ms)
    return receipt


MAX_HELLO_BYTES = MAX_ADDRESSES * 300 + MAX_LEASES_HELD * 18 + 4096
assert MAX_RECEIPT_BYTES + OVERHEAD_BYTES < 1 << 20
