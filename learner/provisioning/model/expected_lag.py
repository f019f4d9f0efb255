"""How old rollouts are when they are trained on, on average.

Pure. What always holds: the answer lies between 0 and S. Batch n is formed at n P, with P the seconds from one step to
the next, of which the learner waits W; version m was published at m P - W, when step m - 1 ended. The rollouts of batch
n begin, evenly, from (n - a) P to (n - a + 1) P, each with the newest version that its machine has by then, where

    a = 1 + T_gen / P    while the learner waits: it takes what comes as it comes
    a = `ahead`          while it does not: so far ahead are leases given out
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from learner.provisioning.model.capacity import Clockwork, Supplier

BATCHES_HELD = 2
"""Batches of leases that a peer has in hand: one that it generates, and one that waits."""

WAITS = 1e-3
"""Of T_train: a wait that empties the buffer."""

_PHASES = 32
"""Moments of a training step at which the lag is looked at; the error is a thirty-second of a step."""


def usual_ahead(staleness: int, suppliers: Sequence[Supplier], *, train_s: float) -> float:
    """`batches_ahead` for these peers."""
    rate = math.fsum(one.rate for one in suppliers)
    taken = math.fsum(one.rate * one.generation_s for one in suppliers if one.rate > 0)
    generation_s = taken / rate if rate > 0 else 0.0
    return batches_ahead(staleness, generation_s=generation_s, train_s=train_s)


def batches_ahead(staleness: int, *, generation_s: float, train_s: float) -> float:
    """Batches leased or waiting where nothing else is set: by Little's law what is trained on while peers make what
    they hold, and the batch that is due next; no more than the window can use.

    With less the learner waits (by 0.4 % of T_train in simulations with half of the former), with more rollouts grow
    older (0.06 steps with half as much again).
    """
    return min(1.0 + BATCHES_HELD * generation_s / train_s, staleness + 1.0)


def expected_lag(clock: Clockwork, suppliers: Sequence[Supplier], period_s: float) -> float:
    """The mean lag, in training steps, of what is trained on; `period_s` from step to step.

    With no bound on `ahead` the buffer fills, and all are of age S.
    """
    total = math.fsum(one.rate for one in suppliers)
    waited_s = period_s - clock.train_s
    waits = waited_s > WAITS * clock.train_s
    if total == 0 or not math.isfinite(period_s) or not (waits or math.isfinite(clock.ahead)):
        return float(clock.staleness)
    lags = []
    for one in (one for one in suppliers if one.rate > 0):
        ahead = 1 + one.generation_s / period_s if waits else clock.ahead
        known = (one.broadcast_s - max(0.0, waited_s)) / period_s
        lags.append(one.rate * _mean_lag(clock, ahead, known))
    return math.fsum(lags) / total


def _mean_lag(clock: Clockwork, ahead: float, known: float) -> float:
    """For one machine, over all steps between two publications and all moments at which a rollout may begin. It has a
    version `known` steps after the batch of the same number was formed, or before it where that is negative."""
    lags = []
    for step in range(clock.kappa):
        for phase in range(_PHASES):
            begun = step - ahead + (phase + 0.5) / _PHASES
            version = math.floor((begun - known) / clock.kappa) * clock.kappa
            lags.append(min(clock.staleness, max(0, step - version)))
    return math.fsum(lags) / len(lags)
