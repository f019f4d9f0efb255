"""Estimates that one odd value does not move, and intervals that contain the true value as often as they claim."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.provisioning.estimation.estimates import ODD, RARE, WINDOW, Estimate, Recent, RecentRatio, ranks
from tests.support.estimates import has_drifted


def test_nothing_is_estimated_from_nothing() -> None:
    assert Recent().median() is None


def test_one_odd_value_moves_nothing() -> None:
    recent = Recent([10.0] * 20)
    recent.add(1e6)
    assert recent.median() == Estimate(value=10.0, low=10.0, high=10.0, count=21)


def test_a_mean_leaves_out_what_is_rare_and_long() -> None:
    assert Recent().mean() is None
    recent = Recent([10.0] * 20)
    for _ in range(RARE):
        recent.add(1e6)
    mean = recent.mean()
    assert mean is not None
    assert (mean.low, mean.value, mean.high, mean.count) == (10.0, 10.0, 10.0, 22)


def test_a_mean_contains_what_is_long_again_and_again() -> None:
    """Every eighth training step is followed by an evaluation, say."""
    mean = Recent([10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 90.0] * 4).mean()
    assert mean is not None
    assert mean.value == 20.0
    assert mean.low < 20.0 < mean.high


def test_the_interval_of_a_mean_is_students() -> None:
    mean = Recent([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).mean()
    assert mean is not None
    assert (mean.low, mean.high) == pytest.approx((3.5 - 1.963, 3.5 + 1.963), abs=0.02)  # 2.571 x 1.871 / sqrt(6)
    few = Recent([1.0, 2.0]).mean()
    assert few is not None
    assert (few.low, few.value, few.high) == (0.0, 1.5, math.inf)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_a_mean_lies_among_its_values_and_in_its_interval(values: list[float]) -> None:
    mean = Recent(values).mean()
    assert mean is not None
    assert 0 <= mean.low <= mean.value <= mean.high
    last = values[-WINDOW:]
    assert min(last) * (1 - 1e-9) <= mean.value <= max(last) * (1 + 1e-9)


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
        drifted += has_drifted(estimate, 1.0)
    assert drifted <= 25
    moved = Recent(1.4 * rng.lognormvariate(0, 0.1) for _ in range(10)).median()
    assert moved is not None
    assert has_drifted(moved, 1.0)


def test_a_change_that_is_sure_and_small_is_none() -> None:
    assert not has_drifted(Estimate(value=1.05, low=1.04, high=1.06, count=32), 1.0)
    assert has_drifted(Estimate(value=1.2, low=1.19, high=1.21, count=32), 1.0)
    assert not has_drifted(Estimate(value=1.2, low=0.9, high=1.5, count=4), 1.0)


def test_a_rate_is_a_sum_over_a_sum() -> None:
    ratio = RecentRatio()
    for amount, took in [(10, 1), (10, 3), (10, 2)] * 2:
        ratio.add(amount, took)
    estimate = ratio.ratio()
    assert estimate is not None
    assert estimate.value == 5.0  # a median of rates would be the same here, their mean 6.1
    assert 0 < estimate.low < 5 < estimate.high < math.inf
    assert estimate.count == 6


def test_a_rate_of_few_has_open_ends_and_of_nothing_is_none() -> None:
    ratio = RecentRatio()
    assert ratio.ratio() is None
    ratio.add(4, 0)
    assert ratio.ratio() is None
    ratio.add(4, 2)
    assert ratio.ratio() == Estimate(value=4.0, low=0.0, high=math.inf, count=2)


def test_one_odd_value_hardly_moves_a_rate_and_many_do() -> None:
    ratio = RecentRatio()
    for took in [1.0] * (WINDOW - 1) + [1000.0]:
        ratio.add(1, took)
    estimate = ratio.ratio()
    assert estimate is not None
    assert estimate.value == pytest.approx(WINDOW / (WINDOW - 1 + ODD))
    for _ in range(WINDOW):
        ratio.add(1, 1000.0)
    slower = ratio.ratio()
    assert slower is not None
    assert slower.value == pytest.approx(0.001)


def test_what_came_to_nothing_counts_in_full() -> None:
    ratio = RecentRatio()
    ratio.add(10, 10)
    ratio.add(0, 90)
    estimate = ratio.ratio()
    assert estimate is not None
    assert estimate.value == pytest.approx(0.1)


def test_the_interval_of_a_rate_contains_it_about_as_often_as_it_says() -> None:
    rng = random.Random(1)
    missed = 0
    for _ in range(1000):
        ratio = RecentRatio()
        for _ in range(12):
            ratio.add(8, 8 * rng.uniform(0.5, 1.5))
        estimate = ratio.ratio()
        assert estimate is not None
        missed += not estimate.low <= 1.0 <= estimate.high
    assert missed <= 80


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=2 * WINDOW))
def test_a_rate_is_never_negative_and_lies_in_its_interval(pairs: list[tuple[float, float]]) -> None:
    ratio = RecentRatio()
    for amount, took in pairs:
        ratio.add(amount, took)
    if (estimate := ratio.ratio()) is not None:
        assert 0 <= estimate.low <= estimate.value <= estimate.high
        assert estimate.count == len(ratio) <= WINDOW
