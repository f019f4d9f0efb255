"""Define the values that are written to the ledger and read from it.

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
    """A peer's own description when it joined."""

    peer: PeerId
    name: str
    role: str
    engine: str
    machine: str
    micros_per_hour: int
    currency: str


@dataclass(frozen=True, kw_only=True)
class LeaseRow:
    """One lease. `prompt` is the task's index of its problem. `place` names the episodes that it continues, if any.
    `started` is the version that it was begun with, if the peer reported that."""

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
    """One lease by which a teacher scores the group that `root` opened. `prompt` is the task's index of its problem."""

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
    """The work of one teacher so far: groups whose scores are admitted, their tokens, groups whose scores were rejected
    (at once or later), and the seconds that its engine took for all of them. Every teacher that was ever granted a
    lease has one."""

    peer: PeerId
    groups: int
    refused: int
    tokens: int
    engine_s: float


@dataclass(frozen=True, kw_only=True)
class RecordRow:
    """One judged record. `version` is its oldest behaviour version. Only admitted records have an `envelope`.
    `cut_off`: it is the last record of an episode that did not reach its end. `parts`: the parts of its reward."""

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
    """One admitted record that waits for a training step: its problem, and its place in an episode if it is not a first
    turn. `reward` is None if the episode continued after it. `cut_off` and `parts` are as in RecordRow."""

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
    """The records of one lease of `peer` that are admitted and that no step has consumed: (record id, index) of
    each."""

    lease: LeaseId
    peer: PeerId
    records: tuple[tuple[RecordId, int], ...]


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One training step: `step` is the version that it produced; `reward` is the mean over the rollouts that it trained
    on.

    `metrics` are the trainer's numbers, flat, and `by_lag`: for each lag (in digits), the numbers of its tokens and the
    mean `reward` of its rollouts.
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
    """The learner's use of its time from `from_ms` to `until_ms`, while it was at training step `step`."""

    from_ms: int
    until_ms: int
    step: int
    time: LearnerTime


@dataclass(frozen=True, kw_only=True)
class PresenceRow:
    """The state of a peer's session: `presence` is the id that `peer_joined` gave, `reason` why it ended, if it did.

    The amounts are those of this session: chunk bytes moved, seconds generating, seconds on standby, joules by source.
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
    """A plan: the active peers from `at_ms` on, their price per hour, the publication period, and the reasons for
    changes."""

    at_ms: int
    kappa: int
    active: tuple[PeerId, ...]
    micros_per_hour: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CheckpointRow:
    """A checkpoint to continue from: the trainer's directory (its name), the curriculum's state at that step, and how
    many leases and records the ledger had then."""

    step: int
    incarnation: int
    directory: str
    state: Mapping[str, Any]
    leases: int = 0
    records: int = 0


@dataclass(frozen=True, kw_only=True)
class TallyRow:
    """The signed tally of the records that trained a version: those of the steps after `after`, up to the version's
    own."""

    version: PolicyVersion
    after: int
    envelope: bytes


@dataclass(frozen=True, kw_only=True)
class SelectionRow:
    """The check of one lease for selective delivery, after the learner regenerated its group
    (`learner.trust.selection_test`).

    `outcome` is what the peer may have done. `theirs` has the values of the peer's completions, and `ours` those of the
    learner's. `withheld` is the share of its recent groups that the peer had withheld. `heard` counts the peer's checks
    up to this one, and `log_wealth` is the evidence from all of them.
    """

    lease: LeaseId
    peer: PeerId
    at_ms: int
    outcome: DeliveryOutcome
    withheld: float
    theirs: tuple[CompletionValue, ...]
    ours: tuple[CompletionValue, ...]
    heard: int
    log_wealth: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """The result of auditing one lease. `counts` has, for each margin, how many of how many exceeded it; `worst` is the
    largest gap in nats. `evidence` is the logarithm of the evidence against the peer after it. `detail` says what was
    measured, if it failed."""

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
        """Return what the sequential test takes."""
        return Audited(tokens=self.tokens, counts=self.counts)


@dataclass(frozen=True, kw_only=True)
class TroubleRow:
    """A trouble that a peer reports. `version` is set if it is about one; `times` is how often in a row it failed;
    `reason` is harmless text. `since_ms` is when the peer first said so, `ended_ms` when that ended, None as long as it
    lasts. The newest of each peer and kind is kept."""

    peer: PeerId
    kind: str
    version: PolicyVersion | None
    times: int
    reason: str
    since_ms: int
    ended_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class ReachRow:
    """How a peer says that others reach it, why it believes so, and since when."""

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
    """Bytes that circuits through the learner have carried between two peers, in both directions together."""

    one: PeerId
    other: PeerId
    num_bytes: int
