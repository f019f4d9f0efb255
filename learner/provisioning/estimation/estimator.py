"""Turn the events of a run into the estimates that plans are made with.

Pure. T_train and T_bcast are measured as ECHO-2 does (arXiv 2602.02192, section 4.3), again with every step and
version.

Invariants:

- Every estimate follows from the recorded events, in their order, so a live run and its recording give the same ones.
- A peer's claim counts only until it has shown its rate, and for no more than BOAST times the best shown rate.
- Memory is bounded by PEERS, by VERSIONS under way, and by the values kept per quantity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from learner.provisioning.estimation.broadcasts import UNDER_WAY, BroadcastTracker
from learner.provisioning.estimation.estimates import Estimate, Recent, RecentRatio
from learner.provisioning.estimation.peer_profile import TAIL, Profile
from learner.provisioning.estimation.recording import (
    Began,
    Delivered,
    Installed,
    Joined,
    Left,
    Planned,
    Published,
    Recorded,
    Stepped,
    Withdrawn,
)
from learner.provisioning.model.machine_selection import Candidate

PEERS = 8192
"""Peers remembered. The one that left longest ago is forgotten first. If all are here, further peers are not seen."""

DELIVERIES = 256
"""Deliveries from which T_gen and the length of completions are estimated: enough for both ends of a 95th percentile
(73 are), and a few batches."""

BOAST = 4.0
"""Limit of a claimed rate, as a multiple of the best shown rate. A faster honest newcomer is believed after a few
batches; a liar is found out by then."""

_HOUR = 3600.0


class SwarmEstimator:
    """The estimates for one swarm."""

    def __init__(self) -> None:
        self.terms: Began | None = None
        self.plan: Planned | None = None
        self.now_s = 0.0
        self._profiles: dict[str, Profile] = {}
        self._present: dict[str, None] = {}
        self._gone: dict[str, None] = {}
        self._served: set[str] = set()
        """Peers that were here with a version when the run began again, so that their next installation is no start."""
        self._active: frozenset[str] | None = None
        self._train = Recent()
        self._publish = Recent()
        self._made = Recent()
        self._generation = Recent(window=DELIVERIES)
        self._tokens = RecentRatio(window=DELIVERIES)
        self._kept = RecentRatio(window=DELIVERIES)
        self._broadcasts = BroadcastTracker()

    def handle(self, event: Recorded) -> None:
        """Take in the next event."""
        before_s, self.now_s = self.now_s, event.at_s
        match event:
            case Delivered():
                self._delivered(event)
            case Installed():
                self._installed(event)
            case Stepped():
                self._train.add(max(0.0, event.busy_s - event.publish_s))
                if event.publish_s > 0:
                    self._publish.add(event.publish_s)
            case Published():
                self._made.add(event.made_s)
                self._broadcasts.published(event.version, event.at_s - event.made_s, self._present, self.active)
            case Joined():
                self._joined(event)
            case Left():
                self._left(event)
            case Withdrawn():
                if event.status in ("expired", "recalled") and (profile := self._profiles.get(event.peer)) is not None:
                    profile.expired(event.rollouts)
            case Planned():
                self.plan, self._active = event, frozenset(event.active)
            case Began():
                self._began(event)
                if event.at_s < before_s:
                    for profile in self._profiles.values():
                        profile.set_back()

    # The swarm.

    @property
    def kappa(self) -> int | None:
        """The publication period in force: that of the last plan, or the one that the run began with."""
        if self.plan is not None:
            return self.plan.kappa
        return self.terms.kappa if self.terms is not None else None

    @property
    def present(self) -> frozenset[str]:
        """The peers that are here, active or on standby."""
        return frozenset(self._present)

    @property
    def active(self) -> frozenset[str]:
        """The present peers that the last plan made active; all, if there was no plan yet."""
        present = self.present
        return present if self._active is None else present & self._active

    @property
    def active_price(self) -> float:
        """The sum of the prices of an hour of all active peers."""
        return sum(self._profiles[peer].price for peer in self.active)

    @property
    def train_s(self) -> Estimate | None:
        """T_train: the mean busy time of a step without its publication, plus that of a publication divided by kappa.

        It is a mean, since R rollouts are taken in that many seconds. If a few steps take long, the median is shorter,
        and a plan would ask for more rollouts than are ever taken. The ends of the interval are the sums of the ends;
        the upper one is open until ENOUGH versions were published.
        """
        step, publication = self.step_s, self.publish_s
        if step is None or publication is None:
            return step
        kappa = self.kappa or 1
        return Estimate(
            value=step.value + publication.value / kappa,
            low=step.low + publication.low / kappa,
            high=step.high + publication.high / kappa,
            count=step.count,
        )

    @property
    def step_s(self) -> Estimate | None:
        """The mean busy time of a step without its publication, in seconds."""
        return self._train.mean()

    @property
    def publish_s(self) -> Estimate | None:
        """The mean seconds for which a publication holds the learner up."""
        return self._publish.mean()

    @property
    def source_s(self) -> float | None:
        """The seconds that the source is busy with one version, at most: sending it (`BroadcastTracker.source_s`) or
        making it."""
        if (step := self.step_s) is None:
            return None
        sent_s, made = self._broadcasts.source_s(self.kappa or 1, step.value), self._made.mean()
        if sent_s is None or made is None:
            return sent_s
        return max(sent_s, made.value / UNDER_WAY)

    @property
    def broadcast_s(self) -> Estimate | None:
        """T_bcast: the median time from the end of a version's step until QUORUM of the active peers had it."""
        return self._broadcasts.broadcast_s

    @property
    def generation_s(self) -> Estimate | None:
        """T_gen: the 95th percentile of the time from the start of a lease until its rollouts were admitted, over
        active peers."""
        return self._generation.quantile(TAIL)

    @property
    def tokens_per_rollout(self) -> float | None:
        """The mean length of the completions that were admitted recently."""
        ratio = self._tokens.ratio()
        return None if ratio is None else ratio.value

    @property
    def kept(self) -> float:
        """The share of the recently admitted rollouts that batches take. The groups of the others teach nothing."""
        ratio = self._kept.ratio()
        return 1.0 if ratio is None else ratio.value

    # The peers.

    def profile(self, peer: str) -> Profile | None:
        """Return what is known of a peer, also of one that left; None for one that was never seen, or was forgotten."""
        return self._profiles.get(peer)

    def profiles(self) -> list[Profile]:
        """Return the profiles of those who are here, by their ids."""
        return [self._profiles[peer] for peer in sorted(self._present)]

    def resting(self, now_s: float) -> frozenset[str]:
        """Return those who are here and outside their owner's hours at `now_s`, by the clock of the recording."""
        return frozenset(one.peer for one in self.profiles() if one.remaining_s(now_s) == 0)

    def candidates(self, now_s: float | None = None) -> list[Candidate]:
        """Return every peer that is here, active or on standby, as a machine that could be active; `name` is the peer's
        id. Peers outside their owner's hours at `now_s` are left out; without `now_s`, it is the time of the last
        event.

        If a newcomer has not shown a quantity, the median of those who have is taken. A rate that no peer has shown or
        claimed is 0. A peer with a version in service starts at once, so the cost of its stops is subtracted from its
        rate. So is the share of rollouts that is dropped because they teach nothing, which is the same for all peers,
        since it is due to the prompts.
        """
        profiles = self.profiles()
        shown = [rate.value for one in profiles if (rate := one.shown_rate) is not None]
        most = BOAST * max(shown) if any(shown) else math.inf
        usual_rate = _median(shown)
        broadcast_s = _median([one.broadcast_s.value for one in profiles if one.broadcast_s is not None])
        generation_s = _median([took.value for one in profiles if (took := one.usual_generation_s) is not None])
        batch = _median([many.value for one in profiles if (many := one.batch_rollouts) is not None])
        start_s = _median([one.start_s.value for one in profiles if one.start_s is not None])
        candidates, kept = [], self.kept
        now_s = self.now_s if now_s is None else now_s
        for one in profiles:
            if (remaining_s := one.remaining_s(now_s)) == 0:
                continue
            own_start_s = _value(one.start_s, start_s) or 0.0
            lost = one.stops_per_hour(self.now_s) * own_start_s / _HOUR
            candidates.append(
                Candidate(
                    name=one.peer,
                    price=one.price,
                    rate=(_value(one.rate(most), usual_rate) or 0.0) * kept / (1 + lost),
                    broadcast_s=_value(one.broadcast_s, broadcast_s) or 0.0,
                    generation_s=_value(one.usual_generation_s, generation_s) or 0.0,
                    batch_rollouts=_value(one.batch_rollouts, batch) or 0.0,
                    start_s=0.0 if self._broadcasts.has(one.peer) else own_start_s,
                    remaining_s=remaining_s,
                    is_least=one.is_least,
                )
            )
        return candidates

    # What happens.

    def _began(self, event: Began) -> None:
        """Start again with a new run: no peer is here until it joins again, and that is not its fault."""
        self.terms, self.plan, self._active = event, None, None
        self._served = {peer for peer in self._present if self._broadcasts.has(peer)}
        for peer in self._present:
            self._profiles[peer].interrupted(event.at_s)
        self._gone.update(self._present)
        self._present.clear()
        self._broadcasts.begin()

    def _joined(self, event: Joined) -> None:
        if (profile := self._seen(event.peer)) is not None:
            profile.joined(event)
            self._gone.pop(event.peer, None)
            self._present[event.peer] = None

    def _left(self, event: Left) -> None:
        if event.peer in self._present:
            del self._present[event.peer]
            self._gone[event.peer] = None
            self._served.discard(event.peer)
            self._profiles[event.peer].left(event.at_s)
            self._broadcasts.left(event.peer)

    def _installed(self, event: Installed) -> None:
        if event.peer not in self._present:
            return
        profile = self._profiles[event.peer]
        is_first = not self._broadcasts.has(event.peer) and event.peer not in self._served
        self._served.discard(event.peer)
        first_after_s = event.at_s - profile.joined_s if is_first else None
        profile.installed(self._broadcasts.installed(event.peer, event.version, event.at_s), first_after_s)

    def _delivered(self, event: Delivered) -> None:
        if (profile := self._seen(event.peer)) is None:
            return
        profile.delivered(event)
        if event.admitted == 0:
            return
        self._tokens.add(event.tokens, event.admitted)
        self._kept.add(event.admitted - event.dropped, event.admitted)
        if self._active is None or event.peer in self._active:
            self._generation.add(max(0.0, event.at_s - event.started_s))

    def _seen(self, peer: str) -> Profile | None:
        """Return the peer's profile, and make room for a new one; None if no peer can be forgotten."""
        if (profile := self._profiles.get(peer)) is not None:
            return profile
        if len(self._profiles) >= PEERS:
            if not self._gone:
                return None
            oldest = next(iter(self._gone))
            del self._gone[oldest], self._profiles[oldest]
        profile = self._profiles[peer] = Profile(peer)
        self._gone[peer] = None
        return profile


def fit(events: Iterable[Recorded]) -> SwarmEstimator:
    """Return what a recording shows, at its end."""
    observatory = SwarmEstimator()
    for event in events:
        observatory.handle(event)
    return observatory


def _value(estimate: Estimate | None, otherwise: float | None) -> float | None:
    return otherwise if estimate is None else estimate.value


def _median(values: list[float]) -> float | None:
    return median(values) if values else None
