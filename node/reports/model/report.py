"""What a report says, as values: one row per peer, and the swarm's own story.

What always holds: everything derived (rates, costs, shares of judged records) is a property of what was counted, so
that no two figures of one report can contradict each other. Money is integer millionths of a currency unit, times are
seconds; `None` means not known from here, which is not zero.
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
from node.reports.model.reach import PairReport, PeerReach
from node.reports.model.stays import Stay
from node.reports.model.verdict_meanings import BLAMED
from node.state.receipt_rows import PeerTraffic
from protocol.accounting.claims import MICROS, EnergySource, Price, cost_micros, per_thousand_tokens
from protocol.accounting.reputation import Band, Reputation
from protocol.core.ids import LeaseId, PeerId, PolicyVersion, SwarmId
from protocol.trouble import Trouble, TroubleKind
from protocol.work import Rule

SCORES = "scores"
"""What the ledger calls the time of a teacher's engine (`SwarmReport.engine_s`)."""

HERE_MS = 60_000
"""Who was heard of so shortly before the end of the ledger was here then: presence is written every second."""


NO_REACH = ReachFigures(kinds={}, ways={})


class Role(Enum):
    """What a peer does in the swarm."""

    ROLLOUT = "rollout"
    LEARNER = "learner"


@dataclass(frozen=True, kw_only=True)
class LeaseCounts:
    """What became of the leases a peer was given: issued = open + delivered + expired + returned + recalled + lost.

    `recalled` ones, of `recalled_rollouts`, it gave back because the learner had no use for them any more.
    `late` are those of `delivered` that came back after their deadline, or after they had been withdrawn.
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
        """Leases that ended otherwise. A lease returned in good order is one: its seeds were known by then.

        One that was recalled is neither this nor in time.
        """
        return self.late + self.expired + self.returned + self.lost


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What a teacher node scored: groups whose scores were admitted, their tokens, and groups that were refused."""

    groups: int = 0
    tokens: int = 0
    refused: int = 0


@dataclass(frozen=True, kw_only=True)
class PeerReport:
    """One peer's work. `verdicts` counts its judged records by the rule that decided, `tokens` those that count
    for it: of admitted records, and of groups that only a restart of the learner orphaned.

    `trained` and `dropped` are how many of the admitted records went into a batch, or never will: they grew too old
    before one formed, or teach nothing.
    `active_s` is how long it was present and on, `standby_s` how long it stood by, which costs nothing; `engine_s` how
    long its engine says that it generated. `bytes_up` and
    `bytes_down` are its own word, `bytes_relayed` what others signed to have had of it and the learner credited.
    `audits` is what was found of it, None where nobody looked; `reputation` None where it is not known, and of a
    learner, which has none. `stays` are when it was here, with what it moved and the
    joules that it says its machine took then. `reach`: how others reach it and how it met them, as it says; None where
    it does not. `scored`: what a teacher node scored, None of others.
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
    stays: tuple[Stay, ...] = ()
    reach: PeerReach | None = None
    scored: Scored | None = None

    @property
    def generates(self) -> bool:
        """Whether it is a rollout node, and no teacher that never generated anything."""
        return self.role is Role.ROLLOUT and (self.scored is None or self.judged > 0)

    @property
    def does(self) -> str:
        """Its role in words."""
        if self.scored is None:
            return self.role.value
        return "rollout, teacher" if self.generates else "teacher"

    @property
    def worked(self) -> str:
        """What its engine did for `engine_s`, in words."""
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
        """Records refused for something that a working node never does."""
        return sum(number for rule, number in self.verdicts.items() if rule in BLAMED)

    @property
    def admitted_per_s(self) -> float | None:
        """Admitted rollouts per second of presence."""
        return self.admitted / self.active_s if self.active_s > 0 and self.role is Role.ROLLOUT else None

    @property
    def hours_active(self) -> float:
        return self.active_s / 3600

    @property
    def hours_standby(self) -> float:
        return self.standby_s / 3600

    @property
    def price_per_hour(self) -> float:
        """What it asks, in whole units of its currency."""
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
        """The same in hundredths of that."""
        return cents_per_thousand(self.cost_micros, self.tokens)

    @property
    def energy(self) -> Mapping[EnergySource, float]:
        """Joules by source, those of stays in which they are believed."""
        found: defaultdict[EnergySource, float] = defaultdict(float)
        for stay in self.stays:
            for source, joules in stay.energy.items() if stay.is_believed else ():
                found[source] += joules
        return {source: found[source] for source in EnergySource if source in found}

    @property
    def joules(self) -> float | None:
        """Of all sources; None where it never told any that are believed."""
        return sum(self.energy.values()) if self.energy else None

    @property
    def joules_disbelieved(self) -> float:
        """What else it told: more than any machine draws."""
        return sum(sum(stay.energy.values()) for stay in self.stays if not stay.is_believed)

    def against(self, reference: Reference | None, currency: str) -> float | None:
        """Its cost per token as a share of that of the reference, whose price is in `currency`; None where they cannot
        be compared.
        """
        mine = self.cost_per_1000_tokens
        if reference is None or mine is None or not reference.per_1000_tokens:
            return None
        return mine / reference.per_1000_tokens if self.price.currency == currency or not mine else None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Accuracy of a version on `prompts` held-out prompts, of the greedy completion and of `samples` of each; pass@k by
    k, and by task what was found of each of a mixture, by metric: "greedy", "sampled", "pass@8". `named`: "greedy" and
    "sampled" of each reward that has a name. `survives`: no restart cut it off the chain.
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
    """A published version: when, how large, and how much of it was new since the one before."""

    version: PolicyVersion
    at_s: float
    total_bytes: int
    new_bytes: int


@dataclass(frozen=True, kw_only=True)
class Step:
    """One training step of the surviving chain, at the time it ended; `reward` is the mean over its rollouts, `metrics`
    are the trainer's figures, flat, and `by_lag` (see `learner.ledger.rows.StepRow`).
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
    """What the learner's time went into until `until_s`, since the stretch before."""

    until_s: float
    time: LearnerTime


@dataclass(frozen=True, kw_only=True)
class Incarnation:
    """One start of the learner: from which step it went on, and when."""

    number: int
    base: int
    at_s: float


@dataclass(frozen=True, kw_only=True)
class KeptCheckpoint:
    """A durable state that is kept: of which training step, since when, and what that is worth on held-out prompts:
    the scores of the version of step `evaluated`, this one or one shortly before it. None where none was evaluated."""

    step: int
    incarnation: int
    at_s: float
    evaluated: int | None = None
    greedy: float | None = None
    sampled: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who was to be on from when on, for how much an hour, how often versions were published, and what changed."""

    at_s: float
    kappa: int
    active: tuple[PeerId, ...]
    micros_per_hour: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SwarmReport:
    """The whole swarm, learner first, then peers by admitted records. `at_s` everywhere counts from `started_ms`.

    `lags` counts trained rollouts by their lag when the batch formed. The report speaks of the time until `ended_ms`,
    the last moment the ledger knows of: a run that ended yesterday reads the same tomorrow. `staleness` is the window
    S, when told. `uninformative` of the dropped records are of groups whose rewards are all equal; `later_turns` of
    the admitted ones go on with an episode that another began. `alarms` are those that were raised and cleared,
    oldest first. `history` is there where it was asked for. `terms` are what costs are held against, `accounts` the
    same costs by version, start and day. `stretches` tell what the learner's time went into, in order. `engine_s`:
    seconds that an engine was used to verify, by what for ("audits", "choices"). `checkpoints` are those that are
    kept, from the oldest on. `troubles` are what peers said that they cannot do, the newest of each kind; `fruitless`
    how the leases ended that came since the last record, where none has brought one for long. `reach` counts how nodes
    are reached, and how `pairs` of them met; `bytes_carried` went over circuits through the learner.
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
        """Which nodes could not work with the newest version when the ledger was last written to, and why: of those
        who were here then, and of those who had left with that."""
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
        """Share of the time in which the engine verified; None where it never did."""
        verified = [seconds for what, seconds in self.engine_s.items() if what != SCORES]
        return sum(verified) / self.wall_s if verified and self.wall_s > 0 else None

    @property
    def teacher_share(self) -> float | None:
        """Share of the time in which a teacher scored what was generated; None where there was none."""
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
        """In the order in which they were."""
        found = [(peer.audits.banned_at_s or 0.0, peer) for peer in self.peers if peer.audits and peer.audits.banned]
        return tuple(peer for _, peer in sorted(found, key=lambda one: one[0]))

    @property
    def num_quarantined(self) -> int:
        """Who has soft strikes that stand, and is not banned."""
        bands = [peer.reputation.band for peer in self.peers if peer.reputation is not None]
        return bands.count(Band.QUARANTINED)

    @property
    def verdicts(self) -> Mapping[Rule, int]:
        """Judged records by rule, rules in the order in which they are asked."""
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
        """Of these what rollout peers cost."""
        return _costs_of(self.rollout_peers)

    @property
    def learner_costs(self) -> Mapping[str, int]:
        """Of these what learners cost, of whom each currency has one; also where that is nothing."""
        return {peer.price.currency: peer.cost_micros for peer in self.peers if peer.role is Role.LEARNER}

    @property
    def joules(self) -> float | None:
        """What all machines took, as far as it is told and believed; None where nothing is."""
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
        """What the learner's time went into, steps that a restart cut off included."""
        return summed(stretch.time for stretch in self.stretches)

    @property
    def away_s(self) -> float:
        """How long no learner ran, or none that lived to say what it did."""
        return max(0.0, self.wall_s - self.learner_time.wall_s)

    @property
    def utilisation(self) -> float | None:
        """Training over the time that the learner ran; None where it is not told."""
        return self.learner_time.utilisation

    @property
    def mode(self) -> Mode | None:
        """What S says of the run; None where S was not told."""
        return None if self.staleness is None else mode_of(self.staleness)

    @property
    def bubble(self) -> float | None:
        """ECHO-2's: of the time of training steps, what the learner waited for rollouts; None where it is not told."""
        return self.learner_time.bubble

    @property
    def mean_train_s(self) -> float | None:
        """T_train: seconds that a training step took, on average; None before the first."""
        return sum(step.train_s for step in self.steps) / len(self.steps) if self.steps else None

    @property
    def mean_waited_s(self) -> float | None:
        """Seconds that a training step waited for its batch, on average; the first for somebody to join as well."""
        return sum(step.waited_s for step in self.steps) / len(self.steps) if self.steps else None

    @property
    def mean_step_s(self) -> float | None:
        """Seconds from the end of one training step to the end of the next, on average: waiting, training, publishing
        and restarts; None before the second.
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
        """From when to when the plans wanted each peer to be active, in seconds; whoever came first is first."""
        found: dict[PeerId, list[Span]] = {}
        ends = [*(plan.at_s for plan in self.plans[1:]), self.wall_s]
        for plan, end_s in zip(self.plans, ends, strict=False):
            for peer in plan.active:
                found.setdefault(peer, []).append((plan.at_s, end_s))
        return {peer: joined(spans, gap_s=0.0) for peer, spans in found.items()}

    @property
    def surviving_evaluations(self) -> tuple[Evaluation, ...]:
        """In order of time; the first and the last tell what was learned."""
        return tuple(evaluation for evaluation in self.evaluations if evaluation.survives)


def _costs_of(peers: Iterable[PeerReport]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for peer in peers:
        total[peer.price.currency] += peer.cost_micros
    return {currency: micros for currency, micros in sorted(total.items()) if micros}


@dataclass(frozen=True, kw_only=True)
class RefusedRecord:
    """One record of ours that was not counted, in the learner's own words."""

    lease: LeaseId
    index: int
    rule: Rule
    detail: str
    at_ms: int


@dataclass(frozen=True, kw_only=True)
class OwnReport:
    """A node's own work, from the receipts that it keeps: the row it has at the learner, as far as known here.

    `newest` and `oldest` are the learner's versions when it judged. `refused` are the latest, newest first. `traffic`
    is with those peers with whom most was exchanged. `spans`, when it was in the swarm, and `history` are there where
    they were asked for; their times are seconds since it was first seen. `terms`: what a kWh costs its owner.
    `reputed_ms`: when the learner said how it stands, None if it has not yet.
    """

    peer: PeerReport
    receipts: int
    oldest: PolicyVersion | None
    newest: PolicyVersion | None
    refused: tuple[RefusedRecord, ...]
    traffic: tuple[PeerTraffic, ...]
    reputed_ms: int | None = None
    spans: tuple[Span, ...] = ()
    history: PeerHistory | None = None
    terms: CostTerms = NO_TERMS

    @property
    def peers(self) -> tuple[PeerReport, ...]:
        """As a swarm's report has them."""
        return (self.peer,)
