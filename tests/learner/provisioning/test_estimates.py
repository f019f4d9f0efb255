"""Estimates that one odd value does not move, and intervals that hold what they say."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.provisioning.estimates import WINDOW, Estimate, Recent, ranks


def test_nothing_is_estimated_from_nothing() -> None:
    assert Recent().median() is None


def test_one_odd_value_moves_nothing() -> None:
    recent = Recent([10.0] * 20)
    recent.add(1e6)
    assert recent.median() == Estimate(value=10.0, low=10.0, high=10.0, count=21)


def test_what_is_old_is_forgotten() -> None:
    recent = Recent([1.0] * WINDOW)
    for _ in range(WINDOW):
        recent.add(2.0)
    estimate = recent.median()
    assert estimate is not None
    assert (estimate.low, estimate.value, estimate.high) == (2.0, 2.0, 2.0)
    assert len(recent) == WINDOW


@pytest.mark.parametrize(("count", "expected"), [(5, (None, None)), (6, (0, 5)), (10, (1, 8)), (32, (9, 22))])
def test_ranks_are_those_of_the_tables(count: int, expected: tuple[int | None, int | None]) -> None:
    assert ranks(count, 0.5) == expected


def test_a_high_quantile_of_few_has_no_upper_end() -> None:
    estimate = Recent([1.0, 2.0, 3.0, 4.0, 5.0]).quantile(0.95)
    assert estimate is not None
    assert estimate.high == math.inf
    assert estimate.value == pytest.approx(4.8)


@given(st.integers(6, WINDOW), st.sampled_from([0.3, 0.5, 0.75]))
def test_the_interval_contains_the_quantile_as_often_as_it_says(count: int, share: float) -> None:
    low, high = ranks(count, share)
    chance = [math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(count + 1)]
    # Value r lies above the quantile when at most r values lie below it.
    assert low is None or sum(chance[: low + 1]) <= 0.025 + 1e-12
    assert high is None or sum(chance[high + 1 :]) <= 0.025 + 1e-12


def test_noise_does_not_drift_and_a_change_does() -> None:
    rng = random.Random(0)
    drifted = 0
    for _ in range(500):
        estimate = Recent(rng.lognormvariate(0, 0.3) for _ in range(WINDOW)).median()
        assert estimate is not None
        drifted += estimate.has_drifted(1.0)
    assert drifted <= 25
    moved = Recent(1.4 * rng.lognormvariate(0, 0.1) for _ in range(10)).median()
    assert moved is not None
    assert moved.has_drifted(1.0)


def test_a_change_that_is_sure_and_small_is_none() -> None:
    assert not Estimate(value=1.05, low=1.04, high=1.06, count=32).has_drifted(1.0)
    assert Estimate(value=1.2, low=1.19, high=1.21, count=32).has_drifted(1.0)
    assert not Estimate(value=1.2, low=0.9, high=1.5, count=4).has_drifted(1.0)
