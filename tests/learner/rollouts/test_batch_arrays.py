"""A batch of tasks with several rewards, as arrays: a column for each name, and what logs have in them."""

from __future__ import annotations

import math

import numpy as np

from learner.curriculum.offline_stream import Logged, LoggedGroup
from learner.rollouts.batch_arrays import batch_arrays, mixed, offline_arrays, part_arrays
from learner.rollouts.buffer import Batch, Completion, Group
from learner.rollouts.overlong import Overlong
from learner.rollouts.reward_parts import Parts, RewardPart
from protocol.core.ids import LeaseId, PeerId, PolicyVersion

MADE = PolicyVersion(1, 0)
NAN = math.nan


def part(name: str, value: float, weight: float = 1.0) -> RewardPart:
    return RewardPart(name=name, value=value, weight=weight)


def batch_of(*rewards: tuple[float, Parts]) -> Batch:
    group = Group(
        lease=LeaseId(bytes(16)),
        peer=PeerId("p"),
        prompt_index=0,
        prompt=(1, 2),
        completions=tuple(
            Completion(tokens=(3,), logprobs=(-1.0,), reward=reward, spans=((1, MADE),), parts=parts)
            for reward, parts in rewards
        ),
        behaviour=frozenset({MADE}),
    )
    return Batch(groups=(group,), lags={group.lease: 0}, dropped={})


def test_each_name_has_a_column_and_the_first_is_for_those_without() -> None:
    found = part_arrays([1.5, 0.25], [(part("a", 1.0), part("b", 1.0, 0.5)), ()])
    assert np.array_equal(found["parts"], np.array([[NAN, 1, 1], [0.25, NAN, NAN]], np.float32), equal_nan=True)
    assert found["part_weights"].tolist() == [[0, 1, 0.5], [1, 0, 0]]
    assert {one.dtype for one in found.values()} == {np.dtype(np.float32)}


def test_tasks_with_one_reward_have_no_columns() -> None:
    arrays = batch_arrays(batch_of((1.0, ()), (0.0, ())), MADE, Overlong())
    assert {"parts", "part_weights"}.isdisjoint(arrays)
    assert mixed(arrays, logs())["rewards"].tolist() == [1.0, 0.0, 0.75]


def logs() -> dict[str, np.ndarray]:
    log = LoggedGroup(prompt=(1,), completions=(Logged(tokens=(2,), reward=0.75, logprobs=(-1.0,)),))
    return dict(offline_arrays([log]))


def test_a_log_has_its_reward_in_the_first_column() -> None:
    swarm = batch_arrays(batch_of((1.0, (part("a", 1.0),)), (0.0, (part("a", 0.0),))), MADE, Overlong())
    whole = mixed(swarm, logs())
    assert np.array_equal(whole["parts"], np.array([[NAN, 1], [NAN, 0], [0.75, NAN]], np.float32), equal_nan=True)
    assert whole["part_weights"].tolist() == [[0, 1], [0, 1], [1, 0]]


def test_what_could_not_be_judged_and_counts_as_0_is_compared_with_its_siblings() -> None:
    several = (part("a", 1.0), part("b", NAN, 0.5))
    arrays = batch_arrays(batch_of((1.0, several), (0.0, ())), MADE, Overlong())
    assert np.array_equal(arrays["parts"], np.array([[NAN, 1, NAN], [NAN, 0, 0]], np.float32), equal_nan=True)
    assert arrays["part_weights"].tolist() == [[0, 1, 0.5]] * 2


def test_the_soft_punishment_is_a_reward_of_its_own() -> None:
    soft = Overlong(mode="soft", budget=1, buffer=1, penalty=0.5)
    arrays = batch_arrays(batch_of((1.0, (part("a", 1.0),))), MADE, soft)
    assert arrays["parts"][0, 1:].tolist() == [1.0, -1.0]
    assert arrays["part_weights"][0, 1:].tolist() == [1.0, 0.5]
    assert arrays["rewards"].tolist() == [0.5]
