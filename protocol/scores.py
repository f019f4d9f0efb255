"""Define score leases and score records: how likely a teacher model finds the completions that the swarm generated.

A score lease grants one group: a prompt and its completions, whole. A score record is the teacher node's signed answer,
one log probability per token. Both travel on a stream of their own, TEACH. On it a teacher node greets, requests,
delivers and is acknowledged as a rollout node is (`protocol.work`).

Invariants:

- A score lease is bound to one peer and one teacher, a score record to one lease.
- Every score of a parsed record is a number from MIN_SCORE to MAX_POSITIVE_LOGPROB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from protocol.accounting.claims import CostClaim
from protocol.core.codec import (
    LOGPROB_DTYPE,
    MAX_POSITIVE_LOGPROB,
    Bytes16,
    Bytes32,
    Message,
    Millis,
    Packed,
    PeerText,
    Reason,
    decode,
)
from protocol.core.envelope import OVERHEAD_BYTES, Envelope, Kind, Signable, open_envelope, read_envelope
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import PeerId, RecordId, SwarmId
from protocol.core.limits import (
    KIB,
    MAX_GROUP_SIZE,
    MAX_LEASES_PER_GRANT,
    MAX_PROMPT_TOKENS,
    MAX_TEMPERATURE,
    MAX_WORK_BYTES,
    MIN_TEMPERATURE,
)

TEACH = "/volery/teach/1"
"""The stream between a teacher node and the learner. It works as `protocol.work.WORK` does, with score leases."""

TEACHER = "volery.teacher"
"""An extension of TEACHER_BYTES that names a teacher. In Hello, the node scores with this teacher and generates
nothing. In TellTerms, the learner accepts scores of this teacher."""
TEACHER_BYTES = 32

MAX_SCORE_LEASE_BYTES = MAX_WORK_BYTES - 64 * KIB
MAX_SCORE_RECORD_BYTES = MAX_WORK_BYTES - 64 * KIB
"""One group in a frame, less what surrounds it. The learner scores a larger group itself."""

MIN_SCORE = -10_000.0
"""Smallest score, in nats. A teacher did not draw the tokens, so its log probabilities have no lower bound. A node
raises smaller ones to this value, far below the point where training ignores differences (`[trainer] teacher_clip`)."""

PackedTokens = Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_PROMPT_TOKENS), Packed]
PackedScores = Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_PROMPT_TOKENS)]


class ScoreLease(Signable, frozen=True, kw_only=True):
    """Granted work: score each token of each completion after `prompt`, at `temperature`, with the model whose digest
    is `teacher`. Tokens are packed ids. They include an environment's tokens between turns."""

    KIND: ClassVar[Kind] = Kind.SCORE_LEASE

    id: Bytes16
    peer: PeerText
    teacher: Bytes32
    prompt: PackedTokens
    completions: Annotated[list[PackedTokens], Meta(min_length=1, max_length=MAX_GROUP_SIZE)]
    temperature: Annotated[float, Meta(ge=MIN_TEMPERATURE, le=MAX_TEMPERATURE)]
    issued_ms: Millis
    deadline_ms: Millis


class ScoreRecord(Signable, frozen=True, kw_only=True):
    """A teacher's scores of a leased group: log_softmax(logits / T) of each token of each completion, in order, packed
    as log probabilities are."""

    KIND: ClassVar[Kind] = Kind.SCORES

    lease: Bytes16
    scores: Annotated[list[PackedScores], Meta(min_length=1, max_length=MAX_GROUP_SIZE)]
    cost: CostClaim


class ScoreGrant(Message, frozen=True, kw_only=True, tag="scoring"):
    """Answer to LeaseRequest of a node that sent TEACHER: signed score leases. If there are none, `reason` says why and
    `retry_after_ms` when to ask again."""

    leases: Annotated[
        list[Annotated[bytes, Meta(max_length=MAX_SCORE_LEASE_BYTES + OVERHEAD_BYTES)]],
        Meta(max_length=MAX_LEASES_PER_GRANT),
    ]
    now_ms: Millis
    reason: Reason = ""
    retry_after_ms: Annotated[int, Meta(ge=0, le=600_000)] = 0


@dataclass(frozen=True, kw_only=True)
class SignedScores:
    """A score record whose shape was checked. Its signature was not."""

    raw: bytes
    id: RecordId
    envelope: Envelope
    record: ScoreRecord
    scores: tuple[tuple[float, ...], ...]

    @property
    def author(self) -> PeerId:
        return self.envelope.signer


def open_score_lease(raw: bytes, swarm: SwarmId, *, learner: PeerId) -> ScoreLease:
    """Return the score lease in `raw`. Raise PeerError unless `learner` signed it."""
    envelope = open_envelope(raw, kind=Kind.SCORE_LEASE, swarm=swarm, limit=MAX_SCORE_LEASE_BYTES)
    if envelope.signer != learner:
        raise PeerError(Fault.UNAUTHORISED, f"a score lease signed by {envelope.signer}, which is not the learner")
    lease: ScoreLease = decode(ScoreLease, envelope.payload, MAX_SCORE_LEASE_BYTES)
    return lease


def read_score_record(raw: bytes, swarm: SwarmId) -> SignedScores:
    """Parse a score record and check its shape. The caller verifies the signature, after cheaper checks.

    Raises PeerError.
    """
    envelope = read_envelope(raw, kind=Kind.SCORES, swarm=swarm, limit=MAX_SCORE_RECORD_BYTES)
    record: ScoreRecord = decode(ScoreRecord, envelope.payload, MAX_SCORE_RECORD_BYTES)
    scores = tuple(unpack_scores(one) for one in record.scores)
    return SignedScores(raw=raw, id=RecordId(envelope.digest), envelope=envelope, record=record, scores=scores)


def pack_scores(scores: tuple[float, ...] | list[float]) -> bytes:
    """Pack scores as log probabilities are packed; raise those below MIN_SCORE to it."""
    return np.maximum(np.asarray(scores, LOGPROB_DTYPE), LOGPROB_DTYPE.type(MIN_SCORE)).tobytes()


def unpack_scores(raw: bytes) -> tuple[float, ...]:
    """Unpack what `pack_scores` packed. Raise PeerError(MALFORMED) for a bad length or a value that is no score."""
    if len(raw) % 4:
        raise PeerError(Fault.MALFORMED, f"{len(raw)} bytes of scores are not a multiple of 4")
    values = np.frombuffer(raw, LOGPROB_DTYPE)
    if not bool(((values >= MIN_SCORE) & (values <= MAX_POSITIVE_LOGPROB)).all()):  # written so that NaN fails
        raise PeerError(Fault.MALFORMED, f"a score is not a number from {MIN_SCORE:g} to 0")
    return tuple(values.tolist())
