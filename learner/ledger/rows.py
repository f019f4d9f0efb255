"""What is written to the ledger and read from it, as values.

Times are milliseconds since 1970 on the learner's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from learner.provisioning.estimation.learner_time import LearnerTime
from learner.rollouts.admission import EpisodeSlots
from learner.rollouts.reward_parts import Parts
from learner.trust.ban_evidence import Audited, Counted
from learner.trust.selection_test import CompletionValue, DeliveryOutcome
from protocol.accounting.claims import EnergySource
from protocol.core.ids import LeaseId, PeerId, PolicyVersion, RecordId
from protocol.reach import ReachKind, Way
from protocol.work import Rule


@dataclass(frozen=True, kw_only=True)
class PeerRow:
    """What a peer said of itself when it joined."""

    peer: PeerId
    name: str
    role: str
    engine: str
    machine: str
    micros_per_hour: int
    currency: str


@dataclass(frozen=True, kw_only=True)
class LeaseRow:
    """One lease. `prompt` is the task's index of its prompt; `place` the episodes that it goes on with, if any;
    `started` the version that it was begun with, if that was said.
    """

    lease: LeaseId
    peer: PeerId
    task: str
    prompt: int
    rollouts: int
    issued_ms: int
    deadline_ms: int
    envelope: bytes
    place: EpisodeSlots | None = None
    started: PolicyVersion | None = None


@dataclass(frozen=True, kw_only=True)
class TeacherLeaseRow:
    """One lease by which a teacher scores the group that `root` opened. `prompt` is the task's index of its prompt."""

    lease: LeaseId
    peer: PeerId
    root: LeaseId
    task: str
    prompt: int
    completions: int
    tokens: int
    issued_ms: int
    deadline_ms: int
    envelope: bytes


@dataclass(frozen=True, kw_only=True)
class TeacherRow:
    """What one teacher that was ever leased something has scored so far: groups whose scores were admitted and are not
    refused since, their tokens, groups that were refused, seconds of its engine for all of them."""

    peer: PeerId
    groups: int
    refused: int
    tokens: int
    engine_s: float


@dataclass(frozen=True, kw_only=True)
class RecordRow:
    """One judged record. `version` is its oldest behaviour version; `envelope` is there for admitted records only.
    `cut_off`: an episode ended with it that did not come to its end. `parts`: what its reward is made of.
    """

    record: RecordId
    lease: LeaseId
    index: int
    peer: PeerId
    rule: Rule
    reward: float | None
    tokens: int
    version: PolicyVersion
    lag: int
    received_ms: int
    generation_ms: int
    detail: str
    envelope: bytes | None
    cut_off: bool = False
    parts: Parts = ()


@dataclass(frozen=True, kw_only=True)
class UnconsumedRow:
    """One admitted record that waits to be trained on: of which prompt, and where in which episode if not its first
    turn. `reward` is None where the episode went on; `cut_off` and `parts` as in RecordRow.
    """

    prompt: int
    lease: LeaseId
    reward: float | None
    peer: PeerId
    envelope: bytes
    place: EpisodeSlots | None
    cut_off: bool = False
    parts: Parts = ()


@dataclass(frozen=True, kw_only=True)
class AdmittedRow:
    """What of one lease of `peer` is admitted, and no step has taken: (record id, index) of each."""

    lease: LeaseId
    peer: PeerId
    records: tuple[tuple[RecordId, int], ...]


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One training step: `step` is the version it produced; `reward` the mean over what it was trained on.

    `metrics` are the figures that the trainer replied, flat, and `by_lag`: by the lag in digits, those of its tokens
    and the mean `reward` of its rollouts.
    """

    step: int
    incarnation: int
    began_ms: int
    waited_s: float
    train_s: float
    rollouts: int
    tokens: int
    reward: float
    metrics: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TimeRow:
    """What the learner's time went into from `from_ms` to `until_ms`, while it was at training step `step`."""

    from_ms: int
    until_ms: int
    step: int
    time: LearnerTime


@dataclass(frozen=True, kw_only=True)
class StayRow:
    """How a stay of a peer stands: `presence` is the id that `peer_joined` gave, `reason` why it ended, if it did.

    The amounts are those of this stay: chunk bytes moved, seconds the engine generated, seconds it stood by, joules by
    source.
    """

    presence: int
    bytes_up: int
    bytes_down: int
    engine_s: float = 0.0
    standby_s: float = 0.0
    reason: str = ""
    energy: Mapping[EnergySource, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """Who was to be on from `at_ms` on, at which price per hour, how often versions were published, what changed."""

    at_ms: int
    kappa: int
    active: tuple[PeerId, ...]
    micros_per_hour: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CheckpointRow:
    """A durable state to go on from: the trainer's directory (its name), the curriculum's state at that step, and how
    many leases and records the ledger had then.
    """

    step: int
    incarnation: int
    directory: str
    state: Mapping[str, Any]
    leases: int = 0
    records: int = 0


@dataclass(frozen=True, kw_only=True)
class TallyRow:
    """What was signed of the records that trained a version: those of the steps after `after`, up to its own."""

    version: PolicyVersion
    after: int
    envelope: bytes


@dataclass(frozen=True, kw_only=True)
class ChoiceRow:
    """A lease of which its peer may have made a `choice`, and which was drawn by the learner: what the completions of
    the peer's seeds are worth, and `ours` beside them (`learner.trust.selection_test`); of its groups the
    peer had `withheld` that share of late; so many were `heard` with it, and `log_wealth` is what they add up to."""

    lease: LeaseId
    peer: PeerId
    at_ms: int
    choice: DeliveryOutcome
    withheld: float
    theirs: tuple[CompletionValue, ...]
    ours: tuple[CompletionValue, ...]
    heard: int
    log_wealth: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """What the audit of one lease found: of `tokens` so many beyond each margin (`counts`), the `worst` by so many
    nats; `evidence` is the logarithm of that against the peer after it, `detail` what was measured where it failed."""

    lease: LeaseId
    peer: PeerId
    at_ms: int
    tokens: int
    counts: tuple[Counted, ...]
    worst: float
    evidence: float
    passed: bool
    detail: str = ""

    @property
    def counted(self) -> Audited:
        """What the sequential test takes."""
        return Audited(tokens=self.tokens, counts=self.counts)


@dataclass(frozen=True, kw_only=True)
class TroubleRow:
    """What a peer says that it cannot do: its kind, the version if it is about one, how often in a row it failed, and
    why, harmless text; since when it said so, and until when, None while it does. The newest of each peer and kind is
    kept.
    """

    peer: PeerId
    kind: str
    version: PolicyVersion | None
    times: int
    reason: str
    since_ms: int
    ended_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class ReachRow:
    """How a peer says that others reach it, why that is believed, and since when it is reached so."""

    peer: PeerId
    kind: ReachKind
    why: str
    since_ms: int


@dataclass(frozen=True, kw_only=True)
class MetRow:
    """How `peer` says that it and `other` came together, and when it first said so."""

    peer: PeerId
    other: PeerId
    way: Way
    since_ms: int


@dataclass(frozen=True, kw_only=True)
class CarriedRow:
    """Bytes that circuits through the learner have carried between two peers, both ways together."""

    one: PeerId
    other: PeerId
    num_bytes: int
