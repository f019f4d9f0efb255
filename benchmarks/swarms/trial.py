"""Try one swarm: predict it, choose machines for it, and simulate the result in virtual time.

Pure, except for the virtual time.

Invariants:

- Predictions and choices know only what `draw.supplier` says of a machine.
- No trial is left out; a swarm that cannot be supplied is a value, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from benchmarks.swarms.bounds import busy, waits_s
from benchmarks.swarms.draw import POOL, RICH_POOL, Swarm, candidate, drawn, only, planned, supplier, timings
from benchmarks.swarms.draw import usual_generation as generation_of
from learner.provisioning.estimation.estimator import SwarmEstimator
from learner.provisioning.estimation.recording import Recorded
from learner.provisioning.model import echo2 as paper
from learner.provisioning.model.capacity import Supplier, period_s
from learner.provisioning.model.expected_lag import expected_lag
from learner.provisioning.model.machine_selection import Requirement, Shortage, cheapest
from learner.simulation.trace import Outcome
from learner.simulation.world import World

SKIPPED = 20
"""Steps that are not measured: rates are learned, and the first versions arrive."""

STEPS = 60
"""Simulated steps of each swarm, so that all of them take minutes; `--steps` asks for more."""

LATEST = 6.0
"""A swarm is given up after this many times the time that its steps take without waiting."""

BUSY = 0.97
"""Minimum share of its time in which the learner of a provisioned swarm should not wait."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One swarm's measurements and predictions: waits per step over T_train, lags in steps.

    `as_measured`: predicted from what a learner reads in the recording of those steps, without any machine's figures.
    `without_batches`: predicted as if rollouts were generated one after the other.
    """

    seed: int
    staleness: int
    kappa: int
    peers: int
    broadcast: float
    generation: float
    supply: float
    waited: float
    predicted: float
    as_measured: float
    without_batches: float
    lag: float
    expected_lag: float
    lag_most: int
    stale: int
    completed: int
    overtaken: bool

    @property
    def error(self) -> float:
        """Simulated minus predicted wait, over T_train."""
        return self.waited - self.predicted


@dataclass(frozen=True, kw_only=True)
class Provisioned:
    """One swarm's purchase and its result. `cost` and `paper_cost` are per hour; None: not enough machines.

    `share`: the supply of all machines of the pool over the demand of our rule, at its strictest condition.
    """

    seed: int
    staleness: int
    kappa: int
    peers: int
    broadcast: float
    share: float
    chosen: int = 0
    cost: float | None = None
    paper_kappa: int | None = None
    paper_cost: float | None = None
    busy: float = 0.0
    lag_most: int = 0
    stale: int = 0
    completed: int = 0

    @property
    def vs_paper(self) -> float | None:
        """Our cost over the paper's, if both rules find enough."""
        return self.cost / self.paper_cost if self.cost is not None and self.paper_cost is not None else None

    @property
    def stale_share(self) -> float:
        return self.stale / self.completed if self.completed else 0.0


def simulated(swarm: Swarm, steps: int = STEPS, watch: Callable[[Recorded], None] = lambda event: None) -> Outcome:
    """Return the outcome of this many training steps; `watch` receives what a learner would record."""
    longest_s = steps * swarm.learning.train_s * LATEST
    return World(swarm.learning, swarm.machines, seed=swarm.seed, watch=watch).run(steps=steps, until_s=longest_s)


def predict(seed: int, steps: int = STEPS) -> Prediction:
    """Return the prediction for a swarm with too few machines or too many, any window and any period."""
    swarm = drawn(seed)
    learning, suppliers = swarm.learning, [supplier(machine) for machine in swarm.machines]
    clock, seen = swarm.clock(), SwarmEstimator()
    outcome = simulated(swarm, steps, seen.handle)
    period = period_s(clock, suppliers)

    def waits(known: Iterable[Supplier]) -> float:
        return (period_s(clock, known) - clock.train_s) / learning.train_s

    return Prediction(
        seed=seed,
        staleness=learning.staleness,
        kappa=learning.kappa,
        peers=len(swarm.machines),
        broadcast=swarm.broadcast,
        generation=generation_of(swarm.machines),
        supply=swarm.supply,
        waited=waits_s(outcome, SKIPPED) / learning.train_s,
        predicted=waits(suppliers),
        as_measured=waits(one.supplier() for one in seen.candidates()),
        without_batches=waits(replace(one, lump_s=0.0) for one in suppliers),
        lag=sum(lag * many for lag, many in outcome.lags.items()) / max(1, outcome.lags.total()),
        expected_lag=expected_lag(clock, suppliers, period),
        lag_most=max(outcome.lags, default=0),
        stale=outcome.stale,
        completed=outcome.completed,
        overtaken=clock.is_overtaken,
    )


def provision(seed: int, steps: int = STEPS) -> Provisioned:
    """Return the result of our rule's choice from a pool of any kind."""
    return _provisioned(drawn(seed, supply=POOL), steps)


def compare(seed: int, steps: int = STEPS) -> Provisioned:
    """Return the result for a pool at S = 3 that is rich enough for the paper's rule, with T_bcast of 0.5 to 1 step."""
    swarm = drawn(seed, supply=RICH_POOL, staleness=(3, 3), broadcast=(0.5, 1.0))
    return _provisioned(swarm, steps, with_paper=True)


def _provisioned(pool: Swarm, steps: int, *, with_paper: bool = False) -> Provisioned:
    swarm = planned(pool)
    candidates = [candidate(machine) for machine in swarm.machines]
    choice = cheapest(Requirement(swarm.clock(), candidates))
    paper_kappa = paper_cost = None
    if with_paper:
        told = timings(swarm)
        paper_kappa = paper.largest_kappa(told, swarm.learning.staleness)
        bought = paper.by_rate(candidates, paper.mu_target(told, paper_kappa)) if paper_kappa is not None else None
        paper_cost = bought.price if bought is not None else None
    outcome = Outcome()
    if not isinstance(choice, Shortage):
        outcome = simulated(only(swarm, [one.name for one in choice.chosen]), steps)
    return Provisioned(
        seed=pool.seed,
        staleness=swarm.learning.staleness,
        kappa=swarm.learning.kappa,
        peers=len(swarm.machines),
        broadcast=swarm.broadcast,
        share=choice.share if isinstance(choice, Shortage) else 1.0,
        chosen=0 if isinstance(choice, Shortage) else len(choice.chosen),
        cost=None if isinstance(choice, Shortage) else choice.price,
        paper_kappa=paper_kappa,
        paper_cost=paper_cost,
        busy=busy(outcome, SKIPPED),
        lag_most=max(outcome.lags, default=0),
        stale=outcome.stale,
        completed=outcome.completed,
    )
