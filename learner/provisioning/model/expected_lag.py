"""Compute how old rollouts are when they are trained on, on average.

Pure. Batch n is formed at n P, with P the seconds from one step to the next; the learner waits in W of these seconds.
Version m was published at m P - W, when step m - 1 ended. The rollouts of batch n begin, evenly, from (n - a) P to (n -
a + 1) P, each with the newest version that its machine has by then, where

    a = 1 + T_gen / P    if the learner waits: it takes rollouts as they come
    a = `ahead`          if it does not wait: leases are granted so far ahead

Invariants:

- The answer lies between 0 and S.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from learner.provisioning.model.capacity import Clockwork, Supplier

BATCHES_HELD = 2
"""Batches of leases that a peer has: one that it generates, and one that waits."""

WAITS = 1e-3
"""Share of T_train: a wait that empties the buffer."""

_PHASES = 32
"""Moments of a training step at which the lag is computed; the error is a thirty-second of a step."""


def usual_ahead(staleness: int, suppliers: Sequence[Supplier], *, train_s: float) -> float:
    """Return `batches_ahead` for these peers."""
    rate = math.fsum(one.rate for one in suppliers)
    taken = math.fsum(one.rate * one.generation_s for one in suppliers if one.rate > 0)
    generation_s = taken / rate if rate > 0 else 0.0
    return batches_ahead(staleness, generation_s=generation_s, train_s=train_s)


def batches_ahead(staleness: int, *, generation_s: float, train_s: float) -> float:
    """Return the batches leased or waiting if nothing else is set. By Little's law these are the batches that are
    trained on while peers work on what they have, and the batch that is due next; no more than the window can use.

    With less, the learner waits (by 0.4 % of T_train in simulations with half of the former). With more, rollouts grow
    older (by 0.06 steps with half as much again).
    """
    return min(1.0 + BATCHES_HELD * generation_s / train_s, staleness + 1.0)


def expected_lag(clock: Clockwork, suppliers: Sequence[Supplier], period_s: float) -> float:
    """Return the mean lag, in training steps, of the rollouts that are trained on; `period_s` is the time from step to
    step.

    With no bound on `ahead` the buffer fills, and all rollouts have lag S.
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
    """Return the mean lag for one machine, over all steps between two publications and all moments at which a rollout
    may begin. The machine has a version `known` steps after the batch of the same number was formed; a negative number
    means before."""
    lags = []
    for step in range(clock.kappa):
        for phase in range(_PHASES):
            begun = step - ahead + (phase + 0.5) / _PHASES
            version = math.floor((begun - known) / clock.kappa) * clock.kappa
            lags.append(min(clock.staleness, max(0, step - version)))
    return math.fsum(lags) / len(lags)
