"""Groups wait for a teacher's scores and for an audit, in either order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from learner.rollouts.batch_arrays import batch_arrays
from learner.rollouts.buffer import Buffer
from learner.rollouts.overlong import Overlong
from protocol.versions.staleness import Chain
from tests.learner.rollouts.test_buffer import group, ids
from tests.support.trainer_fixture import CHAIN, lease_id

WORD = ((-0.5,), (-0.25,))


def waiting() -> Buffer:
    return Buffer(window=3, needs_scores=True)


def test_a_group_is_in_no_batch_before_it_is_scored() -> None:
    buffer = waiting()
    assert buffer.add(group(1, "2.6"))
    assert (len(buffer), buffer.held) == (0, 2)
    assert buffer.take(2, CHAIN) is None
    assert ids(buffer.unscored(100)) == [1]
    assert buffer.scored(lease_id(1), WORD)
    assert (len(buffer), buffer.held, buffer.unscored(100)) == (2, 0, [])
    batch = buffer.take(2, CHAIN)
    assert batch is not None
    assert [one.teacher for one in batch.groups[0].completions] == list(WORD)
    assert batch_arrays(batch, CHAIN.head, Overlong())["teacher_logprobs"].tolist() == [-0.5, -0.25]


@pytest.mark.parametrize("is_audited_first", [True, False])
def test_what_waits_for_an_audit_and_for_scores_waits_for_both(is_audited_first: bool) -> None:
    buffer = waiting()
    buffer.add(group(1, "2.6"), hold=True)
    steps = [lambda: buffer.release(lease_id(1)), lambda: buffer.scored(lease_id(1), WORD)]
    first, then = steps if is_audited_first else reversed(steps)
    assert first()
    assert (len(buffer), buffer.held) == (0, 2)
    assert then()
    assert (len(buffer), buffer.held) == (2, 0)


def test_the_oldest_are_scored_first_as_many_as_there_is_room_for() -> None:
    buffer = waiting()
    for number, made in ((1, "2.6"), (2, "2.4"), (3, "2.5")):
        buffer.add(group(number, made))
    assert group(1, "2.6").num_tokens == 4
    assert [ids(buffer.unscored(tokens)) for tokens in (1, 4, 8, 100)] == [[2], [2], [2, 3], [2, 3, 1]]


def test_what_is_gone_is_not_scored_any_more() -> None:
    buffer = waiting()
    buffer.add(group(1, "2.2"))
    buffer.add(group(2, "2.6"), hold=True)
    buffer.withdraw(lambda one: one.lease == lease_id(2), "audit")
    assert buffer.take(2, Chain(bases=CHAIN.bases, head=CHAIN.head)) is None
    assert not buffer.unscored(100)
    assert not buffer.scored(lease_id(1), WORD)
    assert (len(buffer), buffer.held) == (0, 0)
    buffer.add(group(2, "2.6"))
    assert buffer.scored(lease_id(2), WORD), "a new group must not wait for an audit"
    assert len(buffer) == 2


def test_scores_that_do_not_fit_are_a_mistake() -> None:
    buffer = waiting()
    buffer.add(group(1, "2.6"))
    with pytest.raises(ValueError, match="each generated token"):
        buffer.scored(lease_id(1), ((-0.5, -0.5), (-0.25,)))


def test_what_was_scored_before_waits_for_nothing() -> None:
    buffer, one = waiting(), group(1, "2.6")
    scored = tuple(replace(completion, teacher=(-0.5,)) for completion in one.completions)
    buffer.add(replace(one, completions=scored))
    assert len(buffer) == 2


def test_without_a_teacher_nothing_waits_and_the_trainer_hears_of_none() -> None:
    buffer = Buffer(window=3)
    buffer.add(group(1, "2.6"))
    batch = buffer.take(2, CHAIN)
    assert batch is not None
    assert "teacher_logprobs" not in batch_arrays(batch, CHAIN.head, Overlong())
