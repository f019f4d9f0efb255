"""Choose which of the unequal machines to pay for: the cheapest set with which the learner never waits.

Pure. An active machine supplies `rate` rollouts per second, from `broadcast_s` + `generation_s` after a version's
publication, and F of a set is the sum over its machines (`learner.provisioning.model.capacity`). So "never waits" is
linear in which machines are active, and the cheapest set is a small integer program:

    minimise  sum c_i x_i     over x_i in {0, 1}
    where     sum mu_i x_i useful_i((S - kappa + k) T_train)  >=  gamma k R     for k = 1, ..., kappa

with useful_i(t) = min(kappa T_train, max(0, t - delay_i)), the time for which it has delivered one version by then.

There are two ways to choose: `greedy`, the paper's, in the order of price per rollout (ECHO-2, section 3.4); and
`cheapest`, the exact optimum. With few machines it tries every set. With many, scipy's HiGHS finds the optimum, or the
best set within a bounded time. In `cheapest`, a machine that is not active yet is charged its start, spread over the
time for which the plan is likely to stand or the machine stays, whichever is shorter. So a set is not left for another
that saves less than moving costs.

Invariants:

- A set that is returned is enough, to the solver's millionth, which the margin covers.
- If no set is enough, the answer is a value that says how far all machines together are from it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from learner.provisioning.model.capacity import Clockwork, Supplier

MARGIN = 1.05
"""Our gamma: rates are estimates of varying quantities, and a set without a reserve waits for every other batch."""

PLAN_STANDS_S = 3600.0
"""Seconds over which the start of a machine is charged: with a plan that stood for less, all costs would be starts."""

FEW = 10
"""Number of machines up to which all sets are tried, in a millisecond. Importing the solver takes 45 MiB and most of a
second, which the learner of a small swarm need not spend."""

SOLVER_S = 2.0
"""Limit of the exact search; pools of 200 take about 0.1 s. After it, the best set found is taken."""

_SOLVER_ERROR = 1e-5
"""Tolerance: a sum of thousands of the solver's millionths, which the margin covers."""

_ROUNDING = 1e-12
"""Relative rounding error of sums over a few machines in double precision."""

_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A machine that could be active.

    Args:
        name: its name in the plan.
        price: price per hour that it is active, in the swarm's one currency; 0 for a volunteer.
        rate: admitted rollouts per second, measured or expected.
        broadcast_s: seconds from a publication until it has the version installed.
        generation_s: usual seconds from a lease until its rollouts are admitted.
        batch_rollouts: rollouts that are done together; 0 if they are begun one after the other.
        start_s: seconds from being asked until it supplies: download, loading. It is paid meanwhile.
        start_price: what starting costs beside that time.
        stops_per_hour: how often it is taken away (spot machines, owners who come home), each costing a start.
        remaining_s: seconds that it will be there, by its owner's hours; more than 0.
        is_least: whether it may be faster than `rate`, since it was never kept busy.
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
    remaining_s: float = math.inf
    is_least: bool = False

    @property
    def usable_rate(self) -> float:
        """Rollouts per second including its stops: it is up for 1 / stops, then away for one start."""
        return self.rate / (1 + self.stops_per_hour * self.start_s / _HOUR)

    @property
    def running_price(self) -> float:
        """Price per hour, with the starts that its stops cost."""
        return self.price + self.stops_per_hour * self.start_price

    @property
    def rho(self) -> float:
        """Price of a rollout: rho = c / mu (section 3.4)."""
        return self.running_price / (_HOUR * self.usable_rate) if self.usable_rate > 0 else math.inf

    def charged_s(self, stands_s: float) -> float:
        """Return the seconds over which its start is charged: as long as a plan stands, or it stays."""
        return min(stands_s, max(1.0, self.remaining_s))

    def moving_price(self, stands_s: float) -> float:
        """Return the price per hour of starting it once for a plan that stands for `stands_s`."""
        return (self.start_price + self.price * self.start_s / _HOUR) * _HOUR / self.charged_s(stands_s)

    def supplier(self) -> Supplier:
        """Return the machine as the capacity model sees it. A machine that no version reaches supplies nothing."""
        return Supplier(
            rate=self.usable_rate if math.isfinite(self.broadcast_s + self.generation_s) else 0.0,
            broadcast_s=self.broadcast_s,
            generation_s=self.generation_s,
            lump_s=min(self.generation_s, self.batch_rollouts / self.rate) if self.rate > 0 else 0.0,
        )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The machines to activate, in the order of `rho`, and their price per hour.

    `exact`: no set that is enough is cheaper by more than a ten-thousandth, the gap at which HiGHS stops.
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
    """Not even all machines together are enough: they give `share` (below 1) of what the strictest condition asks
    for."""

    share: float
    rate: float
    needed: float


class Requirement:
    """The conditions for a set of machines: a row of weights for each condition, and the least sum of each row."""

    def __init__(self, clock: Clockwork, candidates: Sequence[Candidate], margin: float = MARGIN) -> None:
        self.candidates = tuple(candidates)
        self.rate_needed = margin * clock.rollouts / clock.train_s
        suppliers = [one.supplier() for one in candidates]
        delays = np.array([one.delay_s for one in suppliers])
        rates = np.array([one.rate for one in suppliers])
        # Rollouts of the next version replace those of this one after kappa T_train.
        useful = np.clip(np.array(clock.due_s)[:, None] - delays, 0.0, clock.kappa * clock.train_s)
        self.weights = rates * useful / clock.rollouts
        self.least = margin * np.arange(1, clock.kappa + 1)
        self.is_overtaken = clock.is_overtaken

    def share(self, selected: np.ndarray) -> float:
        """Return how much of the requirement a set supplies, at the strictest condition; 1 is enough. `selected` is 0
        or 1 for each."""
        return 0.0 if self.is_overtaken else float((self.weights @ selected / self.least).min())


def greedy(requirement: Requirement, *, keep: Collection[str] = ()) -> Choice | Shortage:
    """Choose as the paper does: the best price per rollout first, until the set is enough. Machines to `keep` are
    always in.

    Machines whose rollouts all come too late are left out. Otherwise distant volunteers, the cheapest machines there
    are, would all be active.
    """
    candidates = requirement.candidates
    selected = _kept(candidates, keep)
    if (shortage := _shortage(requirement)) is not None:
        return shortage
    of_use = np.flatnonzero(requirement.weights.any(axis=0))
    for index in sorted(of_use, key=lambda i: (candidates[i].rho, candidates[i].name)):
        if requirement.share(selected) >= 1:
            break
        selected[index] = 1
    return _choice(candidates, selected)


def cheapest(
    requirement: Requirement,
    active: Collection[str] = (),
    *,
    keep: Collection[str] = (),
    stands_s: float = PLAN_STANDS_S,
) -> Choice | Shortage:
    """Choose the cheapest set, including the cost of moving from `active` (names), for a plan that stands for
    `stands_s`.

    It contains the machines to `keep`.
    """
    if (shortage := _shortage(requirement)) is not None:
        return shortage
    candidates = requirement.candidates
    prices = np.array(
        [one.running_price + (0.0 if one.name in active else one.moving_price(stands_s)) for one in candidates]
    )
    # If sets cost the same (volunteers are free), prefer the smallest.
    prices += 1e-6 * float(prices.max(initial=0.0)) or 1.0
    kept = _kept(candidates, keep)
    if len(candidates) <= FEW:
        return _choice(candidates, _cheapest_of_all(requirement, prices, kept), exact=True)
    selected, is_exact = _solve(requirement, prices, kept)
    if selected is None or requirement.share(selected) < 1 - _SOLVER_ERROR:
        return greedy(requirement, keep=keep)
    return _choice(candidates, selected, exact=is_exact)


def _cheapest_of_all(requirement: Requirement, prices: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return the cheapest of all sets that contain `kept` and are enough. If several cost the same, return the one that
    supplies most, then the one whose machines come first. All machines together are enough."""
    numbers = np.arange(2 ** len(prices))
    sets = np.maximum(kept, numbers[:, None] >> np.arange(len(prices)) & 1)
    shares = (sets @ requirement.weights.T / requirement.least).min(axis=1)
    shares[-1] = max(1.0, shares[-1])  # as `_shortage` found; sums in another order may round otherwise
    costs = np.where(shares >= 1, sets @ prices, np.inf)
    same = np.flatnonzero(costs <= costs.min() * (1 + _ROUNDING))
    best = shares[same] >= shares[same].max() * (1 - _ROUNDING)
    return sets[same[best.argmax()]]  # type: ignore[no-any-return]


def _solve(requirement: Requirement, prices: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray | None, bool]:
    """Return HiGHS's answer, if it has one, and whether that is exact."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    # A machine that is enough alone counts as just enough: a millionth of a huge machine must not count as none.
    weights = np.minimum(1.0, requirement.weights / requirement.least[:, None])
    found = milp(
        prices,
        constraints=LinearConstraint(weights, 1.0, np.inf),
        integrality=np.ones(len(prices)),
        bounds=Bounds(kept, 1),
        # Presolving takes longer than it saves here, and HiGHS then sometimes prints, whatever its options.
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


def _choice(candidates: Iterable[Candidate], selected: np.ndarray, *, exact: bool = False) -> Choice:
    chosen = sorted(
        (one for one, is_selected in zip(candidates, selected, strict=True) if is_selected),
        key=lambda one: (one.rho, one.name),
    )
    return Choice(chosen=tuple(chosen), price=math.fsum(one.running_price for one in chosen), exact=exact)
