"""Hold a report as values: one row per peer, and the story of the swarm.

Money is integer millionths of a currency unit, times are seconds. `None` means not known from here, which is not zero.

Invariants:

- Every derived value (rates, costs, shares of judged records) is a property of counted values, so no two numbers of one
  report contradict each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from learner.ledger.reach import ReachFigures
from learner.ledger.rows import TroubleRow
from learner.ledger.troubles import Unable, unable_of
from learner.monitoring.alarms import Change
from learner.monitoring.fruitless_leases import Loop
from learner.provisioning.estimation.learner_time import LearnerTime, summed
from node.config.swarm_config import Mode, mode_of
from node.reports.model.audits import PeerAudits
from node.reports.model.costs import NO_ACCOUNTS, NO_TERMS, Accounts, CostTerms, Reference, cents_per_thousand
from node.reports.model.history import History, PeerHistory, Span, joined
from node.reports.model.presences import Presence
from node.reports.model.reach import PairReport, PeerReach
from node.reports.model.verdict_meanings import BLAMED
from node.state.receipt_rows import PeerTraffic
from protocol.accounting.claims import MICROS, EnergySource, Price, cost_micros, per_thousand_tokens
from protocol.accounting.reputation import Band, Reputation
from protocol.core.ids import LeaseId, PeerId, PolicyVersion, SwarmId
from protocol.trouble import Trouble, TroubleKind
from protocol.work import Rule

SCORES = "scores"
"""The ledger's name for the time of a teacher's engine (`SwarmReport.engine_s`)."""

HERE_MS = 60_000
"""Milliseconds. A peer that was seen this shortly before the end of the ledger was still present: presence is written
every second."""


NO_REACH = ReachFigures(kinds={}, ways={})


class Role(Enum):
    """The role of a peer in the swarm."""

    ROLLOUT = "rollout"
    LEARNER = "learner"


@dataclass(frozen=True, kw_only=True)
class LeaseCounts:
    """How the leases of a peer ended: issued = open + delivered + expired + returned + recalled + lost.

    `recalled`: leases, with `recalled_rollouts` rollouts, that it gave back because the learner no longer needed them.
    `late`: the part of `delivered` that came after the deadline, or after the lease was withdrawn.
    """

    issued: int = 0
    open: int = 0
    delivered: int = 0
    late: int = 0
    expired: int = 0
    returned: int = 0
    recalled: int = 0
    recalled_rollouts: int = 0
    lost: int = 0

    @property
    def in_time(self) -> int:
        return self.delivered - self.late

    @property
    def failed(self) -> int:
        """Leases that ended without being delivered in time. A returned lease counts, since its seeds were known by
        then. A recalled lease is neither failed nor in time.
        """
        return self.late + self.expired + self.returned + self.lost


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The work of a teacher node: groups with admitted scores, their tokens, and groups that were rejected."""

    groups: int = 0
    tokens: int = 0
    refused: int = 0


@dataclass(frozen=True, kw_only=True)
class PeerReport:
    """One peer's work.

    `verdicts`: its judged records, by the rule that decided. `tokens`: tokens that count for it, of admitted records
    and of groups that only a restart of the learner orphaned. `trained` and `dropped`: admitted records that went into
    a batch, and those that never will because they grew too old before one formed, or teach nothing.

    `active_s` and `standby_s`: seconds present as an active peer, and on standby, which costs nothing. `engine_s`:
    seconds that its engine generated, as it reports. `bytes_up` and `bytes_down`: as it reports. `bytes_relayed`: bytes
    that others signed to have received from it and that the learner credited.

    `reputation`: None if it is not known, and for a learner, which has none. `audits`: None if it was never audited.
    `presences`: when it was present, what it moved, and the joules of its machine as it reports them. `reach`: how
    others reach it and how it connected to them, as it reports; None if it does not. `scored`: what a teacher node
    scored; None for others.
    """

    peer: PeerId
    name: str
    role: Role
    engine: str
    machine: str
    price: Price
    leases: LeaseCounts
    verdicts: Mapping[Rule, int]
    tokens: int
    trained: int | None
    dropped: int | None
    share: float | None
    bytes_up: int
    bytes_down: int
    bytes_relayed: int | None
    active_s: float
    standby_s: float
    engine_s: float
    first_seen_ms: int
    last_seen_ms: int
    reputation: Reputation | None
    audits: PeerAudits | None = None
    presences: tuple[Presence, ...] = ()
    reach: PeerReach | None = None
    scored: Scored | None = None

    @property
    def generates(self) -> bool:
        """Whether it is a rollout node that generates, and not only a teacher."""
        return self.role is Role.ROLLOUT and (self.scored is None or self.judged > 0)

    @property
    def does(self) -> str:
        """Its role in words."""
        if self.scored is None:
            return self.role.value
        return "rollout, teacher" if self.generates else "teacher"

    @property
    def worked(self) -> str:
        """The work of its engine during `engine_s`, in words."""
        if self.scored is None:
            return "generated"
        return "generated and scored" if self.generates else "scored"

    @property
    def judged(self) -> int:
        return sum(self.verdicts.values())

    @property
    def admitted(self) -> int:
        return self.verdicts.get(Rule.ADMITTED, 0)

    @property
    def rejected(self) -> int:
        return self.judged - self.admitted

    @property
    def blamed(self) -> int:
        """Records that were rejected for something that a working node never does."""
        return sum(number for rule, number in self.verdicts.items() if rule in BLAMED)

    @property
    def admitted_per_s(self) -> float | None:
        """Admitted rollouts per second as an active peer."""
        return self.admitted / self.active_s if self.active_s > 0 and self.role is Role.ROLLOUT else None

    @property
    def hours_active(self) -> float:
        return self.active_s / 3600

    @property
    def hours_standby(self) -> float:
        return self.standby_s / 3600

    @property
    def price_per_hour(self) -> float:
        """The price that it asks, in whole units of its currency."""
        return self.price.micros_per_hour / MICROS

    @property
    def cost_micros(self) -> int:
        return cost_micros(self.active_s, self.price)

    @property
    def cost(self) -> float:
        """Hours active times price, in whole units of its currency."""
        return self.cost_micros / MICROS

    @property
    def cost_per_1000_tokens(self) -> float | None:
        """In whole units of its currency; None while nothing was admitted."""
        return per_thousand_tokens(self.cost_micros, self.tokens)

    @property
    def cents_per_1000_tokens(self) -> float | None:
        """The same in hundredths of a unit."""
        return cents_per_thousand(self.cost_micros, self.tokens)

    @property
    def energy(self) -> Mapping[EnergySource, float]:
        """Joules by source, of the presences in which they are plausible."""
        found: defaultdict[EnergySource, float] = defaultdict(float)
        for presence in self.presences:
            for source, joules in presence.energy.items() if presence.is_believed else ():
                found[source] += joules
        return {source: found[source] for source in EnergySource if source in found}

    @property
    def joules(self) -> float | None:
        """Joules of all sources; None if it never reported any that are plausible."""
        return sum(self.energy.values()) if self.energy else None

    @property
    def joules_disbelieved(self) -> float:
        """Reported joules that exceed what any machine draws."""
        return sum(sum(presence.energy.values()) for presence in self.presences if not presence.is_believed)

    def against(self, reference: Reference | None, currency: str) -> float | None:
        """Return its cost per token as a fraction of that of the reference, whose price is in `currency`; None if they
        cannot be compared.
        """
        mine = self.cost_per_1000_tokens
        if reference is None or mine is None or not reference.per_1000_tokens:
            return None
        return mine / reference.per_1000_tokens if self.price.currency == currency or not mine else None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Accuracy of a version on `prompts` held-out prompts: of the greedy completion, and of `samples` of each prompt.

    `pass_at`: pass@k by k. `tasks`: by task of a mixture, its metrics: "greedy", "sampled", "pass@8". `named`: "greedy"
    and "sampled" of each reward that has a name. `survives`: no restart removed the version from the chain.
    """

    version: PolicyVersion
    at_s: float
    prompts: int
    greedy: float
    sampled: float
    survives: bool
    samples: int = 1
    pass_at: Mapping[int, float] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    named: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A published version: when, its size, and how much of it was new since the one before."""

    version: PolicyVersion
    at_s: float
    total_bytes: int
    new_bytes: int


@dataclass(frozen=True, kw_only=True)
class Step:
    """One training step of the surviving chain, at the time it ended. `reward`: mean over its rollouts. `metrics`: the
    trainer's metrics, flat, and `by_lag` (see `learner.ledger.rows.StepRow`).
    """

    step: int
    incarnation: int
    at_s: float
    waited_s: float
    train_s: float
    rollouts: int
    tokens: int
    reward: float
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """How the learner spent its time until `until_s`, since the stretch before."""

    until_s: float
    time: LearnerTime


@dataclass(frozen=True, kw_only=True)
class Incarnation:
    """One start of the learner: the step from which it continued, and when."""

    number: int
    base: int
    at_s: float


@dataclass(frozen=True, kw_only=True)
class KeptCheckpoint:
    """A kept checkpoint: its training step, since when, and the scores of a version on held-out prompts. `evaluated` is
    that version's step, this one or shortly before; None if none was evaluated."""

    step: int
    incarnation: int
    at_s: float
    evaluated: int | None = None
    greedy: float | None = None
    sampled: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which peers were to be active from `at_s` on, their price per hour, kappa, and the reasons for the change."""

    at_s: float
    kappa: int
    active: tuple[PeerId, ...]
    micros_per_hour: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SwarmReport:
    """The whole swarm: learner first, then peers by admitted records. `at_s` everywhere counts from `started_ms`.

    The report covers the time until `ended_ms`, the last moment in the ledger: a run that ended yesterday reads the
    same tomorrow. `staleness`: the window S, if given. `lags`: trained rollouts by their lag when the batch formed.
    `uninformative`: dropped records of groups whose rewards are all equal. `later_turns`: admitted records that
    continue an episode that another began. `stretches`: how the learner spent its time, in order. `engine_s`: seconds
    of an engine's use for verification, by purpose ("audits", "choices").

    `alarms`: raised and cleared, oldest first. `history`: present if it was requested. `terms`: what costs are compared
    with. `accounts`: the same costs by version, start and day. `checkpoints`: the kept ones, oldest first. `troubles`:
    what peers reported that they cannot do, the newest of each kind. `fruitless`: how the leases since the last record
    ended, if none has brought one for long. `reach` counts how nodes are reached, and how `pairs` of them connected.
    `bytes_carried`: bytes over circuits through the learner.
    """

    swarm: SwarmId
    started_ms: int
    ended_ms: int
    staleness: int | None
    peers: tuple[PeerReport, ...]
    incarnations: tuple[Incarnation, ...]
    versions: tuple[Publication, ...]
    steps: tuple[Step, ...]
    evaluations: tuple[Evaluation, ...]
    plans: tuple[Plan, ...]
    lags: Mapping[int, int]
    stretches: tuple[Stretch, ...] = ()
    uninformative: int = 0
    alarms: tuple[Change, ...] = ()
    later_turns: int = 0
    history: History | None = None
    terms: CostTerms = NO_TERMS
    accounts: Accounts = NO_ACCOUNTS
    engine_s: Mapping[str, float] = field(default_factory=dict)
    checkpoints: tuple[KeptCheckpoint, ...] = ()
    troubles: tuple[TroubleRow, ...] = ()
    fruitless: Loop | None = None
    reach: ReachFigures = NO_REACH
    pairs: tuple[PairReport, ...] = ()
    bytes_carried: int = 0

    @property
    def unable(self) -> Unable:
        """The nodes that could not work with the newest version at the end of the ledger, and why. They were present
        then, or had left with this trouble."""
        newest = self.versions[-1].version if self.versions else None
        found = {
            row.peer: Trouble(TroubleKind(row.kind), row.times, row.reason, row.version)
            for row in reversed(self.troubles)
            if row.ended_ms is None and (newest is None or row.version == newest)
        }
        here = {peer.peer for peer in self.rollout_peers if peer.last_seen_ms >= self.ended_ms - HERE_MS}
        return unable_of(found, len(here | found.keys()))

    @property
    def verifying_share(self) -> float | None:
        """Fraction of the run in which an engine verified; None if it never did."""
        verified = [seconds for what, seconds in self.engine_s.items() if what != SCORES]
        return sum(verified) / self.wall_s if verified and self.wall_s > 0 else None

    @property
    def teacher_share(self) -> float | None:
        """Fraction of the run in which a teacher scored completions; None if there was no teacher."""
        seconds = self.engine_s.get(SCORES)
        return seconds / self.wall_s if seconds is not None and self.wall_s > 0 else None

    @property
    def wall_s(self) -> float:
        return (self.ended_ms - self.started_ms) / 1000

    @property
    def rollout_peers(self) -> tuple[PeerReport, ...]:
        return tuple(peer for peer in self.peers if peer.role is Role.ROLLOUT)

    @property
    def banned(self) -> tuple[PeerReport, ...]:
        """The banned peers, in the order of their bans."""
        found = [(peer.audits.banned_at_s or 0.0, peer) for peer in self.peers if peer.audits and peer.audits.banned]
        return tuple(peer for _, peer in sorted(found, key=lambda one: one[0]))

    @property
    def num_quarantined(self) -> int:
        """Number of peers with active soft strikes that are not banned."""
        bands = [peer.reputation.band for peer in self.peers if peer.reputation is not None]
        return bands.count(Band.QUARANTINED)

    @property
    def verdicts(self) -> Mapping[Rule, int]:
        """Judged records by rule, in the order in which the rules are checked."""
        total: Counter[Rule] = Counter()
        for peer in self.peers:
            total.update(peer.verdicts)
        return {rule: total[rule] for rule in Rule if total[rule]}

    @property
    def admitted(self) -> int:
        return sum(peer.admitted for peer in self.peers)

    @property
    def rejected(self) -> int:
        return sum(peer.rejected for peer in self.peers)

    @property
    def trained(self) -> int:
        return sum(self.lags.values())

    @property
    def dropped(self) -> int:
        return sum(peer.dropped or 0 for peer in self.peers)

    @property
    def tokens(self) -> int:
        return sum(peer.tokens for peer in self.peers)

    @property
    def costs(self) -> Mapping[str, int]:
        """Millionths by currency; currencies in which nothing is owed are left out."""
        return _costs_of(self.peers)

    @property
    def rollout_costs(self) -> Mapping[str, int]:
        """The part of `costs` that is for rollout peers."""
        return _costs_of(self.rollout_peers)

    @property
    def learner_costs(self) -> Mapping[str, int]:
        """The part of `costs` that is for learners, one for each currency, even if it is nothing."""
        return {peer.price.currency: peer.cost_micros for peer in self.peers if peer.role is Role.LEARNER}

    @property
    def joules(self) -> float | None:
        """Plausible joules of all machines; None if none were reported."""
        told = [peer.joules for peer in self.peers if peer.joules is not None]
        return sum(told) if told else None

    @property
    def bytes_up(self) -> int:
        return sum(peer.bytes_up for peer in self.peers)

    @property
    def bytes_down(self) -> int:
        return sum(peer.bytes_down for peer in self.peers)

    @property
    def recalled_rollouts(self) -> int:
        return sum(peer.leases.recalled_rollouts for peer in self.peers)

    @property
    def bytes_relayed(self) -> int:
        return sum(peer.bytes_relayed or 0 for peer in self.peers)

    @cached_property
    def learner_time(self) -> LearnerTime:
        """How the learner spent its time, including steps that a restart removed."""
        return summed(stretch.time for stretch in self.stretches)

    @property
    def away_s(self) -> float:
        """Seconds in which no learner ran, or none that recorded how it spent its time."""
        return max(0.0, self.wall_s - self.learner_time.wall_s)

    @property
    def utilisation(self) -> float | None:
        """Training time over the time that the learner ran; None if it was not recorded."""
        return self.learner_time.utilisation

    @property
    def mode(self) -> Mode | None:
        """The mode of the run, by S; None if S was not given."""
        return None if self.staleness is None else mode_of(self.staleness)

    @property
    def bubble(self) -> float | None:
        """ECHO-2's bubble: the share of the time of training steps spent waiting for rollouts; None if not recorded."""
        return self.learner_time.bubble

    @property
    def mean_train_s(self) -> float | None:
        """T_train: mean seconds of a training step; None before the first."""
        return sum(step.train_s for step in self.steps) / len(self.steps) if self.steps else None

    @property
    def mean_waited_s(self) -> float | None:
        """Mean seconds that a training step waited for its batch; the first also waits for a peer to join."""
        return sum(step.waited_s for step in self.steps) / len(self.steps) if self.steps else None

    @property
    def mean_step_s(self) -> float | None:
        """Mean seconds from the end of one training step to the end of the next: waiting, training, publishing and
        restarts; None before the second.
        """
        if len(self.steps) < 2:
            return None
        return (self.steps[-1].at_s - self.steps[0].at_s) / (len(self.steps) - 1)

    @property
    def weight_bytes(self) -> int:
        """Size of the newest full version; 0 before the first."""
        return self.versions[-1].total_bytes if self.versions else 0

    @property
    def planned_spans(self) -> Mapping[PeerId, tuple[Span, ...]]:
        """When the plans wanted each peer to be active, in seconds, in the order in which peers came first."""
        found: dict[PeerId, list[Span]] = {}
        ends = [*(plan.at_s for plan in self.plans[1:]), self.wall_s]
        for plan, end_s in zip(self.plans, ends, strict=False):
            for peer in plan.active:
                found.setdefault(peer, []).append((plan.at_s, end_s))
        return {peer: joined(spans, gap_s=0.0) for peer, spans in found.items()}

    @property
    def surviving_evaluations(self) -> tuple[Evaluation, ...]:
        """In order of time; the first and the last show what was learned."""
        return tuple(evaluation for evaluation in self.evaluations if evaluation.survives)


def _costs_of(peers: Iterable[PeerReport]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for peer in peers:
        total[peer.price.currency] += peer.cost_micros
    return {currency: micros for currency, micros in sorted(total.items()) if micros}


@dataclass(frozen=True, kw_only=True)
class RejectedRecord:
    """One of our records that was not counted, in the learner's own words."""

    lease: LeaseId
    index: int
    rule: Rule
    detail: str
    at_ms: int


@dataclass(frozen=True, kw_only=True)
class OwnReport:
    """A node's own work, from the receipts that it keeps: its row at the learner, as far as it is known here.

    `oldest` and `newest`: the learner's versions when it judged. `refused`: the latest rejected records, newest first.
    `traffic`: with the peers with which most was exchanged. `spans` (when it was in the swarm) and `history` are
    present if they were requested; their times are seconds since the node was first seen. `terms`: the owner's price of
    a kWh. `reputed_ms`: when the learner stated the reputation; None if it has not yet. `sent_bytes`,
    `received_bytes`: all data in the sessions that counted it; None if none did.
    """

    peer: PeerReport
    receipts: int
    oldest: PolicyVersion | None
    newest: PolicyVersion | None
    refused: tuple[RejectedRecord, ...]
    traffic: tuple[PeerTraffic, ...]
    reputed_ms: int | None = None
    sent_bytes: int | None = None
    received_bytes: int | None = None
    spans: tuple[Span, ...] = ()
    history: PeerHistory | None = None
    terms: CostTerms = NO_TERMS

    @property
    def peers(self) -> tuple[PeerReport, ...]:
        """The peers, as `SwarmReport` has them."""
        return (self.peer,)
