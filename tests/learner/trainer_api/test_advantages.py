"""Advantages depend on their rivals alone, add up to nothing, and vanish where nothing can be learnt."""

import math
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.trainer_api.advantages import ADVANTAGES, STD_FLOOR, advantages, gdpo

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


@pytest.mark.parametrize("kind", sorted(set(ADVANTAGES) - {"batch_mean", "gdpo"}))
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


# Several rewards

NAN = float("nan")


def literal_gdpo(rewards: list[list[float]], weights: list[float], sizes: list[int]) -> list[float]:
    """arXiv 2601.05242 in loops; NaN is left out."""
    summed: list[float] = []
    first = 0
    for size in sizes:
        group = rewards[first : first + size]
        first += size
        for row in group:
            total = 0.0
            for k, weight in enumerate(weights):
                told = [other[k] for other in group if not math.isnan(other[k])]
                if math.isnan(row[k]) or min(told) == max(told):
                    continue
                total += weight * (row[k] - fmean(told)) / (stdev(told) + STD_FLOOR)
            summed.append(total)
    told = [one for one, row in zip(summed, rewards, strict=True) if not all(map(math.isnan, row))]
    deviation = stdev(told) if len(told) > 1 else 0.0
    return [one / (deviation + STD_FLOOR) for one in summed]


numbers = st.floats(-10, 10, width=16) | st.just(NAN)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[float]], list[float], list[int]]:
    count = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    rows = draw(st.lists(st.lists(numbers, min_size=count, max_size=count), min_size=sum(sizes), max_size=sum(sizes)))
    return rows, draw(st.lists(st.floats(-2, 2, width=16), min_size=count, max_size=count)), sizes


@given(batches())
def test_several_rewards_equal_the_literal_reference(batch: tuple[list[list[float]], list[float], list[int]]) -> None:
    assert gdpo(*batch) == pytest.approx(literal_gdpo(*batch), rel=1e-6, abs=1e-9)


def test_each_reward_counts_by_its_weight_and_not_by_how_far_it_spreads() -> None:
    rewards = [[0, 1000], [1, 0], [0, 0], [1, 1000]]
    found = gdpo(rewards, [1, 1], [4])
    assert found[:2] == pytest.approx([0, 0], abs=1e-3), "one reward each"
    summed = advantages(np.array(rewards, dtype=float).sum(axis=1), [4], "group_mean_std")
    assert summed[0] > 0.8, "a plain sum would give more than 0.8"


def test_a_reward_that_says_nothing_of_a_completion_has_no_part_in_it() -> None:
    assert gdpo([[1, NAN], [0, NAN], [NAN, NAN]], [1, 5], [3]).tolist() == [
        *gdpo([[1], [0]], [1], [2]).tolist(),
        0.0,
    ]


def test_a_group_that_teaches_nothing_stays_at_exact_zeros_beside_one_that_does() -> None:
    found = gdpo([[0.1, 0.7]] * 7 + [[0.3, 1.0], [0.2, 0.1], [0.9, 0.0]], [1, 0.3], [7, 3])
    assert not found[:7].any()
    assert found[7:].all()


@pytest.mark.parametrize(
    ("rewards", "weights", "sizes", "said"),
    [
        ([1.0, 0.0], [1.0], [2], "a row of rewards"),
        ([[1.0], [float("inf")]], [1.0], [2], "none of them infinite"),
        ([[1.0], [0.0]], [1.0, 1.0], [2], "each of 1 rewards"),
        ([[1.0], [0.0]], [NAN], [2], "a finite weight"),
        ([[1.0], [0.0]], [1.0], [3], "add up to 2 rewards"),
    ],
)
def test_what_is_no_batch_of_several_rewards_is_refused(
    rewards: list[object], weights: list[float], sizes: list[int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        gdpo(rewards, weights, sizes)
