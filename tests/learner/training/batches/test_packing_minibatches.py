"""Cutting a batch: nothing lost, no group cut, parts as equal as whole groups allow."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.training.batches.packing import mini_batches
from learner.training.batches.sequences import Prepared, supervised_batch

VOCAB = 50


def batch_of(groups: list[int], seed: int = 0) -> Prepared:
    generator = np.random.default_rng(seed)
    sequences = sum(groups)
    prompts, lengths = generator.integers(1, 4, sequences), generator.integers(1, 6, sequences)
    arrays = {
        "tokens": generator.integers(0, VOCAB, (prompts + lengths).sum()).astype(np.int32),
        "lengths": (prompts + lengths).astype(np.int32),
        "mask": np.repeat(np.tile([0, 1], sequences), np.stack([prompts, lengths], 1).ravel()).astype(np.uint8),
    }
    columns = {name: generator.normal(size=lengths.sum()) for name in ("behaviour", "advantages")}
    trained = np.arange(sequences) % 3 > 0
    return Prepared(
        sequences=supervised_batch(arrays, VOCAB), trained=trained, groups=np.array(groups), columns=columns
    )


@given(groups=st.lists(st.integers(1, 9), min_size=1, max_size=12), wanted=st.integers(1, 14), seed=st.integers(0, 99))
def test_the_parts_are_the_batch_in_whole_groups(groups: list[int], wanted: int, seed: int) -> None:
    batch = batch_of(groups, seed)
    parts = mini_batches(batch, wanted)
    assert len(parts) == min(wanted, len(groups))
    assert all(len(part.groups) >= 1 and part.groups.sum() == len(part.sequences) for part in parts)
    assert np.concatenate([part.groups for part in parts]).tolist() == groups
    for name in ("tokens", "lengths", "targets"):
        joined = np.concatenate([getattr(part.sequences, name) for part in parts])
        assert np.array_equal(joined, getattr(batch.sequences, name)), name
    for name in ("behaviour", "advantages"):
        assert np.array_equal(np.concatenate([part.columns[name] for part in parts]), batch.columns[name]), name
    assert np.array_equal(np.concatenate([part.trained for part in parts]), batch.trained)
    assert sum(part.trained_tokens for part in parts) == batch.trained_tokens
    for part in parts:
        assert len(part.sequences.tokens) == part.sequences.lengths.sum() == len(part.sequences.targets)
        assert all(len(column) == part.sequences.targets.sum() for column in part.columns.values())


@given(groups=st.integers(1, 40), size=st.integers(1, 5), wanted=st.integers(1, 8))
def test_equal_groups_are_shared_out_as_equally_as_they_can_be(groups: int, size: int, wanted: int) -> None:
    counts = [len(part.groups) for part in mini_batches(batch_of([size] * groups), wanted)]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("groups", "wanted", "cut"),
    [
        ([4, 4], 1, [[4, 4]]),
        ([4, 4], 2, [[4], [4]]),
        ([1, 1, 1, 9], 2, [[1, 1, 1], [9]]),
        ([9, 1, 1, 1], 2, [[9], [1, 1, 1]]),
        ([2, 6, 2], 2, [[2], [6, 2]]),
        ([9, 1, 1], 3, [[9], [1], [1]]),
        ([3], 2, [[3]]),
    ],
)
def test_cuts_fall_between_groups(groups: list[int], wanted: int, cut: list[list[int]]) -> None:
    assert [part.groups.tolist() for part in mini_batches(batch_of(groups), wanted)] == cut


@given(groups=st.lists(st.integers(1, 9), min_size=2, max_size=12), wanted=st.integers(2, 6))
def test_no_border_between_groups_is_nearer_than_the_one_chosen(groups: list[int], wanted: int) -> None:
    parts = mini_batches(batch_of(groups), wanted)
    ends, number, total = np.cumsum(groups), 0, sum(groups)
    for done, (part, _) in enumerate(pairwise(parts), start=1):
        first, number = number, number + len(part.groups)
        free = ends[first : len(groups) - (len(parts) - done)]
        distance = abs(ends[number - 1] - total * done / len(parts))
        assert distance == pytest.approx(np.abs(free - total * done / len(parts)).min())
