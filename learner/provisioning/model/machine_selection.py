"""Which of the unequal machines to pay for: the cheapest set with which the learner never waits.

Pure. A machine that is on supplies `rate` rollouts per second, from `broadcast_s` + `generation_s` after a version's
publication, and F of a set is the sum over its machines (`learner.provisioning.model.capacity`). So "never waits" is
linear in who is on, and the cheapest set is a small integer program:

    minimise  sum c_i x_i     over x_i in {0, 1}
    where     sum mu_i x_i useful_i((S - kappa + k) T_train)  >=  gamma k R     for k = 1, ..., kappa

with useful_i(t) = min(kappa T_train, max(0, t - delay_i)), the time for which it has delivered one version by then.

Two ways to choose: `greedy`, the paper's, in the order of price per rollout (ECHO-2, section 3.4); and `cheapest`, the
exact optimum. Of few machines it looks at every set, and of many scipy's HiGHS finds it, or the best within a bounded
time. There, who is not on yet is charged its start over the time for which the plan is likely to stand, or for which it
stays if that is shorter, so that a set is not left for another that saves less than moving costs.
What always holds: a set that is returned suffices, to the solver's millionth, which the margin covers; where none does,
the answer says how far all machines together are from it, and is a value.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from learner.provisioning.model.capacity import Clockwork, Supplier

MARGIN = 1.05
"""Our gamma: rates are estimates of what varies, and a set without a reserve waits for every other batch."""

PLAN_STANDS_S = 3600.0
"""Over so long is the start of a machine charged: a plan that stood for less would be all starts."""

FEW = 10
"""Of so many machines all sets are looked at, in a millisecond: importing the solver takes 45 MiB and most of a second,
which a small swarm's learner is spared."""

SOLVER_S = 2.0
"""What the exact search may take; pools of 200 take some 0.1 s. Beyond it the best set found is taken."""

_SOLVER_ERROR = 1e-5
"""A sum of thousands of its millionths; the margin covers it."""

_ROUNDING = 1e-12
"""Of sums over a few machines in double precision, as a share."""

_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A machine that could be on.

    Args:
        name: what the plan calls it.
        price: per hour that it is on, in the swarm's one currency; 0 for a volunteer.
        rate: admitted rollouts per second, measured or expected.
        broadcast_s: from a publication until it has the version installed.
        generation_s: from a lease until its rollouts are admitted, usually.
        batch_rollouts: of which so many are done together; 0 where they are begun one after the other.
        start_s: from being asked until it supplies: download, loading. It is paid meanwhile.
        start_price: what starting costs beside that time.
        stops_per_hour: how often it is taken away (spot machines, owners who come home), each costing a start.
        stays_s: so long will it be there, by its owner's hours; more than 0.
        is_least: it may be faster than `rate`, since it was never kept busy.
    """

    name: str
    price: float
    rate: float
    broadcast_s: float = 0.0
    generation_s: float = 0.0
    batch_rollouts: float = 0.0
    start_s: float = 0.0
    start_price: float = 0.0
    stops_per_hour: float = 0.0
    stays_s: float = math.inf
    is_least: bool = False

    @property
    def usable_rate(self) -> float:
        """Rollouts per second over its ups and downs: it is up for 1 / stops, then away for one start."""
        return self.rate / (1 + self.stops_per_hour * self.start_s / _HOUR)

    @property
    def running_price(self) -> float:
        """Per hour, with the starts that its stops cost."""
        return self.price + self.stops_per_hour * self.start_price

    @property
    def rho(self) -> float:
        """Price of a rollout: rho = c / mu (section 3.4)."""
        return self.running_price / (_HOUR * self.usable_rate) if self.usable_rate > 0 else math.inf

    def charged_s(self, stands_s: float) -> float:
        """Over so long its start is charged: as long as a plan stands, or it stays."""
        return min(stands_s, max(1.0, self.stays_s))

    def moving_price(self, stands_s: float) -> float:
        """Per hour, the price of starting it once for a plan that stands for `stands_s`."""
        return (self.start_price + self.price * self.start_s / _HOUR) * _HOUR / self.charged_s(stands_s)

    def supplier(self) -> Supplier:
        """It, as the capacity model sees it: what no version reaches supplies nothing."""
        return Supplier(
            rate=self.usable_rate if math.isfinite(self.broadcast_s + self.generation_s) else 0.0,
            broadcast_s=self.broadcast_s,
            generation_s=self.generation_s,
            lump_s=min(self.generation_s, self.batch_rollouts / self.rate) if self.rate > 0 else 0.0,
        )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Who is to be on, in the order of `rho`, and the price per hour of that.

    `exact`: nothing suffices that is cheaper by more than a ten-thousandth, the gap at which HiGHS stops.
    """

    chosen: tuple[Candidate, ...]
    price: float
    exact: bool = False

    @property
    def rate(self) -> float:
        """Rollouts per second."""
        return math.fsum(one.usable_rate for one in self.chosen)


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """Not even all together suffice: they give `share` (below 1) of what the strictest condition asks for."""

    share: float
    rate: float
    needed: float


class Requirement:
    """What a set must supply: a row of weights for each candidate, and the least sum of each row."""

    def __init__(self, clock: Clockwork, candidates: Sequence[Candidate], margin: float = MARGIN) -> None:
        self.candidates = tuple(candidates)
        self.rate_needed = margin * clock.rollouts / clock.train_s
        suppliers = [one.supplier() for one in candidates]
        delays = np.array([one.delay_s for one in suppliers])
        rates = np.array([one.rate for one in suppliers])
        # Rollouts of the next version take the place of those of this one after kappa T_train.
        useful = np.clip(np.array(clock.due_s)[:, None] - delays, 0.0, clock.kappa * clock.train_s)
        self.weights = rates * useful / clock.rollouts
        self.least = margin * np.arange(1, clock.kappa + 1)
        self.is_overtaken = clock.is_overtaken

    def share(self, on: np.ndarray) -> float:
        """How much of what is asked for a set supplies, at the strictest condition; 1 is enough. `on`: 0 or 1 each."""
        return 0.0 if self.is_overtaken else float((self.weights @ on / self.least).min())


def greedy(requirement: Requirement, *, keep: Collection[str] = ()) -> Choice | Shortage:
    """The paper's choice: the best price per rollout first, until it suffices; whoever is to `keep` is on anyway.

    Whose rollouts all come too late is left out, or volunteers far away, the cheapest there are, would all be on.
    """
    candidates = requirement.candidates
    on = _kept(candidates, keep)
    if (shortage := _shortage(requirement)) is not None:
        return shortage
    of_use = np.flatnonzero(requirement.weights.any(axis=0))
    for index in sorted(of_use, key=lambda i: (candidates[i].rho, candidates[i].name)):
        if requirement.share(on) >= 1:
            break
        on[index] = 1
    return _choice(candidates, on)


def cheapest(
    requirement: Requirement,
    active: Collection[str] = (),
    *,
    keep: Collection[str] = (),
    stands_s: float = PLAN_STANDS_S,
) -> Choice | Shortage:
    """The cheapest set, moving from `active` (names) included, for a plan that stands for `stands_s`.

    It contains whoever is to `keep`.
    """
    if (shortage := _shortage(requirement)) is not None:
        return shortage
    candidates = requirement.candidates
    prices = np.array(
        [one.running_price + (0.0 if one.name in active else one.moving_price(stands_s)) for one in candidates]
    )
    # Of sets that cost the same (volunteers are free), the smallest.
    prices += 1e-6 * float(prices.max(initial=0.0)) or 1.0
    kept = _kept(candidates, keep)
    if len(candidates) <= FEW:
        return _choice(candidates, _cheapest_of_all(requirement, prices, kept), exact=True)
    on, is_exact = _solve(requirement, prices, kept)
    if on is None or requirement.share(on) < 1 - _SOLVER_ERROR:
        return greedy(requirement, keep=keep)
    return _choice(candidates, on, exact=is_exact)


def _cheapest_of_all(requirement: Requirement, prices: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Of all sets that contain `kept` and suffice, the cheapest; of those that cost the same, the one that supplies
    most, then the one whose machines stand first. All machines together do suffice."""
    numbers = np.arange(2 ** len(prices))
    sets = np.maximum(kept, numbers[:, None] >> np.arange(len(prices)) & 1)
    shares = (sets @ requirement.weights.T / requirement.least).min(axis=1)
    shares[-1] = max(1.0, shares[-1])  # as `_shortage` found, though sums in another order may round otherwise
    costs = np.where(shares >= 1, sets @ prices, np.inf)
    same = np.flatnonzero(costs <= costs.min() * (1 + _ROUNDING))
    best = shares[same] >= shares[same].max() * (1 - _ROUNDING)
    return sets[same[best.argmax()]]  # type: ignore[no-any-return]


def _solve(requirement: Requirement, prices: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray | None, bool]:
    """HiGHS's answer, if it has one, and whether that is exact."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    # One that suffices alone counts as just enough: a millionth of a huge machine must not pass for none.
    weights = np.minimum(1.0, requirement.weights / requirement.least[:, None])
    found = milp(
        prices,
        constraints=LinearConstraint(weights, 1.0, np.inf),
        integrality=np.ones(len(prices)),
        bounds=Bounds(kept, 1),
        # Presolving takes longer than it saves here, and HiGHS then prints, now and then, whatever it is told.
        options={"time_limit": SOLVER_S, "presolve": False},
    )
    return (None if found.x is None else np.round(found.x)), found.status == 0


def _kept(candidates: Iterable[Candidate], keep: Collection[str]) -> np.ndarray:
    return np.array([1.0 if one.name in keep else 0.0 for one in candidates])


def _shortage(requirement: Requirement) -> Shortage | None:
    everyone = np.ones(len(requirement.candidates))
    share = requirement.share(everyone) if requirement.candidates else 0.0
    if share >= 1:
        return None
    rate = math.fsum(one.usable_rate for one in requirement.candidates)
    return Shortage(share=share, rate=rate, needed=requirement.rate_needed)


def _choice(candidates: Iterable[Candidate], on: np.ndarray, *, exact: bool = False) -> Choice:
    chosen = sorted(
        (one for one, is_on in zip(candidates, on, strict=True) if is_on), key=lambda one: (one.rho, one.name)
    )
    return Choice(chosen=tuple(chosen), price=math.fsum(one.running_price for one in chosen), exact=exact)
