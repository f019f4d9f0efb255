"""ECHO-2's capacity model as printed (arXiv 2602.02192, sections 3.2 to 3.4), beside ours in `overlap`.

The learner takes T_train for a step on R rollouts; every kappa training steps it publishes a version, which is in use
T_bcast later. The paper lets a publication window live on the newest version's rollouts alone:

    (1)  kappa T_train >= T_bcast + kappa R / mu
    (2)  mu >= mu_min(kappa) = kappa R / (kappa T_train - T_bcast)
    (7)  lag <= kappa + ceil((T_bcast + R / mu) / T_train) - 1
    (12) lag <= kappa + ceil((1 - 1 / kappa) T_bcast / T_train)     given (1)

What always holds: T_bcast + T_gen stands in the place of T_bcast in all four, since a rollout counts when it arrives
and not when it is begun; with T_gen = 0 they are the paper's. Times are seconds, mu is *admitted* rollouts per second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GAMMA = 1.1
"""What is provisioned over what the rule asks for (section 3.4)."""

QUORUM = 1 / GAMMA
"""T_bcast is the time until so large a share of the active peers have installed a version (section 4.3)."""

_ROUNDING = 1e-9
"""Times are measured: a quotient this little above an integer is that integer."""


@dataclass(frozen=True, kw_only=True)
class Timings:
    """What the clockwork of a swarm was measured, or is assumed, to take.

    Args:
        train_s: T_train, one training step.
        rollouts: R, taken by one training step.
        broadcast_s: T_bcast, from the end of a step until QUORUM of the active peers have its version installed.
        generation_s: T_gen, from the start of a rollout until it is admitted; the 95th percentile.

    Raises ValueError for what is not a finite number, or is out of range.
    """

    train_s: float
    rollouts: int
    broadcast_s: float
    generation_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("T_train", self.train_s), ("R", self.rollouts)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} = {value} is not a positive number")
        for name, value in (("T_bcast", self.broadcast_s), ("T_gen", self.generation_s)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} = {value} is not zero or a positive number")

    @property
    def delay_s(self) -> float:
        """T_bcast + T_gen: from a version's publication until its first rollouts are admitted."""
        return self.broadcast_s + self.generation_s


def mu_min(timings: Timings, kappa: int) -> float:
    """Equation (2): rollouts per second that keep the learner busy; infinity where no number does."""
    spare_s = kappa * timings.train_s - timings.delay_s
    return kappa * timings.rollouts / spare_s if spare_s > 0 else math.inf


def mu_target(timings: Timings, kappa: int, gamma: float = GAMMA) -> float:
    """What is provisioned: gamma times `mu_min` (section 3.4)."""
    return gamma * mu_min(timings, kappa)


def wait_s(timings: Timings, kappa: int, mu: float) -> float:
    """Seconds that the learner waits per training step at `mu` > 0 rollouts per second: what (1) lacks, by kappa."""
    return max(0.0, timings.delay_s / kappa + timings.rollouts / mu - timings.train_s)


def lag_bound(timings: Timings, kappa: int, mu: float) -> int:
    """Equation (7): the largest lag, in training steps, at `mu` > 0 rollouts per second."""
    return kappa + _ceil((timings.delay_s + timings.rollouts / mu) / timings.train_s) - 1


def tightened_lag_bound(timings: Timings, kappa: int) -> int:
    """Equation (12): the largest lag, in training steps, where (1) holds."""
    return kappa + _ceil((1 - 1 / kappa) * timings.delay_s / timings.train_s)


def largest_kappa(timings: Timings, staleness: int) -> int | None:
    """The publication period for the window S = `staleness` >= 1.

    1 for S of 1 and 2; else the largest of 1 to S - 1 whose bound (12) stays within S. S - 1 itself, which the paper
    takes always, is proven for T_bcast < T_train. None where the learner would wait with any number of machines:
    `explain_infeasible` says what would help.
    """
    for kappa in range(_most(staleness), 0, -1):
        if kappa * timings.train_s > timings.delay_s and tightened_lag_bound(timings, kappa) <= staleness:
            return kappa
    return None


def explain_infeasible(timings: Timings, staleness: int) -> str:
    """Why `largest_kappa` found none, and the numbers from which on it finds one."""
    kappa = max(k for k in range(1, _most(staleness) + 1) if tightened_lag_bound(timings, k) <= staleness)
    quickest = math.floor(timings.delay_s / timings.train_s) + 1
    window = tightened_lag_bound(timings, quickest)  # it grows with kappa, so no smaller window has a period at all
    steps = "1 training step" if kappa == 1 else f"{kappa} training steps"
    return (
        f"With S = {staleness} a version lasts {steps} at most, {kappa * timings.train_s:.4g} s, and the first "
        f"rollouts of one come after T_bcast + T_gen = {timings.delay_s:.4g} s: the learner would wait with any number "
        f"of machines. It would not with T_bcast + T_gen below {kappa * timings.train_s:.4g} s, or T_train above "
        f"{timings.delay_s / kappa:.4g} s, or S = {window}."
    )


def _most(staleness: int) -> int:
    return max(1, staleness - 1)


def _ceil(value: float) -> int:
    return math.ceil(value - _ROUNDING)
