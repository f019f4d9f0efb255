"""Compute what would change a plan, and what would make one possible.

Pure. The changes are: one machine more or less, faster versions, a wider window.

Invariants:

- Each change alters one thing alone, keeps all else as planned, and is judged by the same model.
- Each remedy, taken alone, is enough; tests check that by taking it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from learner.provisioning.model.machine_selection import Choice
from learner.provisioning.model.windows import Infeasible, Outcome, Setting, Windows

MOST_STALENESS = 1000
"""Largest window that a swarm.toml accepts; no wider one is proposed."""

_HALVINGS = 40
"""Halvings of a search: down to a millionth of a millionth, less than anybody measures."""

_MOST_TIMES = 1e6
"""Limit of a search: a training step a million times as long helps nobody."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of the plan, and its outcome. `machine` is the candidate that it is about, if there is one."""

    what: str
    machine: str = ""
    outcome: Outcome | Infeasible


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """Remedies that would each be enough alone; None if one would not be, however large.

    `times`: factor on all rates, or on the number of machines of each kind. `rollouts`: largest R. `train_s`: least
    T_train. `broadcast`: largest factor on every machine's T_bcast. `staleness`: least S.
    """

    times: float | None = None
    rollouts: int | None = None
    train_s: float | None = None
    broadcast: float | None = None
    staleness: int | None = None


def changes(windows: Windows, planned: Outcome) -> list[Change]:
    """Return the outcomes of one machine more, one less, versions in half the time, and the next wider window. For S >=
    1."""
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
    """Return what would make the window `staleness` >= 1 possible, which it is not now."""
    share = Windows(setting).share(staleness)
    return Remedies(
        times=1 / share if share > 0 else None,
        rollouts=_fewer_rollouts(setting, share),
        train_s=_longer_step(setting, staleness),
        broadcast=_quicker(setting, staleness),
        staleness=_wider(setting, staleness),
    )


def quickened(setting: Setting, factor: float) -> Setting:
    """Return the setting with versions that travel in `factor` of the time."""
    return replace(
        setting,
        timings=replace(setting.timings, broadcast_s=factor * setting.timings.broadcast_s),
        source_s=factor * setting.source_s,
        candidates=tuple(replace(one, broadcast_s=factor * one.broadcast_s) for one in setting.candidates),
    )


def _one_more(setting: Setting, planned: Outcome) -> tuple[str, Choice] | None:
    active = {one.name for one in planned.choice.chosen}
    spare = [one for one in setting.candidates if one.name not in active and one.usable_rate > 0]
    if not spare:
        return None
    best = min(spare, key=lambda one: (one.rho, one.name))
    chosen = (*planned.choice.chosen, best)
    return best.name, Choice(chosen=chosen, price=planned.choice.price + best.running_price)


def _fewer_rollouts(setting: Setting, share: float) -> int | None:
    rollouts = math.floor(setting.timings.rollouts * share)  # the supplied share is proportional to 1 / R
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
    """Return the least wider window that is enough. More slack than the slowest machine's delay does not help: F(t) is
    at least mu (t - delay), so beyond it only the rates are too low."""
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
    """Return the least value that is `enough`, or slightly more; None if `high` is not."""
    if not enough(high):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high) if low > 0 else (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
