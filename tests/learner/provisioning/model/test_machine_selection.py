"""The chosen machines are compared with every possible set, and with the rule that the sets must keep."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.provisioning.model.capacity import Clockwork, period_s
from learner.provisioning.model.machine_selection import (
    FEW,
    MARGIN,
    Candidate,
    Choice,
    Requirement,
    Shortage,
    cheapest,
    greedy,
)
from tests.support.capacity_condition import never_waits
from tests.support.examples import examples

CLOCK = Clockwork(train_s=100.0, rollouts=100, staleness=3, kappa=2)


def machine(name: str, price: float, rate: float, **more: float) -> Candidate:
    return Candidate(name=name, price=price, rate=rate, broadcast_s=50.0, generation_s=10.0, **more)


def names(answer: Choice | Shortage) -> set[str]:
    assert isinstance(answer, Choice)
    return {one.name for one in answer.chosen}


candidate = st.builds(
    Candidate,
    name=st.integers(0, 1 << 40).map(str),
    price=st.floats(0, 5),
    rate=st.floats(0.01, 2),
    broadcast_s=st.floats(0, 180),
    generation_s=st.floats(0, 60),
    start_s=st.floats(0, 600),
    stops_per_hour=st.floats(0, 1),
)


def pools(least: int, most: int) -> st.SearchStrategy[list[Candidate]]:
    return st.lists(candidate, min_size=least, max_size=most, unique_by=lambda one: one.name)


candidates = pools(1, 6) | pools(FEW + 1, FEW + 2)
"""Few are looked at set by set, and more are the solver's."""


@settings(deadline=None, max_examples=examples(60))
@given(candidates, st.integers(1, 4).flatmap(lambda s: st.tuples(st.just(s), st.integers(1, s))))
def test_no_set_that_suffices_is_cheaper(pool: list[Candidate], window: tuple[int, int]) -> None:
    clock = replace(CLOCK, staleness=window[0], kappa=window[1])
    requirement = Requirement(clock, pool)
    sets = np.array(list(itertools.product((0.0, 1.0), repeat=len(pool))))
    prices = sets @ np.array([one.running_price for one in pool])
    shares = (sets @ requirement.weights.T / requirement.least).min(axis=1)
    sufficient = prices[shares >= 1].tolist()
    # To the solver's tolerance, which the margin covers.
    nearly = prices[shares >= 1 - 1e-5].tolist()
    best, simple = cheapest(requirement, [one.name for one in pool]), greedy(requirement)
    if not nearly:
        assert isinstance(best, Shortage)
        assert isinstance(simple, Shortage)
        assert best.share < 1
    if not sufficient:
        return
    assert isinstance(best, Choice)
    assert isinstance(simple, Choice)
    assert best.exact
    assert min(nearly) - 1e-4 <= best.price <= min(sufficient) + 1e-4
    assert simple.price >= best.price - 1e-4
    for choice in (best, simple):
        suppliers = [one.supplier() for one in choice.chosen]
        assert never_waits(clock, suppliers)
        assert period_s(clock, suppliers) == pytest.approx(clock.train_s)
        assert choice.rate >= MARGIN * clock.rollouts / clock.train_s * (1 - 1e-6)


def test_the_paper_takes_the_best_price_per_rollout_first() -> None:
    pool = [
        machine("dear", 3.0, 1.0),
        machine("cheap", 0.35, 0.6),
        machine("fair", 0.7, 0.6),
        machine("slow", 0.2, 0.1),
    ]
    assert names(greedy(Requirement(CLOCK, pool))) == {"cheap", "fair"}


def test_the_optimum_does_not_buy_a_large_machine_for_a_small_gap() -> None:
    pool = [machine("best", 1.0, 1.0), machine("large", 9.0, 8.0), machine("small", 0.4, 0.1)]
    requirement = Requirement(CLOCK, pool)
    assert names(greedy(requirement)) == {"best", "large"}
    assert names(cheapest(requirement)) == {"best", "small"}


def test_a_machine_too_far_away_is_no_help() -> None:
    late = replace(machine("late", 0.0, 100.0), broadcast_s=290.0)
    assert isinstance(cheapest(Requirement(CLOCK, [late])), Shortage)
    assert names(cheapest(Requirement(CLOCK, [late, machine("near", 9.0, 2.0)]))) == {"near"}


def test_volunteers_too_far_away_are_not_taken_for_being_cheap() -> None:
    late = [replace(machine(f"late {i}", 0.0, 1.0), broadcast_s=500.0) for i in range(5)]
    assert names(greedy(Requirement(CLOCK, [*late, machine("near", 9.0, 2.0)]))) == {"near"}


def test_a_set_is_not_left_for_one_that_saves_less_than_moving_costs() -> None:
    here, there = machine("here", 1.0, 2.0), machine("there", 0.9, 2.0, start_s=1200.0)
    requirement = Requirement(CLOCK, [here, there])
    assert names(cheapest(requirement)) == {"here"}, "0.9 an hour and a third of it for its start"
    assert names(cheapest(requirement, ["here"])) == {"here"}
    assert names(cheapest(requirement, ["there"])) == {"there"}
    assert names(cheapest(requirement, ["here"], stands_s=24 * 3600.0)) == {"there"}


def test_what_is_taken_away_often_supplies_less_and_costs_its_starts() -> None:
    spot = machine("spot", 1.0, 1.0, start_s=900.0, start_price=0.1, stops_per_hour=4.0)
    assert spot.usable_rate == pytest.approx(0.5)
    assert spot.running_price == pytest.approx(1.4)
    assert spot.rho == pytest.approx(1.4 / 1800)


@pytest.mark.parametrize("count", [9, FEW + 1])
def test_of_free_machines_as_few_as_suffice_are_on(count: int) -> None:
    pool = [machine(f"volunteer{i}", 0.0, 0.4) for i in range(count)]
    answer = cheapest(Requirement(CLOCK, pool))
    assert len(names(answer)) == 3
    assert isinstance(answer, Choice)
    assert answer.price == 0


def test_a_machine_a_million_times_too_fast_is_still_chosen_whole() -> None:
    assert names(cheapest(Requirement(replace(CLOCK, rollouts=1), [machine("huge", 1.0, 17360.5)]))) == {"huge"}


def test_who_is_to_be_kept_is_kept_and_what_is_missing_is_added() -> None:
    pool = [machine("dear", 3.0, 0.6), machine("fair", 0.7, 0.6), machine("cheap", 0.35, 0.6)]
    requirement = Requirement(CLOCK, pool)
    assert names(cheapest(requirement)) == {"fair", "cheap"}
    assert names(cheapest(requirement, keep=["dear"])) == {"dear", "cheap"}
    assert names(greedy(requirement, keep=["dear"])) == {"dear", "cheap"}


def test_a_shortage_says_how_far_it_is() -> None:
    answer = cheapest(Requirement(CLOCK, [machine("one", 1.0, 0.5)]))
    assert isinstance(answer, Shortage)
    assert answer.share == pytest.approx(0.5 / MARGIN)
    assert answer.rate == 0.5
    assert answer.needed == pytest.approx(MARGIN)
    assert isinstance(cheapest(Requirement(CLOCK, [])), Shortage)


def test_versions_that_overtake_each_other_are_a_shortage_whoever_is_on() -> None:
    clock = replace(CLOCK, broadcast_s=300.0)
    answer = greedy(Requirement(clock, [machine("one", 1.0, 50.0)]))
    assert isinstance(answer, Shortage)
    assert answer.share == 0


def test_a_machine_that_does_nothing_has_no_price_per_rollout() -> None:
    assert machine("idle", 1.0, 0.0).rho == math.inf
