"""Compute ECHO-2's capacity model as printed (arXiv 2602.02192, sections 3.2 to 3.4), to compare it with ours.

The learner takes T_train for a step on R rollouts. Every kappa training steps it publishes a version, which is in use
T_bcast later. In the paper, only the newest version's rollouts supply a publication window:

    (1)  kappa T_train >= T_bcast + kappa R / mu
    (2)  mu >= mu_min(kappa) = kappa R / (kappa T_train - T_bcast)
    (7)  lag <= kappa + ceil((T_bcast + R / mu) / T_train) - 1
    (12) lag <= kappa + ceil((1 - 1 / kappa) T_bcast / T_train)     given (1)

Its choice of machines is judged by our model, with the same times. Nothing that runs a swarm uses this module: `volery
plan --compare-echo2` and benchmarks do.

Invariants:

- T_bcast + T_gen takes the place of T_bcast in all four, since a rollout counts when it arrives and not when it is
  begun. With T_gen = 0 they are the paper's.
- Times are seconds, mu is *admitted* rollouts per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from learner.provisioning.model.machine_selection import Candidate, Choice, greedy
from learner.provisioning.model.windows import Outcome, Timings, Windows

GAMMA = 1.1
"""Provisioned rate over the rate that the rule asks for (section 3.4)."""

_ROUNDING = 1e-9
"""Times are measured, so a quotient this little above an integer counts as that integer."""


def mu_min(timings: Timings, kappa: int) -> float:
    """Return equation (2): rollouts per second that keep the learner busy; infinity if no number does."""
    spare_s = kappa * timings.train_s - timings.delay_s
    return kappa * timings.rollouts / spare_s if spare_s > 0 else math.inf


def mu_target(timings: Timings, kappa: int, gamma: float = GAMMA) -> float:
    """Return the provisioned rate: gamma times `mu_min` (section 3.4)."""
    return gamma * mu_min(timings, kappa)


def wait_s(timings: Timings, kappa: int, mu: float) -> float:
    """Return the seconds that the learner waits per training step at `mu` > 0 rollouts per second: what is missing in
    (1), divided by kappa."""
    return max(0.0, timings.delay_s / kappa + timings.rollouts / mu - timings.train_s)


def lag_bound(timings: Timings, kappa: int, mu: float) -> int:
    """Return equation (7): the largest lag, in training steps, at `mu` > 0 rollouts per second."""
    return kappa + _ceil((timings.delay_s + timings.rollouts / mu) / timings.train_s) - 1


def tightened_lag_bound(timings: Timings, kappa: int) -> int:
    """Return equation (12): the largest lag, in training steps, if (1) holds."""
    return kappa + _ceil((1 - 1 / kappa) * timings.delay_s / timings.train_s)


def largest_kappa(timings: Timings, staleness: int) -> int | None:
    """Return the publication period for the window S = `staleness` >= 1.

    It is 1 for S of 1 and 2; else the largest of 1 to S - 1 whose bound (12) stays within S. The paper always takes S -
    1 itself, which is proven for T_bcast < T_train. Return None if the learner would wait with any number of machines:
    `explain_infeasible` says what would help.
    """
    for kappa in range(_most(staleness), 0, -1):
        if kappa * timings.train_s > timings.delay_s and tightened_lag_bound(timings, kappa) <= staleness:
            return kappa
    return None


def explain_infeasible(timings: Timings, staleness: int) -> str:
    """Return why `largest_kappa` found none, and the numbers from which on it finds one."""
    kappa = max(k for k in range(1, _most(staleness) + 1) if tightened_lag_bound(timings, k) <= staleness)
    quickest = math.floor(timings.delay_s / timings.train_s) + 1
    window = tightened_lag_bound(timings, quickest)  # grows with kappa, so no smaller window has a period at all
    steps = "1 training step" if kappa == 1 else f"{kappa} training steps"
    return (
        f"With S = {staleness} a version lasts at most {steps}, {kappa * timings.train_s:.4g} s, and its first "
        f"rollouts come after T_bcast + T_gen = {timings.delay_s:.4g} s, so the learner would wait with any number of "
        f"machines. It would not wait with T_bcast + T_gen below {kappa * timings.train_s:.4g} s, with T_train above "
        f"{timings.delay_s / kappa:.4g} s, or with S = {window}."
    )


def _most(staleness: int) -> int:
    return max(1, staleness - 1)


def _ceil(value: float) -> int:
    return math.ceil(value - _ROUNDING)


@dataclass(frozen=True, kw_only=True)
class PaperWindow:
    """ECHO-2's answer. `kappa` is None if its rule has none; `outcome` is None if the pool is below `target`."""

    staleness: int
    kappa: int | None
    mu_min: float
    target: float
    outcome: Outcome | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """ECHO-2's answers for every window from 0 on; None for S = 0, for which it has none. `greedy` is the requested
    window by our rule with the paper's way to choose machines; None if there is nothing to choose."""

    windows: tuple[PaperWindow | None, ...]
    greedy: Outcome | None


def compare(windows: Windows, last: int, planned: Outcome | None) -> Comparison:
    """Return the answers up to S = `last`, beside `planned`, our answer for the requested window (None if there was
    none)."""
    return Comparison(
        windows=(None, *(printed(windows, staleness) for staleness in range(1, last + 1))),
        greedy=greedily(windows, planned.staleness, planned.kappa) if planned else None,
    )


def greedily(windows: Windows, staleness: int, kappa: int) -> Outcome | None:
    """Return our rule's outcome with the paper's way to choose machines: the best price per rollout first."""
    choice = greedy(windows.requirement(staleness - kappa))
    return windows.outcome(staleness, kappa, choice) if isinstance(choice, Choice) else None


def printed(windows: Windows, staleness: int) -> PaperWindow:
    """Return ECHO-2's kappa, rate and machines."""
    setting = windows.setting
    timings, given = setting.timings, setting.kappa
    kappa = largest_kappa(timings, staleness) if given is None else min(given, staleness)
    least = mu_min(timings, kappa) if kappa is not None else math.inf
    target = GAMMA * least
    choice = by_rate(setting.candidates, target)
    outcome = None
    if kappa is not None and choice is not None:
        outcome = replace(
            windows.outcome(staleness, kappa, choice),
            asked=target,
            over_balance=least / setting.balance,
            lag_bound=tightened_lag_bound(timings, kappa),
        )
    return PaperWindow(staleness=staleness, kappa=kappa, mu_min=least, target=target, outcome=outcome)


def by_rate(candidates: Iterable[Candidate], target: float) -> Choice | None:
    """Return ECHO-2's choice as printed: by price per rollout until the rates add up to `target`; None if they do
    not."""
    chosen: list[Candidate] = []
    rate = 0.0
    for one in sorted(candidates, key=lambda one: (one.rho, one.name)):
        if rate >= target:
            break
        chosen.append(one)
        rate += one.usable_rate
    if rate < target:
        return None
    return Choice(chosen=tuple(chosen), price=math.fsum(one.running_price for one in chosen))
