"""Rewards with names: their sum, the part that decides, and their means."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.rollouts.reward_parts import RewardPart, decisive, means, names_of, total

VALUES = st.floats(-1e6, 1e6) | st.just(math.nan)
PARTS = st.lists(st.tuples(VALUES, st.floats(-10, 10)), max_size=5).map(
    lambda rows: tuple(RewardPart(name=f"r{n}", value=value, weight=weight) for n, (value, weight) in enumerate(rows))
)


@given(PARTS)
def test_the_sum_is_that_of_those_that_were_said(parts: tuple[RewardPart, ...]) -> None:
    known = [part for part in parts if not math.isnan(part.value)]
    if not known:
        assert math.isnan(total(parts))
    else:
        assert total(parts) == pytest.approx(sum(part.weight * part.value for part in known), abs=1e-6)


@given(PARTS)
def test_a_part_of_no_weight_changes_no_sum(parts: tuple[RewardPart, ...]) -> None:
    more = total((*parts, RewardPart(name="shown", value=7.0, weight=0.0)))
    assert more == pytest.approx(0.0 if math.isnan(total(parts)) else total(parts), abs=1e-6)


def test_one_reward_decides() -> None:
    parts = (RewardPart(name="right", value=0.0), RewardPart(name="style", value=math.nan))
    assert decisive(0.5, parts, "right") == 0.0
    assert decisive(0.5, parts, "style") is None, "an unknown part must decide nothing"
    assert decisive(0.5, parts, "") == 0.5
    assert decisive(0.5, (), "right") == 0.5, "its task has no such name"


def test_means_are_of_those_that_were_said() -> None:
    one = (RewardPart(name="a", value=1.0), RewardPart(name="b", value=math.nan))
    other = (RewardPart(name="a", value=0.0), RewardPart(name="b", value=0.25), RewardPart(name="c", value=math.nan))
    assert means([one, other, ()]) == {"a": 0.5, "b": 0.25}
    assert names_of([other, one]) == ["a", "b", "c"]
