"""Define the loops that choose: the planner, the paper's loop in two orders, and all machines; and what each pays.

Invariant: all loops see the same measured rates at the same reviews. They pay for a machine from its activation on,
while it supplies only once it has started.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.market.trace import CHURN_S, Moment
from learner.provisioning.model.capacity import Clockwork, period_s
from learner.provisioning.model.machine_selection import MARGIN, Candidate
from learner.provisioning.planner.constants import BETTER_REVIEWS, RELEASED, REVIEW_S, SHORT, SHORT_REVIEWS, SURPLUS
from learner.provisioning.planner.planner import Planner, Settings, Situation
from learner.provisioning.planner.pool import Pool

PROVEN_S = 300.0
"""Active time after which a newcomer's rate is measured; it is not forgotten when the machine leaves and returns."""

FLAP_S = 3600.0
"""A machine that is activated again within an hour of its deactivation, without having left, counts as a flap."""


class Loop(Protocol):
    """Chooses the active machines."""

    def review(self, now_s: float, candidates: Sequence[Candidate], unproven: set[str]) -> frozenset[str]: ...


class Ours:
    """The planner, `learner.provisioning.planner.planner`."""

    def __init__(self, clock: Clockwork) -> None:
        self.train_s = clock.train_s
        self.planner = Planner(Settings(rollouts=clock.rollouts, staleness=clock.staleness, kappa=clock.kappa))
        self.active: frozenset[str] = frozenset()

    def review(self, now_s: float, candidates: Sequence[Candidate], unproven: set[str]) -> frozenset[str]:
        situation = Situation(now_s=now_s, train_s=self.train_s, candidates=candidates, unproven=unproven)
        self.active = self.planner.review(situation).active
        return self.active


class InOrder:
    """The paper's loop, with our condition and our delays: first in `order` comes, last goes, one at a time."""

    def __init__(self, clock: Clockwork, order: Callable[[Candidate], float]) -> None:
        self._clock, self._order = clock, order
        self._active: set[str] = set()
        self._short = self._surplus = 0

    def review(self, now_s: float, candidates: Sequence[Candidate], unproven: set[str]) -> frozenset[str]:
        pool = Pool(self._clock, candidates)
        num_left, self._active = len(self._active - pool.names), self._active & pool.names
        share = pool.share(self._active)
        self._short = self._short + 1 if share < SHORT else 0
        self._surplus = self._surplus + 1 if share > SURPLUS * MARGIN else 0
        ranked = [one.name for one in sorted(candidates, key=lambda one: (self._order(one), one.name))]
        if not self._active or self._short > SHORT_REVIEWS or (num_left and share < MARGIN):
            for name in ranked:
                if pool.share(self._active) >= MARGIN:
                    break
                self._active.add(name)
        elif self._surplus > BETTER_REVIEWS:
            for name in [name for name in reversed(ranked) if name in self._active][
                : max(1, int(RELEASED * len(self._active)))
            ]:
                if pool.share(self._active - {name}) >= MARGIN:
                    self._active.remove(name)
        return frozenset(self._active)


class Everybody:
    """Activates all machines."""

    def review(self, now_s: float, candidates: Sequence[Candidate], unproven: set[str]) -> frozenset[str]:
        return frozenset(one.name for one in candidates)


def loops(clock: Clockwork, seed: int) -> dict[str, Loop]:
    """Return the loops by name."""
    places: dict[str, float] = {}
    rng = random.Random(seed)
    return {
        "ours": Ours(clock),
        "greedy": InOrder(clock, lambda one: one.rho),
        "random": InOrder(clock, lambda one: places.setdefault(one.name, rng.random())),
        "all on": Everybody(),
    }


@dataclass(kw_only=True)
class Account:
    """The account of a loop: USD, `steps` of training, and flaps during churn and after."""

    paid: float = 0.0
    steps: float = 0.0
    seconds: float = 0.0
    churn_flaps: int = 0
    quiet_flaps: int = 0
    switched: int = 0
    active: frozenset[str] = frozenset()
    proven: set[str] = field(default_factory=set)

    @property
    def per_step(self) -> float:
        """USD of a step."""
        return self.paid / self.steps


def run(loop: Loop, clock: Clockwork, moments: Sequence[Moment]) -> Account:
    """Run a loop through all moments; it starts with measured rates for all machines present at the beginning."""
    account = Account(proven={one.name for one in moments[0].true})
    since_s: dict[str, float] = {}
    off_s: dict[str, float] = {}
    for moment in moments:
        true = {one.name: one for one in moment.true}
        off_s = {name: at_s for name, at_s in off_s.items() if name in true}
        account.proven |= (
            true.keys()
            if moment.exact
            else {name for name, at_s in since_s.items() if name in true and moment.at_s - at_s >= PROVEN_S}
        )
        active = loop.review(moment.at_s, seen(moment, account.proven), true.keys() - account.proven)
        for name in active - account.active:
            since_s[name] = moment.at_s + true[name].start_s
            account.switched += 1
            if moment.at_s - off_s.get(name, -FLAP_S) < FLAP_S:
                account.churn_flaps += moment.at_s <= CHURN_S
                account.quiet_flaps += moment.at_s > CHURN_S
        for name in account.active - active:
            del since_s[name]
            if name in true:
                off_s[name] = moment.at_s
        account.active = active
        _pay(account, clock, [true[name] for name in active], [true[n] for n in active if since_s[n] <= moment.at_s])
    return account


def seen(moment: Moment, proven: set[str]) -> list[Candidate]:
    """Return the pool with the rates that are known."""
    return [moment.measured[one.name] if one.name in proven else moment.promised[one.name] for one in moment.true]


def _pay(account: Account, clock: Clockwork, active: list[Candidate], ready: list[Candidate]) -> None:
    account.paid += sum(one.price for one in active) * REVIEW_S / 3600
    account.seconds += REVIEW_S
    pool = Pool(clock, ready)
    enough = pool.share(pool.names) >= 1
    account.steps += REVIEW_S / (clock.train_s if enough else period_s(clock, [one.supplier() for one in ready]))
