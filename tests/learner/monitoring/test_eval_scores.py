"""pass@k against its definition, and scores by task."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.monitoring.eval_scores import pass_at_k, score


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_all_draws_of_k_that_hold_a_right_one(samples: int, data: st.DataObject) -> None:
    right, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    draws = list(combinations([True] * right + [False] * (samples - right), k))
    assert pass_at_k(samples, right, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)


@given(st.integers(1, 2000), st.data())
def test_pass_at_k_stays_between_0_and_1_and_rises_with_both(samples: int, data: st.DataObject) -> None:
    right, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    value = pass_at_k(samples, right, k)
    assert 0 <= value <= 1
    assert pass_at_k(samples, right, 1) == pytest.approx(right / samples)
    assert right == samples or value <= pass_at_k(samples, right + 1, k) + 1e-12
    assert k == samples or value <= pass_at_k(samples, right, k + 1) + 1e-12


def test_pass_at_k_is_computed_stably() -> None:
    assert pass_at_k(100_000, 1, 7) == pytest.approx(7 / 100_000, rel=1e-9), (
        "the binomials of this case are about 10^30"
    )
    assert pass_at_k(10_000, 5, 100) == pytest.approx(
        1 - math.exp(sum(math.log1p(-100 / (10_000 - i)) for i in range(5))), rel=1e-9
    )


@pytest.mark.parametrize(("samples", "right", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0)])
def test_what_is_not_defined_is_refused(samples: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match="is not defined"):
        pass_at_k(samples, right, k)


def test_what_nobody_can_say_is_left_out() -> None:
    nan = math.nan
    scores = score([1.0, nan, nan], [[1, nan], [0, 0], [nan, nan]], ["a", "a", "b"], [1, 2, 3])
    assert (scores.greedy, scores.sampled) == (1.0, pytest.approx(1 / 3))
    assert scores.pass_at == {1: 0.5, 2: 0.0}
    assert math.isnan(scores.tasks["b"].greedy)
    assert {key for key in scores.rows() if key[0] == "b"} == set()


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=3, max_size=3), min_size=1, max_size=4))
def test_prompts_of_which_nobody_can_say_anything_change_nothing(sampled: list[list[float]]) -> None:
    greedy = [one[0] for one in sampled]
    alone = score(greedy, sampled, ["a"] * len(sampled), [1, 3])
    beside = score([*greedy, math.nan], [*sampled, [math.nan] * 3], ["a"] * (len(sampled) + 1), [1, 3])
    assert alone == beside


def test_scores_of_two_tasks() -> None:
    scores = score([1.0, 0.0, 0.5], [[1, 0], [0, 0], [1, 1]], ["a", "b", "a"], [1, 2])
    assert (scores.greedy, scores.sampled, scores.samples) == (0.5, 0.5, 2)
    assert scores.pass_at == {1: 0.5, 2: pytest.approx(2 / 3)}
    assert (scores.tasks["a"].greedy, scores.tasks["a"].pass_at) == (0.75, {1: 0.75, 2: 1.0})
    assert scores.tasks["b"].pass_at == {1: 0.0, 2: 0.0}
    assert scores.rows()["a", "pass@2"] == 1.0
    assert score([1.0], [[0.9]], ["a"], [1]).tasks == {}
    assert score([1.0], [[0.9]], ["a"], [1]).pass_at == {1: 0.0}, "nearly right is not right"
