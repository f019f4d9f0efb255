"""Compute the expected lag, where it can be counted by hand, and its bounds everywhere."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.provisioning.model.capacity import Clockwork, Supplier
from learner.provisioning.model.expected_lag import expected_lag as lag_of
from learner.provisioning.model.expected_lag import usual_ahead


def clock(staleness: int, kappa: int, ahead: float) -> Clockwork:
    return Clockwork(train_s=100.0, rollouts=10, staleness=staleness, kappa=kappa, ahead=ahead)


def expected_lag(of: Clockwork, suppliers: list[Supplier], period_s: float = 100.0) -> float:
    return lag_of(of, suppliers, period_s)


def peer(broadcast_s: float, rate: float = 1.0) -> Supplier:
    return Supplier(rate=rate, broadcast_s=broadcast_s, generation_s=0.0)


def test_one_batch_ahead_with_versions_that_arrive_at_once() -> None:
    """Leased while step n - 1 is trained, by version n - 1."""
    assert expected_lag(clock(9, 1, 1.0), [peer(0.0)]) == pytest.approx(1.0)
    assert expected_lag(clock(9, 1, 2.0), [peer(0.0)]) == pytest.approx(2.0)


def test_versions_that_take_half_a_step_are_a_step_older_for_half_of_it() -> None:
    assert expected_lag(clock(9, 1, 1.0), [peer(50.0)]) == pytest.approx(1.5)
    assert expected_lag(clock(9, 1, 1.0), [peer(50.0, 3.0), peer(0.0, 1.0)]) == pytest.approx(1.375)


def test_a_period_of_three_steps_adds_one_on_average() -> None:
    assert expected_lag(clock(9, 3, 1.0), [peer(0.0)]) == pytest.approx(2.0)


def test_while_the_learner_waits_it_takes_what_comes() -> None:
    """Steps take 200 s, of which 100 are waits. Version n is there 100 s before batch n is formed. By then the first
    half of a step's rollouts have begun, less the time that they take.
    """
    at_once = Supplier(rate=1.0, broadcast_s=0.0, generation_s=0.0)
    assert expected_lag(clock(9, 1, 5.0), [at_once], 200.0) == pytest.approx(0.5)
    slow = Supplier(rate=1.0, broadcast_s=0.0, generation_s=50.0)
    assert expected_lag(clock(9, 1, 5.0), [slow], 200.0) == pytest.approx(0.75)
    late = Supplier(rate=1.0, broadcast_s=100.0, generation_s=0.0)
    assert expected_lag(clock(9, 1, 5.0), [late], 200.0) == pytest.approx(1.0)


def test_leases_are_given_out_for_what_peers_hold() -> None:
    quick, slow = (Supplier(rate=rate, broadcast_s=0, generation_s=s) for rate, s in ((3.0, 20.0), (1.0, 60.0)))
    assert usual_ahead(9, [quick, slow], train_s=60.0) == 2.0
    assert usual_ahead(9, [peer(0.0)], train_s=60.0) == usual_ahead(9, [], train_s=60.0) == 1.0
    assert usual_ahead(1, [slow], train_s=10.0) == 2.0


def test_without_pacing_the_buffer_fills_with_the_oldest() -> None:
    assert expected_lag(clock(4, 1, math.inf), [peer(0.0)]) == 4
    assert expected_lag(clock(4, 1, 2.0), []) == 4


@given(
    st.integers(1, 12).flatmap(lambda s: st.tuples(st.just(s), st.integers(1, s))),
    st.floats(1, 8),
    st.lists(st.floats(0, 1000), min_size=1, max_size=4),
    st.floats(100, 400),
)
def test_no_lag_is_over_the_window(
    window: tuple[int, int], ahead: float, broadcasts: list[float], period_s: float
) -> None:
    staleness, kappa = window
    lag = expected_lag(clock(staleness, kappa, ahead), [peer(each) for each in broadcasts], period_s)
    assert 0 <= lag <= staleness
    if period_s == 100:
        assert lag >= min(ahead, staleness) - 1 / 16
