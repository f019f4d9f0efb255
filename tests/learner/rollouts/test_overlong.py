"""The trainer gets completions without an end in the form that is configured, and all others unchanged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.rollouts.batch_arrays import batch_arrays
from learner.rollouts.buffer import Batch, Completion, Group
from learner.rollouts.overlong import Overlong, OverlongMode, soft_punishment, turn_lengths
from learner.rollouts.reward_parts import RewardPart, names_of, total
from protocol.core.ids import LeaseId, PeerId, PolicyVersion

MADE = PolicyVersion(1, 0)
MODES: list[OverlongMode] = ["task", "zero", "mask", "soft"]


def completion(*turns: int, reward: float = 1.0, cut_off: bool = False) -> Completion:
    """Turns of so many tokens, with one token of the environment's between two."""
    starts = [sum(turns[:number]) + number for number in range(len(turns))]
    several = tuple((start, start + turn) for start, turn in zip(starts, turns, strict=True))
    return Completion(
        tokens=tuple(range(starts[-1] + turns[-1])),
        logprobs=(-1.0,) * sum(turns),
        reward=reward,
        spans=((sum(turns), MADE),),
        generated=several if len(turns) > 1 else (),
        cut_off=cut_off,
    )


def overlong(mode: OverlongMode, penalty: float = 1.0) -> Overlong:
    return Overlong(mode=mode, budget=10, buffer=4, penalty=penalty)


@pytest.mark.parametrize(
    ("length", "punished"), [(1, 0.0), (6, 0.0), (7, -0.25), (8, -0.5), (9, -0.75), (10, -1.0), (11, -1.0)]
)
def test_the_nearer_to_the_budget_the_harder_it_is_punished(length: int, punished: float) -> None:
    assert soft_punishment(length, 10, 4) == punished


@given(length=st.integers(1, 3000), budget=st.integers(1, 2000), buffer=st.integers(1, 2000))
def test_the_punishment_is_dapos(length: int, budget: int, buffer: int) -> None:
    """Equation 13 of arXiv 2503.14476, case by case."""
    free = budget - buffer
    literal = 0.0 if length <= free else (free - length) / buffer if length <= budget else -1.0
    assert soft_punishment(length, budget, buffer) == pytest.approx(literal)


def test_turns_are_counted_without_what_the_environment_said() -> None:
    assert list(turn_lengths(completion(5))) == [5]
    assert list(turn_lengths(completion(2, 7, 3))) == [2, 7, 3]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cut_off", [False, True])
@pytest.mark.parametrize("length", [3, 8])
def test_named_rewards_sum_to_what_the_trainer_gets(mode: OverlongMode, cut_off: bool, length: int) -> None:
    parts = (RewardPart(name="right", value=1.0), RewardPart(name="form", value=0.5, weight=-0.5))
    one = replace(completion(length, reward=total(parts), cut_off=cut_off), parts=parts)
    told = overlong(mode, penalty=2.0)
    assert total(told.parts(one)) == pytest.approx(told.reward(one))
    assert names_of([told.parts(one)]) == ["right", "form", *(["overlong"] if mode == "soft" else [])]


@pytest.mark.parametrize("mode", MODES)
def test_one_reward_has_no_name_whatever_becomes_of_it(mode: OverlongMode) -> None:
    assert overlong(mode).parts(completion(8, cut_off=True)) == ()


@pytest.mark.parametrize(
    ("mode", "reward", "is_trained"),
    [("task", 0.5, True), ("zero", 0.0, True), ("mask", 0.5, False), ("soft", -0.5, True)],
)
def test_what_was_cut_off(mode: OverlongMode, reward: float, is_trained: bool) -> None:
    for cut in (completion(10, reward=0.5, cut_off=True), completion(2, 3, reward=0.5, cut_off=True)):
        assert overlong(mode).reward(cut) == reward
        assert overlong(mode).is_trained(cut) == is_trained
        assert cut.reward == 0.5


@pytest.mark.parametrize(("turns", "reward"), [((6,), 1.0), ((8,), 0.0), ((10,), -1.0), ((3, 8, 1), 0.0)])
def test_the_longest_turn_is_punished_though_it_came_to_its_end(turns: tuple[int, ...], reward: float) -> None:
    assert overlong("soft", penalty=2.0).reward(completion(*turns)) == reward
    for mode in ("task", "zero", "mask"):
        assert overlong(mode).reward(completion(*turns)) == 1.0


@given(
    mode=st.sampled_from(MODES),
    turns=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    reward=st.floats(-10, 10),
)
def test_what_came_to_its_end_and_leaves_the_buffer_free_is_as_it_was(
    mode: OverlongMode, turns: list[int], reward: float
) -> None:
    one = completion(*turns, reward=reward)
    assert overlong(mode).reward(one) == reward
    assert overlong(mode).is_trained(one)


@pytest.mark.parametrize(
    ("mode", "rewards", "trained"),
    [
        ("task", [1.0, 0.5, 0.25], [1, 1, 1]),
        ("zero", [1.0, 0.0, 0.25], [1, 1, 1]),
        ("mask", [1.0, 0.5, 0.25], [1, 0, 1]),
        ("soft", [1.0, -0.5, -0.25], [1, 1, 1]),
    ],
)
def test_the_trainer_is_sent_what_the_mode_makes_of_a_batch(
    mode: OverlongMode, rewards: list[float], trained: list[int]
) -> None:
    completions = (completion(3), completion(10, reward=0.5, cut_off=True), completion(8, reward=0.25))
    group = Group(
        lease=LeaseId(bytes(16)),
        peer=PeerId("a peer"),
        prompt_index=0,
        prompt=(1,),
        completions=completions,
        behaviour=frozenset({MADE}),
    )
    batch = Batch(groups=(group,), lags={group.lease: 0}, dropped={})
    arrays = batch_arrays(batch, MADE, overlong(mode))
    assert arrays["rewards"].tolist() == rewards
    assert arrays["trained"].tolist() == trained
    plain = batch_arrays(batch, MADE, Overlong())
    for name in set(plain) - {"rewards", "trained"}:
        assert np.array_equal(arrays[name], plain[name]), name
