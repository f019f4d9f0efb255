"""The consistency check of ECHO-2's Table 2, by its own formula and by ours."""

from __future__ import annotations

import pytest

from benchmarks.swarms.table2 import BROADCAST_S, TRAIN_S, _our_wait_s, _paper_wait_s, table2


def test_both_models_wait_as_nine_machines_did_and_say_how_ten_do() -> None:
    found = table2()
    assert (found.given_s, found.measured_s) == (131.9, 84.1)
    balance = 2048 / TRAIN_S
    assert _paper_wait_s(9, found.paper_rate * balance) == pytest.approx(131.9, abs=1e-6)
    assert _our_wait_s(9, found.ours_rate * balance) == pytest.approx(131.9, abs=1e-6)
    assert found.paper_s == pytest.approx(68.1, abs=0.05)
    assert found.ours_s == pytest.approx(49.1, abs=0.05)


def test_the_paper_s_formula_by_hand() -> None:
    r_over_mu_nine = TRAIN_S + 131.9 - BROADCAST_S[9] / 2
    assert table2().paper_s == pytest.approx(BROADCAST_S[10] / 2 + 0.9 * r_over_mu_nine - TRAIN_S)


def test_by_ours_nine_machines_are_too_slow_and_by_the_paper_s_nearly_twice_as_fast_as_they_must_be() -> None:
    found = table2()
    assert found.ours_rate == pytest.approx(TRAIN_S / (TRAIN_S + 131.9), rel=1e-3)
    assert found.paper_rate == pytest.approx(1.923, abs=1e-3)
