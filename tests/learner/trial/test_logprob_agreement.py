"""Compare readings of one completion, and explain a difference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.trial.logprob_agreement import Reading, Tolerance, disagreement, widest

CLOSE = Tolerance(token=1e-3, mean=1e-4)

logprobs = st.lists(st.floats(-30, 0), min_size=1, max_size=20)


def reading(who: str, *values: float) -> Reading:
    return Reading(who=who, logprobs=np.array(values))


def test_readings_that_are_equal_agree() -> None:
    assert disagreement([reading(who, -1.0, -2.0) for who in ("engine", "audit", "trainer")], CLOSE) == ""


@pytest.mark.parametrize("readings", [[], [reading("engine", -1.0)], [reading("engine"), reading("trainer")]])
def test_nothing_to_compare_agrees(readings: list[Reading]) -> None:
    assert disagreement(readings, CLOSE) == ""
    assert widest(readings) == 0.0


def test_a_token_beyond_the_tolerance_is_told_with_both_values_and_its_position() -> None:
    engine, trainer = reading("engine", *[-1.0] * 40), reading("trainer", *[-1.0] * 29, -3.25, *[-1.0] * 10)
    said = disagreement([engine, engine, trainer], CLOSE, prompt_tokens=100)
    assert "the engine and the trainer differ" in said
    assert "most at token 30 (position 130): -1.00000 says the engine, -3.25000 the trainer" in said


def test_the_first_token_that_differs_is_told_beside_the_worst() -> None:
    said = disagreement([reading("engine", -1, -1, -1, -1), reading("audit", -1, -1, -1.5, -2)], CLOSE)
    assert "first at token 3 (position 3) and most at token 4 (position 4)" in said


def test_many_small_differences_are_beyond_the_tolerance_of_the_mean() -> None:
    engine, trainer = reading("engine", *[-1.0] * 8), reading("trainer", *[-1.0005] * 8)
    assert disagreement([engine, trainer], Tolerance(token=1e-3, mean=1e-3)) == ""
    assert "0.0005 nats in the mean of 8 tokens (allowed: 0.0001)" in disagreement([engine, trainer], CLOSE)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_never_agrees_even_if_all_say_it(broken: float) -> None:
    both = [reading("engine", -1.0, broken), reading("trainer", -1.0, broken)]
    said = disagreement(both, Tolerance(token=math.inf, mean=math.inf), prompt_tokens=7)
    assert "the engine gives 1 of 2 tokens a log probability that is not finite" in said
    assert "first at token 2 (position 9)" in said


def test_readings_of_other_lengths_never_agree() -> None:
    said = disagreement([reading("engine", -1.0, -1.0), reading("trainer", -1.0)], CLOSE)
    assert said == "the engine gives log probabilities of 2 tokens, and the trainer of 1"


@given(a=logprobs, shift=st.floats(-2, 2), token=st.floats(0, 1), mean=st.floats(0, 1))
def test_order_never_changes_whether_readings_agree_and_the_widest_gap_decides(
    a: list[float], shift: float, token: float, mean: float
) -> None:
    one, other = reading("engine", *a), reading("trainer", *(value + shift for value in a))
    tolerance = Tolerance(token=token, mean=mean)
    agrees = disagreement([one, other], tolerance) == ""
    assert agrees == (disagreement([other, one], tolerance) == "")
    gaps = np.abs(one.logprobs - other.logprobs)
    assert agrees == (gaps.max() <= token and gaps.mean() <= mean)
    assert widest([one, other]) == gaps.max()
