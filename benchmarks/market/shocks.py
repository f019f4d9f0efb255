"""How soon the planner reacts to what really changes: four shocks to a swarm that was left in peace.

What always holds: each shock meets the planner as the trace left it; time is counted from the moment after a review to
the review at which enough is switched on, so one that is caught at the next review took REVIEW_S. What then has to
start takes its own time.
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
"""A third of those on give half as much; the learner's step takes 15 % less."""

MATTERS = 0.05
"""A saving of less need not be followed."""

Enough = Callable[[Pool, frozenset[str]], bool]


def reactions(ours: Ours, clock: Clockwork, now_s: float, pool: Sequence[Candidate], seed: int) -> dict[str, float]:
    """Seconds by shock, infinity for never; without those that changed nothing or that nobody could make good."""
    on = sorted(ours.review(now_s, pool, set()))
    rng = random.Random(seed)
    gone, slow = set(rng.sample(on, (len(on) + 1) // 2)), set(rng.sample(on, max(1, round(len(on) * HIT))))
    others = [one for one in pool if one.name not in on and one.price > 0]
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
        if _matters(Pool(clock, free), best, on):
            found["one becomes free"] = _shock(ours, clock, now_s, free, lambda _, active: best in active)
    return {name: took_s for name, took_s in found.items() if took_s is not None}


def _matters(pool: Pool, name: str, on: Sequence[str]) -> bool:
    """Whether it would be on, and save enough to be moved to."""
    choice = cheapest(pool.target, on)
    chosen = isinstance(choice, Choice) and name in {one.name for one in choice.chosen}
    return chosen and isinstance(choice, Choice) and choice.price < (1 - MATTERS) * pool.price(on)


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
