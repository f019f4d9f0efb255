"""Logs as a stream: passes, arrays, and how it goes on after a restart."""

from __future__ import annotations

import json
from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from learner.curriculum.offline_stream import Logged, LoggedGroup, OfflineStream
from learner.rollouts.batch_arrays import completed, missing, mixed, offline_arrays
from learner.training.batches.sequences import rollout_batch

sizes = st.lists(st.integers(2, 5), min_size=1, max_size=8)


def group(number: int, size: int = 2, *, told: bool = False) -> LoggedGroup:
    one = Logged(tokens=(3, 0), reward=float(number), logprobs=(-0.5, -0.25) if told else None)
    return LoggedGroup(prompt=(number + 10, 1), completions=(one,) * size)


def stream(of: list[int], rollouts: int) -> OfflineStream:
    groups = [group(number, size) for number, size in enumerate(of)]
    return OfflineStream(groups=groups, rollouts=rollouts, fingerprint="f", seed="s")


@given(sizes, st.integers(1, 12))
def test_batches_are_whole_groups_and_passes_are_whole(of: list[int], rollouts: int) -> None:
    batches = [made.draw() for made in [stream(of, rollouts)] for _ in range(4 * len(of))]
    for batch in batches:
        taken = [len(one.completions) for one in batch]
        assert sum(taken) - taken[-1] < rollouts <= sum(taken), "no group more than it must"
    drawn = [one.prompt for one in chain.from_iterable(batches)]
    for first in range(0, len(drawn) - len(of) + 1, len(of)):
        assert len(set(drawn[first : first + len(of)])) == len(of)


@given(sizes, st.integers(1, 6), st.integers(0, 20))
def test_a_restored_stream_gives_the_very_same_groups(of: list[int], rollouts: int, before: int) -> None:
    one, other = stream(of, rollouts), stream(of, rollouts)
    for _ in range(before):
        one.draw()
    other.restore(json.loads(json.dumps(one.state())))
    assert [other.draw() for _ in range(10)] == [one.draw() for _ in range(10)]


def test_a_state_of_other_logs_is_the_beginning_of_these() -> None:
    one, fresh = stream([2, 2, 2], 2), stream([2, 2, 2], 2)
    one.draw()
    one.restore({**one.state(), "fingerprint": "another"})
    assert [one.draw() for _ in range(6)] == [fresh.draw() for _ in range(6)]
    one.restore(None)
    fresh.rewind()
    assert one.draw() == fresh.draw()


@given(st.lists(sizes, min_size=1, max_size=3))
def test_what_is_mixed_is_spread_evenly_and_every_group_stays_whole(parts: list[list[int]]) -> None:
    """Group i of part p has prompt (i, p); its tokens, targets and rewards go with it."""
    arrays = []
    for part, of in enumerate(parts):
        groups = [
            LoggedGroup(
                prompt=(number, part),
                completions=tuple(
                    Logged(tokens=(n,) * (1 + n), reward=number + n / 10, logprobs=(-float(n),) * (1 + n))
                    for n in range(size)
                ),
            )
            for number, size in enumerate(of)
        ]
        arrays.append(offline_arrays(groups))
    batch = rollout_batch(mixed(*arrays), 64)
    tokens, starts = batch.sequences.tokens, np.cumsum(batch.sequences.lengths) - batch.sequences.lengths
    prompts = [(int(tokens[start]), int(tokens[start + 1])) for start in starts]
    firsts = [prompts[place] for place in np.cumsum(batch.groups) - batch.groups]
    assert sorted(firsts) == sorted((number, part) for part, of in enumerate(parts) for number in range(len(of)))
    assert batch.groups.tolist() == [parts[part][number] for number, part in firsts]
    place = 0
    for (number, part), size in zip(firsts, batch.groups, strict=True):
        for n in range(size):
            assert prompts[place] == (number, part)
            assert batch.rewards[place] == np.float32(number + n / 10)
            place += 1
    behaviour = np.split(batch.behaviour, np.cumsum(batch.sequences.target_counts)[:-1])
    assert all(set(-values) == {len(values) - 1} for values in behaviour)
    for part, of in enumerate(parts):
        ranks = [rank for rank, (_, own) in enumerate(firsts) if own == part]
        assert [firsts[rank][0] for rank in ranks] == list(range(len(of))), "in its own order"
        for number, rank in enumerate(ranks):
            assert abs(rank - (number + 0.5) * len(firsts) / len(of) + 0.5) <= len(parts), "evenly"


def test_the_trainer_reads_what_is_mixed_and_only_unknown_logprobs_are_asked_for() -> None:
    arrays = offline_arrays([group(0), group(1, 3, told=True)])
    asked = missing(arrays)
    assert asked is not None
    assert len(asked["tokens"]) == 20
    whole = completed(arrays, np.full(10, -2.0, np.float32))
    batch = rollout_batch(mixed(whole, whole), 64)
    assert batch.behaviour.tolist() == [-2.0] * 8 + [-0.5, -0.25] * 6
    assert batch.origins.tolist() == [1] * 10
    assert batch.groups.tolist() == [2, 2, 3, 3]
    assert batch.lags.tolist() == [0] * 20
    assert batch.rewards.tolist() == [0.0] * 4 + [1.0] * 6
    assert missing(whole) is None
    assert missing(offline_arrays([group(1, told=True)])) is None
