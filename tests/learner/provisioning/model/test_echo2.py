"""The paper's equations, against the worked table of its figures."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.provisioning.model.echo2 import (
    by_rate,
    explain_infeasible,
    lag_bound,
    largest_kappa,
    mu_min,
    mu_target,
    tightened_lag_bound,
    wait_s,
)
from learner.provisioning.model.machine_selection import Candidate
from learner.provisioning.model.windows import Timings

PRINTED = Timings(train_s=1631.2, rollouts=2048, broadcast_s=1437.0)
"""Qwen3-8B, nine machines, with P2P (Table 2)."""


@pytest.mark.parametrize(
    ("staleness", "kappa", "over_balance", "lag"),
    [(3, 2, 1.787, 3), (4, 3, 1.416, 4), (6, 5, 1.214, 6), (11, 10, 1.097, 11)],
)
def test_the_worked_table(staleness: int, kappa: int, over_balance: float, lag: int) -> None:
    assert largest_kappa(PRINTED, staleness) == kappa
    balance = PRINTED.rollouts / PRINTED.train_s
    assert mu_min(PRINTED, kappa) / balance == pytest.approx(over_balance, abs=5e-4)
    assert mu_target(PRINTED, kappa) == pytest.approx(1.1 * mu_min(PRINTED, kappa))
    assert tightened_lag_bound(PRINTED, kappa) == lag


def test_the_second_row_of_table_2_follows_from_the_first_within_17_s() -> None:
    nine = Timings(train_s=1631.2, rollouts=2048, broadcast_s=1830.0)
    ten = Timings(train_s=1631.2, rollouts=2048, broadcast_s=1872.0)
    mu = 2 * nine.rollouts / (2 * nine.train_s + 2 * 131.9 - nine.broadcast_s)
    assert wait_s(nine, 2, mu) == pytest.approx(131.9)
    assert wait_s(ten, 2, mu * 10 / 9) == pytest.approx(84.1, abs=17)


def test_generation_counts_as_broadcast_does() -> None:
    slow = Timings(train_s=100.0, rollouts=10, broadcast_s=30.0, generation_s=40.0)
    same = Timings(train_s=100.0, rollouts=10, broadcast_s=70.0)
    assert mu_min(slow, 1) == mu_min(same, 1) == pytest.approx(10 / 30)
    assert lag_bound(slow, 2, 1.0) == lag_bound(same, 2, 1.0) == 2
    assert tightened_lag_bound(slow, 3) == tightened_lag_bound(same, 3) == 4


@pytest.mark.parametrize("staleness", [1, 2])
def test_small_windows_publish_every_step(staleness: int) -> None:
    assert largest_kappa(PRINTED, staleness) == 1


def test_s_minus_1_is_not_taken_where_versions_are_slow() -> None:
    slow = Timings(train_s=100.0, rollouts=10, broadcast_s=190.0)
    assert tightened_lag_bound(slow, 5) == 7
    assert largest_kappa(slow, 6) == 4


def test_what_is_infeasible_is_explained_with_numbers_that_are_not() -> None:
    slow = Timings(train_s=100.0, rollouts=10, broadcast_s=150.0, generation_s=60.0)
    assert largest_kappa(slow, 3) is None
    assert mu_min(slow, 2) == math.inf
    text = explain_infeasible(slow, 3)
    assert "below 100 s" in text
    assert "T_train above 210 s" in text
    assert "S = 5" in text
    assert largest_kappa(Timings(train_s=100.0, rollouts=10, broadcast_s=99.0), 3) is not None
    assert largest_kappa(Timings(train_s=211.0, rollouts=10, broadcast_s=210.0), 3) is not None
    assert largest_kappa(slow, 5) is not None
    assert largest_kappa(slow, 4) is None


def test_a_step_given_in_the_wrong_unit_is_explained_as_well() -> None:
    assert "S = 20000000" in explain_infeasible(Timings(train_s=1e-6, rollouts=10, broadcast_s=1e6), 3)


@given(st.floats(1, 1e4), st.floats(0, 4), st.floats(0, 2), st.integers(1, 30))
def test_the_chosen_period_keeps_the_bound_and_is_the_largest(
    train_s: float, broadcast: float, generation: float, staleness: int
) -> None:
    timings = Timings(train_s=train_s, rollouts=64, broadcast_s=broadcast * train_s, generation_s=generation * train_s)
    kappa = largest_kappa(timings, staleness)
    if kappa is None:
        assert "S = " in explain_infeasible(timings, staleness)
        return
    assert math.isfinite(mu_min(timings, kappa))
    assert tightened_lag_bound(timings, kappa) <= staleness
    assert wait_s(timings, kappa, mu_min(timings, kappa)) == pytest.approx(0, abs=1e-6 * train_s)
    assert lag_bound(timings, kappa, mu_min(timings, kappa) * 1.0001) <= staleness
    for larger in range(kappa + 1, max(1, staleness - 1) + 1):
        assert tightened_lag_bound(timings, larger) > staleness


def test_the_paper_s_choice_stops_when_rates_add_up() -> None:
    pool = (
        *(Candidate(name=name, price=0.35, rate=1.0) for name in ("m000", "m001")),
        Candidate(name="free", price=0.0, rate=0.5),
    )
    chosen = by_rate(pool, 1.2)
    assert chosen is not None
    assert [one.name for one in chosen.chosen] == ["free", "m000"]
    assert by_rate(pool, 2.6) is None
    assert by_rate(pool, math.inf) is None
