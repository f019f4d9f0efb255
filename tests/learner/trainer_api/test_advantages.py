"""Advantages depend on their rivals alone, add up to nothing, and vanish where nothing can be learnt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.trainer_api.advantages import ADVANTAGES, STD_FLOOR, advantages

groups = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=64)


def test_group_mean_is_the_reward_above_its_siblings() -> None:
    assert advantages([1, 0, 0, 0], [4], "group_mean").tolist() == [0.75, -0.25, -0.25, -0.25]


def test_group_mean_std_divides_by_the_sample_deviation() -> None:
    expected = np.array([0.75, -0.25, -0.25, -0.25]) / (0.5 + STD_FLOOR)
    assert advantages([1, 0, 0, 0], [4], "group_mean_std") == pytest.approx(expected)


def test_leave_one_out_compares_each_with_the_mean_of_the_others() -> None:
    rewards = [3.0, 1.0, 0.5, 0.0]
    literal = [r - (sum(rewards) - r) / 3 for r in rewards]
    assert advantages(rewards, [4], "leave_one_out") == pytest.approx(literal)


@pytest.mark.parametrize("kind", ADVANTAGES)
@given(rewards=groups)
def test_a_group_adds_up_to_zero(kind: str, rewards: list[float]) -> None:
    found = advantages(rewards, [len(rewards)], kind)
    assert found.dtype == np.float32
    assert found.shape == (len(rewards),)
    assert abs(found.sum(dtype=np.float64)) <= 1e-4 * (1 + np.abs(found).sum())


@pytest.mark.parametrize("kind", ADVANTAGES)
@given(reward=st.floats(-1e6, 1e6), size=st.integers(1, 40))
def test_equal_rewards_give_exact_zeros(kind: str, reward: float, size: int) -> None:
    # The mean of seven times 0.1 is not 0.1: without care a dead group would still be trained on, with noise.
    assert not advantages([reward] * size, [size], kind).any()


@pytest.mark.parametrize("kind", ADVANTAGES)
@given(rewards=groups)
def test_a_better_completion_never_gets_less(kind: str, rewards: list[float]) -> None:
    found = advantages(rewards, [len(rewards)], kind)
    assert (np.diff(found[np.argsort(rewards, kind="stable")]) >= 0).all()


def test_the_batch_mean_knows_no_groups() -> None:
    assert advantages([4, 2, 0, 0, 1, 5], [2, 4], "batch_mean").tolist() == [2, 0, -2, -2, -1, 3]


@pytest.mark.parametrize("kind", sorted(set(ADVANTAGES) - {"batch_mean"}))
@given(first=groups, second=groups)
def test_a_group_knows_its_own_rewards_alone(kind: str, first: list[float], second: list[float]) -> None:
    together = advantages([*first, *second], [len(first), len(second)], kind)
    apart = [advantages(group, [len(group)], kind) for group in (first, second)]
    assert np.array_equal(together, np.concatenate(apart))


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_one_alone_gets_nothing(kind: str) -> None:
    assert advantages([3.0], [1], kind).tolist() == [0.0]


@pytest.mark.parametrize(
    ("rewards", "sizes", "said"),
    [
        ([], [], "at least one reward"),
        ([[1.0, 2.0]], [2], "in one dimension"),
        ([1.0, float("nan")], [2], "all of them finite"),
        ([float("inf"), 0.0], [2], "all of them finite"),
        ([1.0, 0.0], [3], "add up to 2 rewards"),
        ([1.0, 0.0], [2, 0], "at least 1"),
        ([1.0, 0.0], [], "add up to 2 rewards"),
    ],
)
def test_what_is_no_batch_is_refused(rewards: list[object], sizes: list[int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        advantages(rewards, sizes, "group_mean")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(KeyError):
        advantages([1.0, 0.0], [2], "best_of_n")
