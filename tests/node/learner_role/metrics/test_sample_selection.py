"""Choose the groups to keep; kept samples are what was trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.rollouts.buffer import Batch, Completion, Group
from learner.rollouts.overlong import Overlong, OverlongMode
from node.learner_role.metrics import sample_selection as kept
from node.learner_role.metrics.sample_selection import KeptCompletion, kept_of, pack, unpack
from protocol.core.ids import LeaseId, PeerId, PolicyVersion

MADE = PolicyVersion(1, 3)

AS_IT_IS = Overlong()


def completion(reward: float, tokens: tuple[int, ...] = (7, 8, 0), **changes: object) -> Completion:
    fields = {"logprobs": (-1.0,) * len(tokens), "spans": ((len(tokens), MADE),)} | changes
    return Completion(tokens=tokens, reward=reward, **fields)  # type: ignore[arg-type]


def batch_of(*rewards: tuple[float, ...]) -> Batch:
    groups = tuple(
        Group(
            lease=LeaseId(bytes([place]) * 16),
            peer=PeerId("a peer"),
            prompt_index=place,
            prompt=(5, 6),
            completions=tuple(completion(reward) for reward in of_group),
            behaviour=frozenset({MADE}),
        )
        for place, of_group in enumerate(rewards)
    )
    return Batch(groups=groups, lags={group.lease: 2 for group in groups}, dropped={})


def test_the_worst_the_best_and_what_is_between_are_kept() -> None:
    batch = batch_of((0.5, 0.7), (0.0, 0.1), (0.9, 1.0), (0.1, 0.3), (0.8, 0.9))
    assert [group.prompt_index for group in kept_of(batch, 3, "group_mean", str, AS_IT_IS)] == [1, 0, 2]
    assert [group.prompt_index for group in kept_of(batch, 2, "group_mean", str, AS_IT_IS)] == [1, 2]
    assert [group.prompt_index for group in kept_of(batch, 1, "group_mean", str, AS_IT_IS)] == [0]
    assert [group.prompt_index for group in kept_of(batch, 9, "group_mean", str, AS_IT_IS)] == [1, 3, 0, 4, 2]


def test_advantages_are_of_what_was_trained_on_and_rewards_the_tasks_own() -> None:
    """As for the trainer: a completion that was cut off and is not trained on counts among its siblings."""
    batch = batch_of((1.0, 0.5, 0.0))
    [group] = batch.groups
    cut = replace(group, completions=tuple(replace(one, cut_off=one.reward == 0.5) for one in group.completions))
    batch = replace(batch, groups=(cut,))
    found = {
        mode: [(one.reward, one.advantage) for one in kept_of(batch, 1, "group_mean", str, overlong)[0].completions]
        for mode in get_args(OverlongMode)
        for overlong in [Overlong(mode=mode, budget=9, buffer=2, penalty=0.75)]
    }
    assert found == {
        "task": [(1.0, 0.5), (0.5, 0.0), (0.0, -0.5)],
        "zero": [(1.0, pytest.approx(2 / 3)), (0.5, pytest.approx(-1 / 3)), (0.0, pytest.approx(-1 / 3))],
        "mask": [(1.0, 0.5), (0.5, 0.0), (0.0, -0.5)],
        "soft": [(1.0, 0.75), (0.5, -0.5), (0.0, -0.25)],
    }


def test_groups_that_teach_nothing_are_kept_where_there_are_no_others() -> None:
    batch = batch_of((1.0, 1.0), (0.0, 0.0), (0.0, 1.0), (0.0, 0.25), (0.5, 0.5))
    assert [group.prompt_index for group in kept_of(batch, 2, "group_mean", str, AS_IT_IS)] == [3, 2]
    assert [group.prompt_index for group in kept_of(batch, 4, "group_mean", str, AS_IT_IS)] == [1, 3, 2, 0]


def test_advantages_are_each_groups_own_where_groups_differ_in_size() -> None:
    batch = batch_of((0.0, 1.0, 0.5), (1.0, 3.0), (4.0, 4.0, 4.0, 8.0))
    found = kept_of(batch, 3, "group_mean", str, AS_IT_IS)
    assert [[one.advantage for one in group.completions] for group in found] == [
        [-0.5, 0.5, 0.0],
        [-1.0, 1.0],
        [-1.0, -1.0, -1.0, 3.0],
    ]


def test_a_step_on_logs_alone_leaves_nothing() -> None:
    assert kept_of(batch_of(), 2, "group_mean", str, AS_IT_IS) == []


def test_advantages_are_those_of_the_whole_batch() -> None:
    batch = batch_of((0.0, 1.0), (1.0, 1.0))
    low, high = kept_of(batch, 2, "group_mean", lambda index: f"task {index}", AS_IT_IS)
    assert [one.advantage for one in low.completions] == [-0.5, 0.5]
    assert [one.advantage for one in high.completions] == [0.0, 0.0]
    assert (low.task, low.lag, low.prompt, low.reward) == ("task 0", 2, (5, 6), 0.5)
    [low] = kept_of(batch_of((0.0, 1.0)), 1, "batch_mean", str, AS_IT_IS)
    assert [one.advantage for one in low.completions] == [-0.5, 0.5]
    [unknown] = kept_of(batch_of((0.0, 1.0)), 1, "gae", str, AS_IT_IS)
    assert [one.advantage for one in unknown.completions] == [None, None]


def test_what_is_packed_unpacks_equal() -> None:
    [group] = kept_of(batch_of((0.0, 1.0)), 1, "group_mean", str, AS_IT_IS)
    assert unpack(pack(group)) == group
    with pytest.raises(ValueError, match="not a kept group"):
        unpack(b"something else")
    with pytest.raises(ValueError, match="not a kept group"):
        unpack(pack(group)[:-3])


def test_a_group_that_is_too_long_is_kept_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_TOKENS", 10)
    [group] = kept_of(batch_of((0.0, 0.25, 0.5, 1.0)), 1, "group_mean", str, AS_IT_IS)
    assert [one.reward for one in group.completions] == [0.0, 0.25]
    assert group.left_out == 2


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=4), st.integers(0, 3))
def test_parts_are_all_tokens_in_order(turns: list[tuple[int, int]], end: int) -> None:
    """`turns` are (tokens that the environment wrote, tokens that the policy generated after them)."""
    ranges, at = [], 0
    for heard, said in turns:
        ranges.append((at + heard, at + heard + said))
        at += heard + said
    tokens = tuple(range(at + (end if turns else 0)))
    one = KeptCompletion(tokens=tokens, reward=0.0, advantage=None, spans=(), generated=tuple(ranges))
    parts = list(one.parts)
    assert tuple(token for _, part in parts for token in part) == tokens
    own = [token for is_policys, part in parts if is_policys for token in part]
    assert own == [token for start, stop in ranges for token in range(start, stop)]
    assert all(part for _, part in parts) or not turns
