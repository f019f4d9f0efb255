"""Leases, records, verdicts and receipts: what a rollout node and the learner say to each other about work.

A lease grants one group: one prompt, one seed per completion, the settings, a deadline. A record is the signed
evidence of one completion. A receipt is the learner's signed answer to a delivery and holds a verdict per record. The
`WORK` stream is opened by the rollout node and carries frames (u32 big-endian length, then one message) both ways.
What always holds: a lease is bound to one peer, a record to one lease and one index of it, and a receipt is sent only
after what it says is on disk.
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
    """At most so many bytes has a lease: token ids at 4 bytes, seeds at 9 and one to spare, and what surrounds them."""
    return 4 * prompt_tokens + 10 * completions + 4096


MAX_LEASE_BYTES = lease_bytes(MAX_PROMPT_TOKENS, MAX_GROUP_SIZE)
MAX_PLAIN_RECORD_BYTES = 8 * MAX_COMPLETION_TOKENS + 64 * MAX_SPANS + 4096
"""Of a record whose lease asks for no experts."""
MAX_RECORD_BYTES = MAX_PLAIN_RECORD_BYTES + MAX_EXPERT_BYTES
MAX_RECEIPT_BYTES = (MAX_GROUP_SIZE + 1) * 768
MAX_LEASES_HELD = 1024
"""Leases one node works on at a time."""
RELAY_RECEIPTS = "volery.relay-receipts"
"""The extension of Welcome, empty, by which a learner says that it understands Relayed."""
LEASE_RECALLS = "volery.lease-recalls"
"""The extension of Hello, empty, by which a rollout node says that it understands LeaseRecall."""
PROOFS = "volery.proofs"
"""The extension of Welcome, empty, by which a learner says that it answers ProofRequest, and of Hello, by which a node
says that it takes Proofs unasked."""
MAX_PROOFS = 256
"""Proofs in one answer: of a batch of 100,000 records they take 170 KB."""
MAX_NOTES = 64
"""Credit notes in one answer: of 255 relays each they take 1.3 MB."""
RECEIPT_REVISIONS = "volery.receipt-revisions"
"""The extension of Hello, empty, by which a rollout node says that it understands Revised."""
PARTS = "volery.parts"
"""The extension of Welcome, empty, by which a learner says that it takes Handback, and of Hello, by which a node says
that it goes on with completions that others began (`Lease.start`)."""
EXPERTS = "volery.experts"
"""The extension, empty, of Lease, by which a learner asks for RolloutRecord's `experts`; of Hello, by which a rollout
node says that its engine can tell them; and of TellTerms, by which a learner says that it leases only to such nodes."""
INSTANCE = "volery.instance"
"""The extension of Hello by which a rollout node tells its process from others with the same key: INSTANCE_BYTES that
it drew when it started."""
INSTANCE_BYTES = 16
KEY_IN_USE = "volery.key-in-use"
"""The extension of Refused, empty: another process with the same key is here, and was first."""
MAX_HOURS_LEFT_S = 7 * 86_400
"""Owner's hours are those of days and weeks; whoever stays for longer has no need to say so."""


Speed = Annotated[float, Meta(ge=0, le=MAX_SPEED)]


class Sampler(Message, frozen=True, kw_only=True):
    """How tokens are drawn: the seeded sampler at `temperature`.

    Nothing else is offered: top-p and top-k are refused.
    """

    temperature: Annotated[float, Meta(ge=MIN_TEMPERATURE, le=MAX_TEMPERATURE)] = 1.0


class Lease(Signable, frozen=True, kw_only=True):
    """Granted work: generate `len(seeds)` completions of one prompt.

    `prompt` is packed token ids; completion i uses `seeds[i]`, ends with one of `stop_ids` or after `max_new_tokens`,
    and comes from a version not older than `minimum`. `issued_ms` and `deadline_ms` are on the learner's clock;
    `Grant.now_ms` tells what it says. `start`: the completions were begun by others, and the prompt ends with so many
    tokens of theirs, so that the first token of each is drawn at this position; only for who says PARTS.
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
    """When generation began (the author's clock, corrected to the learner's) and how long it took, in milliseconds."""

    started_ms: Millis
    generation_ms: Millis


class RolloutRecord(Signable, frozen=True, kw_only=True):
    """One completion: packed token ids, packed behaviour logprobs, spans, claims.

    A behaviour logprob is log_softmax(logits / T) of the chosen token under the version that made it. `experts` is what
    a lease with EXPERTS asks for, of a mixture of experts (`protocol.experts`); else there is none.
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
    """Why a record was admitted or not: one name for each rule that may decide, in the order in which they are asked.
    Of one that a reader does not know the verdict's detail says what was wrong."""

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
    """The judgement on one record: which rule decided, and in words what was measured against what is allowed."""

    record: Bytes32
    index: Annotated[int, Meta(ge=0, lt=MAX_GROUP_SIZE)]
    rule: Rule
    reward: Reward | None = None
    detail: Reason = ""

    @property
    def admitted(self) -> bool:
        return self.rule is Rule.ADMITTED


class Receipt(Signable, frozen=True, kw_only=True):
    """The learner's signed acknowledgement of one delivery. What it says is on the learner's disk.

    `tokens` counts the completion tokens that count for the author: of the records that were admitted, and of a group
    that is refused for nothing but that a restart of the learner orphaned what made it.
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

# What travels on the WORK stream. From the rollout node:


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """First frame: who we are. `token` is the join token of the invite, if it had one.

    `leases` are those we still work on, or wait to deliver, when the line was lost and is opened again: the others
    are forgotten.
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
    """Still here: the version installed, rollouts queued or running, and chunk bytes moved since the start.

    Also sent at once when a version was installed, when `troubles` change, and when the owner lends the machine no more
    or again (hours, a pause). `tokens_per_s` is what the engine was measured to generate when the node began, 0 while
    that is not known: the learner expects as much until it has seen what comes. `hours_left_s`: so long does the
    machine's owner still lend it, 0 when not now; absent, there is no such end. `energy`: joules since the start, by
    source; empty where nothing can be read, or the owner does not tell. `troubles`: what the node cannot do now, and
    why.
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
    """Ready for up to `rollouts` more completions."""

    rollouts: Annotated[int, Meta(ge=1, le=65_536)]


class Started(Message, frozen=True, kw_only=True, tag="started"):
    """Generation for this lease began with `version`.

    Told before the first token, so that the version cannot be chosen afterwards.
    """

    lease: Bytes16
    version: PolicyVersion


class LeaseReturn(Message, frozen=True, kw_only=True, tag="return"):
    """These leases will not be delivered (engine lost, going away): give them to somebody else."""

    leases: Annotated[list[Bytes16], Meta(max_length=MAX_LEASES_PER_GRANT)]
    reason: Reason


class Delivery(Message, frozen=True, kw_only=True, tag="delivery"):
    """All records of one lease, as signed envelopes. Sent again until acknowledged; the answer is the same each time.

    Records are bounded by the frame alone here: one that is too long gets its own verdict and spares the others.
    """

    lease: Bytes16
    records: Annotated[list[bytes], Meta(max_length=MAX_RECORDS_PER_DELIVERY)]


class Handback(Message, frozen=True, kw_only=True, tag="handback"):
    """What was made of a lease that its node does not finish, as signed envelopes: records of completions that ended,
    and of those that were begun, as far as they came. Of those that were not begun there is none.

    Sent again until acknowledged, as a Delivery is, and only to a learner that says PARTS.
    """

    lease: Bytes16
    records: Annotated[list[bytes], Meta(min_length=1, max_length=MAX_RECORDS_PER_DELIVERY)]
    reason: Reason = ""


class Relayed(Message, frozen=True, kw_only=True, tag="relayed"):
    """Who relayed a version to us: the envelope of a RelayReceipt. Said again on every new line, counted once."""

    receipt: Annotated[bytes, Meta(max_length=MAX_RELAY_RECEIPT_BYTES + OVERHEAD_BYTES)]


class NumberedNote(msgspec.Struct, frozen=True, array_like=True):
    """The envelope of a CreditNote, and its number in the learner's books."""

    number: Count
    note: Annotated[bytes, Meta(max_length=MAX_CREDIT_NOTE_BYTES + OVERHEAD_BYTES)]


class ProofRequest(Message, frozen=True, kw_only=True, tag="proofs?"):
    """Which records of ours was a version trained on? Of `version`, from `place` on, or else of the next one after it.
    And which credit notes name us, behind the one of the number `notes`? And how do we stand, where that was looked at
    well after `reputed`, the date of the newest ReputationNote that we have (0: we have none; absent: never mind)?

    Answered by Proofs. A second one replaces the first.
    """

    version: PolicyVersion
    place: Count = 0
    notes: Count = 0
    reputed: Millis | None = None


IN_GOOD_ORDER = "left in good order"
"""Why a peer's connection ended when it said goodbye. After any other reason it may be back in a moment."""


class Goodbye(Message, frozen=True, kw_only=True, tag="goodbye"):
    """Leaving in good order; leases still held are returned by this."""

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
    """Answer to Hello, or the last word on a stream: why, and when it is worth trying again (absent: never)."""

    reason: Reason
    retry_after_ms: Annotated[int, Meta(ge=0, le=3_600_000)] | None = None


class Grant(Message, frozen=True, kw_only=True, tag="grant"):
    """Answer to LeaseRequest: signed leases, perhaps none yet with the reason why and when to ask again."""

    leases: Annotated[list[SealedLease], Meta(max_length=MAX_LEASES_PER_GRANT)]
    now_ms: Millis
    reason: Reason = ""
    retry_after_ms: Annotated[int, Meta(ge=0, le=600_000)] = 0


class LeaseRecall(Message, frozen=True, kw_only=True, tag="recall"):
    """No batch still to be formed can hold these leases' rollouts, unless `minimum` or a newer version makes them.

    What was begun with an older one, or would be, is given back by LeaseReturn. Said again until it is, or delivered.
    """

    leases: Annotated[list[Bytes16], Meta(max_length=MAX_LEASES_PER_GRANT)]
    minimum: PolicyVersion


class Acknowledgement(Message, frozen=True, kw_only=True, tag="ack"):
    """Answer to Delivery: the receipt's envelope."""

    lease: Bytes16
    receipt: Annotated[bytes, Meta(max_length=MAX_RECEIPT_BYTES + OVERHEAD_BYTES)]


class InboxFull(Message, frozen=True, kw_only=True, tag="full"):
    """Answer to Delivery: not taken, not judged; deliver it again after `retry_after_ms`."""

    lease: Bytes16
    retry_after_ms: Annotated[int, Meta(ge=0, le=600_000)]


class Proofs(Message, frozen=True, kw_only=True, tag="proofs"):
    """Answer to ProofRequest: the tally's envelope of one version, and proofs of some of the asker's records, in the
    order of their places; credit notes that name the asker as a relay, in the order of their numbers; and the envelope
    of a ReputationNote on the asker. Empty when there are none (yet). With a tally alone it is no answer, but says that
    a version was published.
    """

    tally: Annotated[bytes, Meta(max_length=MAX_TALLY_BYTES + OVERHEAD_BYTES)] = b""
    proofs: Annotated[list[Proof], Meta(max_length=MAX_PROOFS)] = msgspec.field(default_factory=list)
    notes: Annotated[list[NumberedNote], Meta(max_length=MAX_NOTES)] = msgspec.field(default_factory=list)
    reputation: Annotated[bytes, Meta(max_length=MAX_REPUTATION_NOTE_BYTES + OVERHEAD_BYTES)] = b""

    @property
    def is_empty(self) -> bool:
        """Whether it brings nothing."""
        return not self.proofs and not self.notes and not self.reputation


class Revised(Message, frozen=True, kw_only=True, tag="revised"):
    """A later receipt for a lease that was acknowledged: what an audit found since. It replaces the one before.

    Said on every new line until it was told once, and only to who understands it (RECEIPT_REVISIONS).
    """

    receipt: Annotated[bytes, Meta(max_length=MAX_RECEIPT_BYTES + OVERHEAD_BYTES)]


class Introduction(Message, frozen=True, kw_only=True, tag="peers"):
    """Peers that joined or left since the Welcome: the whole list anew."""

    peers: Annotated[list[PeerAddresses], Meta(max_length=MAX_PEERS_TOLD)]


class Farewell(Message, frozen=True, kw_only=True, tag="farewell"):
    """The run is over, as planned: no more work will come. The node may stay to relay, or leave."""

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
    | Introduction
    | Farewell
)


@dataclass(frozen=True, kw_only=True)
class SignedRecord:
    """A record whose shape was checked, not yet its signature: bytes as sent, id, claimed author, contents unpacked."""

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
    """Return the lease in `raw`; PeerError unless `learner` signed it."""
    envelope = open_envelope(raw, kind=Kind.LEASE, swarm=swarm, limit=MAX_LEASE_BYTES)
    if envelope.signer != learner:
        raise PeerError(Fault.UNAUTHORISED, f"a lease signed by {envelope.signer}, who is not the learner")
    lease: Lease = decode(Lease, envelope.payload, MAX_LEASE_BYTES)
    return lease


def read_record(raw: bytes, swarm: SwarmId, limit: int = MAX_RECORD_BYTES) -> SignedRecord:
    """Parse a record and check its shape: as many logprobs as tokens, spans that cover all tokens in order.

    The signature is left to the caller, who asks cheaper questions first. Raises PeerError.
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
    """Return the receipt in `raw`; PeerError unless a key certified at its date signed it."""
    envelope = open_envelope(raw, kind=Kind.RECEIPT, swarm=authority.swarm, limit=MAX_RECEIPT_BYTES)
    receipt: Receipt = decode(Receipt, envelope.payload, MAX_RECEIPT_BYTES)
    authority.require_learner(envelope, receipt.certificate, receipt.issued_ms)
    return receipt


MAX_HELLO_BYTES = MAX_ADDRESSES * 300 + MAX_LEASES_HELD * 18 + 4096
assert MAX_RECEIPT_BYTES + OVERHEAD_BYTES < 1 << 20
