"""Measure how soon the planner reacts to real changes: four shocks to a swarm that was left in peace.

Invariants:

- Each shock comes to the planner in the state in which the trace left it.
- Time is counted from the moment after a review to the review that activates enough, so a shock that the next review
  catches took REVIEW_S. The start of the machines takes its own time.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.market.loops import Ours
from learner.provisioning.model.capacity import Clockwork
from learner.provisioning.model.machine_selection import MARGIN, Candidate, Choice, cheapest
from learner.provisioning.planner.constants import REVIEW_S
from learner.provisioning.planner.pool import Pool

MOST_REVIEWS = 240

SLOWER, QUICKER, HIT = 0.5, 0.85, 1 / 3
"""A third of the active machines supply half as much; the learner's step takes 15 % less."""

MATTERS = 0.05
"""A smaller saving need not be followed."""

Enough = Callable[[Pool, frozenset[str]], bool]


def reactions(ours: Ours, clock: Clockwork, now_s: float, pool: Sequence[Candidate], seed: int) -> dict[str, float]:
    """Return seconds by shock, infinity for never; without shocks that change nothing or that no set can compensate."""
    active = sorted(ours.review(now_s, pool, set()))
    rng = random.Random(seed)
    gone, slow = (
        set(rng.sample(active, (len(active) + 1) // 2)),
        set(rng.sample(active, max(1, round(len(active) * HIT)))),
    )
    others = [one for one in pool if one.name not in active and one.price > 0]
    found = {
        "half killed": _shock(ours, clock, now_s, [one for one in pool if one.name not in gone]),
        "a third slower": _shock(
            ours, clock, now_s, [replace(one, rate=one.rate * (SLOWER if one.name in slow else 1)) for one in pool]
        ),
        "quicker learner": _shock(ours, replace(clock, train_s=clock.train_s * QUICKER), now_s, pool),
    }
    if others:
        best = max(others, key=lambda one: one.usable_rate).name
        free = [replace(one, price=0.0) if one.name == best else one for one in pool]
        if _matters(Pool(clock, free), best, active):
            found["one becomes free"] = _shock(ours, clock, now_s, free, lambda _, active: best in active)
    return {name: took_s for name, took_s in found.items() if took_s is not None}


def _matters(pool: Pool, name: str, active: Sequence[str]) -> bool:
    """Return whether the machine would be active, and save enough to be worth a change."""
    choice = cheapest(pool.target, active)
    chosen = isinstance(choice, Choice) and name in {one.name for one in choice.chosen}
    return chosen and isinstance(choice, Choice) and choice.price < (1 - MATTERS) * pool.price(active)


def _supplies(pool: Pool, active: frozenset[str]) -> bool:
    return pool.share(active) >= 1


def _shock(
    ours: Ours, clock: Clockwork, now_s: float, after: Sequence[Candidate], enough: Enough = _supplies
) -> float | None:
    pool, ours = Pool(clock, after), copy.deepcopy(ours)
    if enough(pool, ours.active & pool.names) or pool.share(pool.names) < MARGIN:
        return None
    ours.train_s = clock.train_s
    for number in range(1, MOST_REVIEWS + 1):
        if enough(pool, ours.review(now_s + number * REVIEW_S, after, set())):
            return number * REVIEW_S
    return float("inf")
