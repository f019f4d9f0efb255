"""Advantages depend on their own group alone, add up to nothing, and vanish where nothing can be learnt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.advantage import ADVANTAGES, STD_FLOOR, advantages

groups = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=64)


def test_group_mean_is_the_reward_above_its_siblings() -> None:
    assert advantages([1, 0, 0, 0]).tolist() == [0.75, -0.25, -0.25, -0.25]


def test_group_mean_std_divides_by_the_sample_deviation() -> None:
    expected = np.array([0.75, -0.25, -0.25, -0.25]) / (0.5 + STD_FLOOR)
    assert advantages([1, 0, 0, 0], "group_mean_std") == pytest.approx(expected)


def test_leave_one_out_compares_each_with_the_mean_of_the_others() -> None:
    rewards = [3.0, 1.0, 0.5, 0.0]
    literal = [r - (sum(rewards) - r) / 3 for r in rewards]
    assert advantages(rewards, "leave_one_out") == pytest.approx(literal)


@pytest.mark.parametrize("kind", ADVANTAGES)
@given(rewards=groups)
def test_a_group_adds_up_to_zero(kind: str, rewards: list[float]) -> None:
    found = advantages(rewards, kind)
    assert found.dtype == np.float32
    assert found.shape == (len(rewards),)
    assert abs(found.sum(dtype=np.float64)) <= 1e-4 * (1 + np.abs(found).sum())


@pytest.mark.parametrize("kind", ADVANTAGES)
@given(reward=st.floats(-1e6, 1e6), size=st.integers(1, 40))
def test_equal_rewards_give_exact_zeros(kind: str, reward: float, size: int) -> None:
    # The mean of seven times 0.1 is not 0.1: without care a dead group would still be trained on, with noise.
    assert not advantages([reward] * size, kind).any()


@pytest.mark.parametrize("kind", ADVANTAGES)
@given(rewards=groups)
def test_a_better_completion_never_gets_less(kind: str, rewards: list[float]) -> None:
    found = advantages(rewards, kind)
    assert (np.diff(found[np.argsort(rewards, kind="stable")]) >= 0).all()


@pytest.mark.parametrize("rewards", [[], [[1.0, 2.0]], [1.0, float("nan")], [float("inf"), 0.0]])
def test_what_is_no_group_is_refused(rewards: list[object]) -> None:
    with pytest.raises(ValueError, match="a group needs"):
        advantages(rewards)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(KeyError):
        advantages([1.0, 0.0], "best_of_n")
