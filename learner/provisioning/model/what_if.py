"""What would change a plan: a machine more or less, quicker versions, a wider window; and what would make one possible.

Pure. What always holds: each change is one thing alone, everything else as planned, and judged by the same model; each
remedy, taken alone, is enough (tests say so by taking it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from learner.provisioning.model.machine_selection import Choice
from learner.provisioning.model.windows import Infeasible, Outcome, Setting, Windows

MOST_STALENESS = 1000
"""What a swarm.toml takes; beyond it no window is offered."""

_HALVINGS = 40
"""To a millionth of a millionth, less than anybody measures."""

_MOST_TIMES = 1e6
"""A training step a million times as long helps nobody."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing done otherwise, and what comes of it. `machine`: the candidate that it is about, if it is about one."""

    what: str
    machine: str = ""
    outcome: Outcome | Infeasible


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """What would each be enough; None where it would not be, however far it went.

    `times`: all rates, or as many machines of each kind, times this. `rollouts`: R at most. `train_s`: T_train at
    least. `broadcast`: every machine's T_bcast at most times this. `staleness`: S at least.
    """

    times: float | None = None
    rollouts: int | None = None
    train_s: float | None = None
    broadcast: float | None = None
    staleness: int | None = None


def changes(windows: Windows, planned: Outcome) -> list[Change]:
    """One machine more, one less, versions in half the time, the next wider window. For S >= 1."""
    setting, staleness, kappa = windows.setting, planned.staleness, planned.kappa
    found = []
    if (more := _one_more(setting, planned)) is not None:
        name, choice = more
        found.append(Change(what="one machine more", machine=name, outcome=windows.outcome(staleness, kappa, choice)))
    if len(planned.choice.chosen) > 1:
        *kept, lost = planned.choice.chosen
        choice = Choice(chosen=tuple(kept), price=planned.choice.price - lost.running_price)
        found.append(
            Change(what="one machine less", machine=lost.name, outcome=windows.outcome(staleness, kappa, choice))
        )
    quicker = Windows(quickened(setting, 0.5))
    found.append(Change(what="half the T_bcast", outcome=quicker.ours(staleness)))
    found.append(Change(what=f"S = {staleness + 1}", outcome=windows.ours(staleness + 1)))
    return found


def remedies(setting: Setting, staleness: int) -> Remedies:
    """What would make the window `staleness` >= 1 possible, which it is not."""
    share = Windows(setting).share(staleness)
    return Remedies(
        times=1 / share if share > 0 else None,
        rollouts=_fewer_rollouts(setting, share),
        train_s=_longer_step(setting, staleness),
        broadcast=_quicker(setting, staleness),
        staleness=_wider(setting, staleness),
    )


def quickened(setting: Setting, factor: float) -> Setting:
    """The setting with versions travelling in `factor` of the time."""
    return replace(
        setting,
        timings=replace(setting.timings, broadcast_s=factor * setting.timings.broadcast_s),
        source_s=factor * setting.source_s,
        candidates=tuple(replace(one, broadcast_s=factor * one.broadcast_s) for one in setting.candidates),
    )


def _one_more(setting: Setting, planned: Outcome) -> tuple[str, Choice] | None:
    on = {one.name for one in planned.choice.chosen}
    spare = [one for one in setting.candidates if one.name not in on and one.usable_rate > 0]
    if not spare:
        return None
    best = min(spare, key=lambda one: (one.rho, one.name))
    chosen = (*planned.choice.chosen, best)
    return best.name, Choice(chosen=chosen, price=planned.choice.price + best.running_price)


def _fewer_rollouts(setting: Setting, share: float) -> int | None:
    rollouts = math.floor(setting.timings.rollouts * share)  # what is supplied is in proportion to 1 / R
    return rollouts if rollouts >= 1 else None


def _longer_step(setting: Setting, staleness: int) -> float | None:
    train_s = setting.timings.train_s

    def enough(times: float) -> bool:
        longer = replace(setting, timings=replace(setting.timings, train_s=times * train_s))
        return Windows(longer).share(staleness) >= 1

    times = _least(enough, 1.0, _MOST_TIMES)
    return None if times is None else times * train_s


def _quicker(setting: Setting, staleness: int) -> float | None:
    def enough(inverse: float) -> bool:
        return Windows(quickened(setting, 1 - inverse)).share(staleness) >= 1

    inverse = _least(enough, 0.0, 1.0)
    return None if inverse is None else 1 - inverse


def _wider(setting: Setting, staleness: int) -> int | None:
    """The least window that would do. Slack beyond the slowest machine's delay is worth nothing: F(t) is at least
    mu (t - delay), and what it lacks then are rates."""
    slowest_s = max((one.broadcast_s + one.generation_s for one in setting.candidates), default=0.0)
    if not math.isfinite(slowest_s):
        return None
    slack = math.ceil(slowest_s / setting.timings.train_s) + 1
    last = min(MOST_STALENESS, max(setting.least_kappa, setting.kappa or 1) + slack)
    if setting.shown is not None:
        last = max(last, setting.shown.staleness)
    windows = Windows(setting)
    return next((s for s in range(staleness + 1, last + 1) if windows.suffices(s)), None)


def _least(enough: Callable[[float], bool], low: float, high: float) -> float | None:
    """The least value with which it is `enough`, a little above it; None if `high` is not."""
    if not enough(high):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high) if low > 0 else (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
