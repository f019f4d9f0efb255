"""The publication period: what it costs, whether versions keep up, and that noise does not move it."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.provisioning.model.capacity import Clockwork, Supplier, rate_needed
from learner.provisioning.planner.constants import SHORT_REVIEWS
from learner.provisioning.planner.publish_period import TOLERATED_LOSS, Period, Publishing, choose_kappa, usual_delay_s

REVIEW_S = 10.0
CHEAP = Publishing(train_s=100.0, delay_s=50.0)
COSTLY = replace(CHEAP, publish_s=10.0)

times = st.builds(
    Publishing,
    train_s=st.just(100.0),
    delay_s=st.floats(0, 900),
    source_s=st.floats(0, 900),
    publish_s=st.floats(0, 50),
)


def test_taking_turns_every_step_is_published() -> None:
    assert choose_kappa(COSTLY, 0) == 1


def test_what_costs_nothing_is_done_after_every_step() -> None:
    assert choose_kappa(CHEAP, 6) == 1


def test_what_costs_time_is_done_as_rarely_as_loses_hardly_more_than_the_least() -> None:
    # 10 % over kappa: with the largest that costs no machine, 5, it is 2 %; with 4 it is 2.5 %, with 3 it is 3.3 %.
    assert choose_kappa(COSTLY, 6) == 4
    assert COSTLY.lost(4) <= COSTLY.lost(5) + TOLERATED_LOSS < COSTLY.lost(3)


def test_versions_do_not_overtake_each_other() -> None:
    assert choose_kappa(replace(CHEAP, source_s=180.0), 6) == 2
    assert choose_kappa(replace(CHEAP, source_s=195.0), 6) == 3, "a new period must do with times a tenth longer"
    assert choose_kappa(replace(CHEAP, source_s=195.0), 6, current=2) == 2, "the one in use need not"


def test_a_float_s_last_digit_is_no_step() -> None:
    """Where peers install every version, the source is taken to be busy for exactly kappa steps."""
    train_s = 1296.9372662903522
    assert 7 * train_s / train_s > 7
    exact = Publishing(train_s=train_s, delay_s=20 * train_s, source_s=7 * train_s)
    assert choose_kappa(exact, 11) == 7


def test_the_period_in_use_is_left_when_another_has_been_better_for_a_while() -> None:
    period = Period(REVIEW_S)
    assert period.review(CHEAP, 6, 0.0) == 1, "the first is taken at once"
    assert {period.review(COSTLY, 6, REVIEW_S * number) for number in range(SHORT_REVIEWS)} == {1}
    period.review(CHEAP, 6, REVIEW_S * SHORT_REVIEWS)
    since_s = REVIEW_S * (SHORT_REVIEWS + 1)
    assert period.review(COSTLY, 6, since_s) == 1, "a change that does not last is noise"
    assert period.review(COSTLY, 6, since_s + SHORT_REVIEWS * REVIEW_S) == period.kappa == 4


def test_machines_can_be_had_and_time_cannot() -> None:
    assert choose_kappa(replace(CHEAP, source_s=350.0, delay_s=400.0), 6) == 4
    assert choose_kappa(replace(CHEAP, source_s=5000.0), 6) == 6
    assert choose_kappa(CHEAP, 1) == 1


@given(times, st.integers(1, 11))
def test_an_admissible_period_costs_no_machine(publishing: Publishing, staleness: int) -> None:
    kappa = choose_kappa(publishing, staleness)
    assert 1 <= kappa <= staleness
    clock = Clockwork(train_s=100.0, rollouts=50, staleness=staleness, kappa=kappa, broadcast_s=publishing.source_s)
    if publishing.is_admissible(kappa, staleness):
        assert rate_needed(clock, delay_s=publishing.delay_s) == pytest.approx(0.5)
    else:
        assert kappa == publishing.keeping_up(staleness)


@given(times, st.integers(1, 11))
def test_what_was_chosen_stays(publishing: Publishing, staleness: int) -> None:
    kappa = choose_kappa(publishing, staleness)
    assert choose_kappa(publishing, staleness, current=kappa) == kappa


@pytest.mark.parametrize("publish_s", [2.0, 4.0, 6.0, 10.0, 20.0])
def test_noise_moves_it_once_at_most(publish_s: float) -> None:
    rng, kappa, seen = random.Random(7), None, []
    for _ in range(300):
        times = Publishing(
            train_s=100 * rng.gauss(1, 0.02), delay_s=80 * rng.gauss(1, 0.02), publish_s=publish_s * rng.gauss(1, 0.03)
        )
        kappa = choose_kappa(times, 6, current=kappa)
        seen.append(kappa)
    assert sum(before != after for before, after in pairwise(seen)) <= 1


def test_the_usual_delay_is_that_of_nearly_all_that_is_supplied() -> None:
    quick = [Supplier(rate=1.0, broadcast_s=10.0 + number, generation_s=5.0) for number in range(10)]
    slow = Supplier(rate=0.5, broadcast_s=500.0, generation_s=5.0)
    assert usual_delay_s([*quick, slow]) == 24.0
    assert usual_delay_s([]) == 0.0
    assert usual_delay_s([replace(slow, rate=0.0)]) == 0.0
