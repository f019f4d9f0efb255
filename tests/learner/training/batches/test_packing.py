"""Packing loses no target and doubles none, whatever the lengths, and refuses arrays that describe no sequences."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.training.batches.packing import (
    MAX_SHARED_WIDTH,
    Layout,
    Microbatch,
    dealt_microbatches,
    microbatches,
    plan,
    rows_of,
)
from learner.training.batches.sequences import BadBatch, Ragged, rollout_batch, supervised_batch

VOCAB = 50


def ragged(pairs: list[tuple[list[int], list[int]]]) -> Ragged:
    """Sequences from (prompt, completion) pairs."""
    tokens = [token for prompt, completion in pairs for token in prompt + completion]
    targets = [flag for prompt, completion in pairs for flag in [False] * len(prompt) + [True] * len(completion)]
    lengths = [len(prompt) + len(completion) for prompt, completion in pairs]
    return Ragged(tokens=np.array(tokens), lengths=np.array(lengths), targets=np.array(targets))


def seen_from(batch: Microbatch, flat: int) -> list[int]:
    """The tokens that the position `flat` attends to, in the order of their positions: its whole context, if packing
    is right.
    """
    row, column = divmod(flat, batch.inputs.shape[1])
    if batch.visible is None or batch.positions is None:
        return batch.inputs[row, : column + 1].tolist()
    columns = torch.nonzero(batch.visible[row, 0, column]).flatten()
    assert batch.positions[row, columns].tolist() == list(range(len(columns)))
    return batch.inputs[row, columns].tolist()


token = st.integers(1, VOCAB - 1)
prompts = st.sampled_from([[1], [1, 2, 3], [4, 5], [7] * 9])
pairs = st.lists(st.tuples(prompts, st.lists(token, min_size=1, max_size=12)), min_size=1, max_size=20)


@given(pairs=pairs, budget=st.integers(1, 300), share=st.booleans(), data=st.data())
def test_every_kept_target_appears_once_with_its_own_context(
    pairs: list[tuple[list[int], list[int]]], budget: int, share: bool, data: st.DataObject
) -> None:
    batch = ragged(pairs)
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs))))
    contexts = [prompt + answer[:i] for prompt, answer in pairs for i in range(len(answer))]
    answers = [token for _, answer in pairs for token in answer]
    expected = np.flatnonzero(np.repeat(keep, [len(answer) for _, answer in pairs])).tolist()

    found: list[int] = []
    for part in microbatches(batch, keep, budget, share_prompts=share):
        assert part.inputs.numel() <= max(budget, part.inputs.shape[1])
        assert part.num_sequences == part.segments.max() + 1
        for flat, target, number in zip(part.predictors.tolist(), part.tokens.tolist(), part.numbers, strict=True):
            assert seen_from(part, flat) == contexts[number]
            assert target == answers[number]
        found += part.numbers.tolist()
    assert sorted(found) == expected


@given(pairs=pairs, budget=st.integers(1, 200), data=st.data())
def test_end_to_end_a_target_sees_its_own_sequence_and_no_padding_is_made(
    pairs: list[tuple[list[int], list[int]]], budget: int, data: st.DataObject
) -> None:
    batch, ranks = ragged(pairs), data.draw(st.integers(1, 3))
    contexts = [prompt + answer[:i] for prompt, answer in pairs for i in range(len(answer))]
    found: list[int] = []
    counts = []
    for rank in range(ranks):
        parts = list(
            dealt_microbatches(
                batch, np.ones(len(pairs), np.bool_), budget, layout=Layout.END_TO_END, rank=rank, ranks=ranks
            )
        )
        counts.append(len(parts))
        for part in parts:
            if part is None:
                continue
            assert part.ends is not None
            assert part.positions is not None
            inputs, ends = part.inputs[0].tolist(), part.ends.tolist()
            assert len(inputs) == ends[-1] <= max(budget, part.longest)
            for flat, number in zip(part.predictors.tolist(), part.numbers, strict=True):
                start = max(end for end in ends[:-1] if end <= flat)
                assert inputs[start : flat + 1] == contexts[number]
                assert part.positions[0, flat] == flat - start
            found += part.numbers.tolist()
    assert sorted(found) == list(range(len(contexts)))
    assert len(set(counts)) == 1, "all ranks make as many passes"


turns = st.lists(
    st.tuples(st.lists(token, min_size=1, max_size=4), st.lists(token, max_size=3)), min_size=1, max_size=4
)


@given(
    episodes=st.lists(st.tuples(prompts, turns), min_size=1, max_size=12),
    budget=st.integers(1, 300),
    share=st.booleans(),
)
def test_a_target_of_a_later_turn_sees_all_that_was_said_and_answered(
    episodes: list[tuple[list[int], list[tuple[list[int], list[int]]]]], budget: int, share: bool
) -> None:
    """Targets with gaps between them: turns of an episode, with what the environment answered."""
    sequences, masks = [], []
    for prompt, parts in episodes:
        sequences.append(prompt + [each for said, answered in parts for each in said + answered])
        masks.append(
            [False] * len(prompt)
            + [of for said, answered in parts for of in [True] * len(said) + [False] * len(answered)]
        )
    expected = [
        (sequence[:place], sequence[place])
        for sequence, mask in zip(sequences, masks, strict=True)
        for place, is_target in enumerate(mask)
        if is_target
    ]
    batch = Ragged(
        tokens=np.concatenate(sequences),
        lengths=np.array([len(one) for one in sequences]),
        targets=np.concatenate(masks),
    )
    found: dict[int, tuple[list[int], int]] = {}
    for part in microbatches(batch, np.ones(len(sequences), np.bool_), budget, share_prompts=share):
        for flat, target, number in zip(part.predictors.tolist(), part.tokens.tolist(), part.numbers, strict=True):
            found[int(number)] = (seen_from(part, flat), target)
    assert [found[number] for number in sorted(found)] == expected


@given(pairs=pairs)
def test_segments_tell_sequences_apart(pairs: list[tuple[list[int], list[int]]]) -> None:
    owners = np.repeat(np.arange(len(pairs)), [len(answer) for _, answer in pairs])
    for part in microbatches(ragged(pairs), np.ones(len(pairs), np.bool_), 10_000, share_prompts=True):
        same_segment = part.segments[:, None] == part.segments
        same_owner = torch.from_numpy(owners[part.numbers][:, None] == owners[part.numbers])
        assert torch.equal(same_segment, same_owner)


def test_siblings_share_one_copy_of_their_prompt() -> None:
    batch = ragged([([1, 2, 3], [4, 5, 6])] * 4 + [([9, 9], [8])])
    assert [(row.sequences, row.width) for row in rows_of(batch, np.ones(5, np.bool_), share_prompts=True)] == [
        ((0, 1, 2, 3), 3 + 4 * 2),
        ((4,), 2),
    ]


def test_a_shared_row_ends_before_it_grows_too_wide() -> None:
    batch = ragged([([1] * 100, [2] * 101)] * 3)
    rows = rows_of(batch, np.ones(3, np.bool_), share_prompts=True)
    assert [row.sequences for row in rows] == [(0,), (1,), (2,)]
    assert rows[0].width + 100 > MAX_SHARED_WIDTH


def test_nothing_shared_means_no_mask() -> None:
    (part,) = microbatches(ragged([([1, 2], [3]), ([1], [3, 4])]), np.ones(2, np.bool_), 100, share_prompts=True)
    assert part.visible is None
    assert part.positions is None


def test_padding_sees_itself_so_that_no_softmax_is_empty() -> None:
    batch = ragged([([1, 2], [3, 3])] * 3 + [([5], [6])])
    (part,) = microbatches(batch, np.ones(4, np.bool_), 100, share_prompts=True)
    assert part.visible is not None
    assert part.visible.any(dim=-1).all()


@given(widths=st.lists(st.integers(1, 40), min_size=1, max_size=50), budget=st.integers(1, 200))
def test_a_plan_covers_all_rows_within_the_budget(widths: list[int], budget: int) -> None:
    sizes = np.array(widths)
    batches = plan(sizes, budget)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(widths)))
    assert all(len(rows) == 1 or len(rows) * sizes[rows].max() <= budget for rows in batches)


def test_masks_of_several_turns_keep_what_lies_between_as_context() -> None:
    # Prompt 1 2, answer 3 4, tool output 5 6, answer 7: the tool's tokens are seen but not trained on.
    batch = supervised_batch(
        {
            "tokens": np.array([1, 2, 3, 4, 5, 6, 7], np.int32),
            "lengths": np.array([7], np.int32),
            "mask": np.array([0, 0, 1, 1, 0, 0, 1], np.uint8),
        },
        VOCAB,
    )
    (part,) = microbatches(batch, np.ones(1, np.bool_), 100, share_prompts=True)
    assert part.tokens.tolist() == [3, 4, 7]
    assert [seen_from(part, flat) for flat in part.predictors.tolist()] == [[1, 2], [1, 2, 3], [1, 2, 3, 4, 5, 6]]


def rollouts() -> dict[str, np.ndarray[Any, Any]]:
    return {
        "tokens": np.array([1, 2, 4, 3, 5, 6, 7], np.int32),
        "lengths": np.array([3, 4], np.int32),
        "mask": np.array([0, 0, 1, 0, 1, 0, 1], np.uint8),
        "behaviour_logprobs": np.array([-1, -2, -3], np.float32),
        "lags": np.array([0, 3, 1], np.int32),
        "rewards": np.array([1, -1], np.float32),
        "group_sizes": np.array([2], np.int32),
        "origins": np.array([0, 1], np.uint8),
    }


def test_rollouts_keep_what_was_said_of_them() -> None:
    batch = rollout_batch(rollouts(), VOCAB)
    assert batch.sequences.tokens.tolist() == [1, 2, 4, 3, 5, 6, 7]
    assert batch.sequences.target_counts.tolist() == [1, 2]
    assert (batch.behaviour.tolist(), batch.lags.tolist()) == ([-1, -2, -3], [0, 3, 1])
    assert (batch.rewards.tolist(), batch.origins.tolist(), batch.groups.tolist()) == ([1, -1], [0, 1], [2])
    assert batch.trained.tolist() == [True, True], "without a setting, all must be trained on"
    partly = rollout_batch({**rollouts(), "trained": np.array([0, 1], np.uint8)}, VOCAB)
    assert partly.trained.tolist() == [False, True]


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("tokens", np.arange(7, dtype=np.int64), "tokens.*must be int32"),
        ("tokens", np.array([1, 2, 4, 3, 5, 6, VOCAB], np.int32), "outside the model's vocabulary"),
        ("tokens", np.array([1, 2, 4, 3, 5, 6, -1], np.int32), "outside the model's vocabulary"),
        ("lengths", np.array([6, 1], np.int32), "lengths must each be at least 2"),
        ("lengths", np.array([3, 3], np.int32), "sum to the 7 values"),
        ("mask", np.array([1, 0, 1, 0, 1, 0, 1], np.uint8), "first token"),
        ("mask", np.array([0, 0, 0, 0, 1, 1, 1], np.uint8), "no token of some sequence"),
        ("mask", np.array([0, 0, 2, 0, 1, 1, 1], np.uint8), "0 or 1"),
        ("behaviour_logprobs", np.full(4, -1, np.float32), "4 values for 3 generated tokens"),
        ("behaviour_logprobs", np.array([-1, np.nan, -1], np.float32), "behaviour_logprobs.*not finite"),
        ("behaviour_logprobs", np.full(3, 0.5, np.float32), "above 0"),
        ("lags", np.array([0], np.int32), "1 values for 3 generated tokens"),
        ("lags", np.array([0, -1, 0], np.int32), "negative"),
        ("rewards", np.array([1], np.float32), "1 values for 2 sequences"),
        ("rewards", np.array([np.inf, 0], np.float32), "rewards.*not finite"),
        ("rewards", np.zeros((2, 1), np.float32), "one-dimensional"),
        ("origins", np.array([0, 2], np.uint8), "origins must hold 0"),
        ("trained", np.array([1, 2], np.uint8), "trained must hold a 0 or 1"),
        ("trained", np.array([1], np.uint8), "1 values for 2 sequences"),
        ("group_sizes", np.array([1, 2], np.int32), "group_sizes must .* sum to the 2 sequences"),
        ("group_sizes", np.array([2, 0], np.int32), "group_sizes must each be at least 1"),
    ],
)
def test_rollouts_that_do_not_fit_are_refused(name: str, array: np.ndarray[Any, Any], said: str) -> None:
    with pytest.raises(BadBatch, match=said):
        rollout_batch({**rollouts(), name: array}, VOCAB)


def test_a_missing_array_is_named() -> None:
    arrays = rollouts()
    del arrays["lags"]
    with pytest.raises(BadBatch, match="'lags' is missing"):
        rollout_batch(arrays, VOCAB)


@pytest.mark.parametrize(
    ("mask", "said"),
    [([1, 1, 0], "first token"), ([0, 0, 0], "marks no token"), ([0, 2, 0], "0 or 1"), ([0, 1], "0 or 1")],
)
def test_supervised_masks_that_make_no_sense_are_refused(mask: list[int], said: str) -> None:
    arrays = {
        "tokens": np.array([1, 2, 3], np.int32),
        "lengths": np.array([3], np.int32),
        "mask": np.array(mask, np.uint8),
    }
    with pytest.raises(BadBatch, match=said):
        supervised_batch(arrays, VOCAB)
