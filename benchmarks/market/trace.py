"""Draw a seeded pool of machines over some hours: their presence, prices, rates, and how well these are known.

Prices and rates are guesses at a market (RTX 5090 as in ECHO-2, Table 1, at vast.ai; its rate as Table 2 implies), with
the spread of such offers.

Invariants:

- A seed is one story, whichever loop chooses among the machines.
- After the churn no machine comes, goes, or changes price or speed. In the end measurements are exact.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from learner.provisioning.model.capacity import Clockwork
from learner.provisioning.model.machine_selection import Candidate, Requirement
from learner.provisioning.planner.constants import REVIEW_S
from learner.provisioning.planner.publish_period import Publishing, choose_kappa, usual_delay_s

CHURN_S, QUIET_S, EXACT_S = 5400.0, 3600.0, 2700.0
"""Seconds of three phases: everything changes; nothing changes, but it is measured with noise; it is known exactly."""

MACHINES = (3, 200)

KINDS = (
    (0.35, 0.25, 4),  # RTX 5090
    (0.30, 0.16, 3),  # RTX 4090
    (0.14, 0.08, 3),  # RTX 3090
    (1.20, 0.22, 1),  # A100, marketplace
    (3.06, 0.26, 1),  # A100, cloud
    (2.20, 0.55, 1),  # H100
    (0.00, 0.07, 2),  # a volunteer's card
)
"""(USD per hour, rollouts per second, how many of fifteen)."""

PRICE_SPREAD, RATE_SPREAD = 0.25, 0.2
"""Deviations of the logarithm within a kind."""

NOISE, NOISE_LASTS_S = 0.03, 900.0
"""The median of 32 values that vary by 15 % has an error of 3.3 %, and all its values are new after this time."""

PRIOR_SPREAD = 0.3
"""Deviation of the logarithm of a newcomer's own benchmark over its later rate."""

LEAVES_PER_HOUR, AWAY_S = (0.0, 0.6), 1800.0
"""For rented spot machines and owners who come home; each machine has its own rate."""

PRICE_CHANGES_PER_HOUR, PRICE_STEP = 0.3, 0.2
SLOWS_PER_HOUR, SLOW = 0.05, 0.6
"""Another program uses the card now."""

LATE = 0.15
"""Share of the machines that are not present at the beginning."""

LOADING_S, DOWNLOAD_S = (10.0, 60.0), (60.0, 600.0)
"""A standby machine holds the newest version and must only load it; a machine that just came must fetch it first."""


@dataclass(kw_only=True)
class Machine:
    """A machine of the pool. `leaves` per hour; `prior` is its promised rate over its real one."""

    name: str
    price: float
    rate: float
    broadcast_s: float
    generation_s: float
    loading_s: float
    download_s: float
    leaves: float
    prior: float
    joined_s: float | None = -1e9
    back_s: float = 0.0
    error: float = 0.0

    def candidate(self, now_s: float, *, factor: float = 1.0) -> Candidate:
        """Return the machine as a plan sees it, with `factor` times its true rate."""
        assert self.joined_s is not None
        return Candidate(
            name=self.name,
            price=self.price,
            rate=self.rate * factor,
            broadcast_s=self.broadcast_s,
            generation_s=self.generation_s,
            start_s=max(self.loading_s, self.joined_s + self.download_s - now_s),
            stops_per_hour=self.leaves,
        )


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The pool at one time: its true rates, and the known ones, `measured` or, until then, `promised`.

    `exact`: all machines are measured, and without an error.
    """

    at_s: float
    true: tuple[Candidate, ...]
    measured: dict[str, Candidate]
    promised: dict[str, Candidate]
    exact: bool = False


def trace(seed: int) -> tuple[Clockwork, list[Moment]]:
    """Return the learner's clock, and the pool at every review."""
    rng = random.Random(seed)
    train_s = 60.0 * 30 ** rng.random()
    machines = _machines(rng, train_s)
    clock = _clock(rng, train_s, machines)
    for one in rng.sample(machines, int(LATE * len(machines))):
        one.joined_s, one.back_s = None, rng.uniform(0, CHURN_S)
    moments, now_s = [], 0.0
    while now_s < CHURN_S + QUIET_S + EXACT_S:
        if 0 < now_s < CHURN_S:
            for one in machines:
                _churn(rng, one, now_s)
        exact = now_s >= CHURN_S + QUIET_S
        _measure(rng, machines, exact=exact)
        here = [one for one in machines if one.joined_s is not None]
        moments.append(
            Moment(
                at_s=now_s,
                true=tuple(one.candidate(now_s) for one in here),
                measured={one.name: one.candidate(now_s, factor=1 + one.error) for one in here},
                promised={one.name: one.candidate(now_s, factor=one.prior) for one in here},
                exact=exact,
            )
        )
        now_s += REVIEW_S
    return clock, moments


def _machines(rng: random.Random, train_s: float) -> list[Machine]:
    low, high = MACHINES
    mean_broadcast_s, generation_s = train_s * rng.uniform(0.05, 0.8), train_s * rng.uniform(0.05, 0.3)
    prices, rates, counts = zip(*KINDS, strict=True)
    kinds = rng.choices(list(zip(prices, rates, strict=True)), counts, k=round(low * (high / low) ** rng.random()))
    return [
        Machine(
            name=f"m{number}",
            price=price * rng.lognormvariate(0, PRICE_SPREAD),
            rate=rate * rng.lognormvariate(0, RATE_SPREAD),
            broadcast_s=mean_broadcast_s * rng.lognormvariate(0, 0.3),
            generation_s=generation_s,
            loading_s=rng.uniform(*LOADING_S),
            download_s=rng.uniform(*DOWNLOAD_S),
            leaves=rng.uniform(*LEAVES_PER_HOUR),
            prior=rng.lognormvariate(0, PRIOR_SPREAD),
        )
        for number, (price, rate) in enumerate(kinds)
    ]


def _clock(rng: random.Random, train_s: float, machines: list[Machine]) -> Clockwork:
    """Return a clock whose R needs a quarter to two thirds of all machines, at the strictest condition."""
    staleness = rng.randint(2, 6)
    everybody = [one.candidate(0.0) for one in machines]
    delay_s = usual_delay_s([one.supplier() for one in everybody])
    publishing = Publishing(train_s=train_s, delay_s=delay_s, publish_s=0.05 * train_s)
    kappa = choose_kappa(publishing, staleness)
    unit = Clockwork(train_s=train_s, rollouts=1, staleness=staleness, kappa=kappa)
    all_supply = Requirement(unit, everybody, 1.0).share(np.ones(len(everybody)))
    rollouts = max(1, int(all_supply * rng.uniform(0.25, 0.67)))
    return Clockwork(train_s=train_s, rollouts=rollouts, staleness=staleness, kappa=kappa)


def _churn(rng: random.Random, one: Machine, now_s: float) -> None:
    def happens(per_hour: float) -> bool:
        return rng.random() < per_hour * REVIEW_S / 3600

    if one.joined_s is None:
        if now_s >= one.back_s:
            one.joined_s = now_s
    elif happens(one.leaves):
        one.joined_s, one.back_s = None, now_s + rng.expovariate(1 / AWAY_S)
    if happens(PRICE_CHANGES_PER_HOUR):
        one.price *= rng.lognormvariate(0, PRICE_STEP)
    if happens(SLOWS_PER_HOUR):
        one.rate *= SLOW


def _measure(rng: random.Random, machines: list[Machine], *, exact: bool) -> None:
    """Draw errors that last: an autoregressive walk with deviation NOISE."""
    kept = float(np.exp(-REVIEW_S / NOISE_LASTS_S))
    for one in machines:
        one.error = 0.0 if exact else kept * one.error + (1 - kept**2) ** 0.5 * rng.gauss(0, NOISE)
