"""Groups in, batches out: the order, the window, and the fate of every group."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.rollouts.buffer import LEAST_KEPT, UNINFORMATIVE, Batch, Buffer, Completion, Group
from protocol.core.ids import LeaseId, PolicyVersion
from protocol.versions.staleness import Chain, lag_of
from tests.support.examples import examples
from tests.support.trainer_fixture import CHAIN, PEER, lease_id, version


def group(number: int, *made_by: str, size: int = 2) -> Group:
    return Group(
        lease=lease_id(number),
        peer=PEER.peer_id,
        prompt_index=number,
        prompt=(1,),
        completions=(Completion(tokens=(1,), logprobs=(-1.0,), reward=0.0, spans=((1, version(made_by[0])),)),) * size,
        behaviour=frozenset(map(version, made_by)),
    )


def ids(groups: Iterable[Group]) -> list[int]:
    return [int.from_bytes(one.lease, "big") for one in groups]


def rewarded(number: int, *rewards: float) -> Group:
    one = group(number, "2.6").completions[0]
    return replace(group(number, "2.6"), completions=tuple(replace(one, reward=reward) for reward in rewards))


def test_where_only_informative_groups_are_wanted_the_others_are_dropped_at_once_and_told_with_the_next_batch() -> None:
    buffer = Buffer(window=3, informative_only=True)
    groups = [(0, 0, 0), (0, 1), (0.5, 0.5), (1, 1), (0.5, 0.75)]
    kept = [buffer.add(rewarded(number, *rewards)) for number, rewards in enumerate(groups)]
    assert kept == [False, True, False, False, True]
    assert len(buffer) == 4
    assert buffer.alike == 0
    batch = buffer.take(4, CHAIN)
    assert batch is not None
    assert ids(batch.groups) == [1, 4]
    assert batch.dropped == {lease_id(n): UNINFORMATIVE for n in (0, 2, 3)}
    assert (batch.uninformative, batch.stale) == (7, 0)
    assert not buffer.add(rewarded(5, 1, 1))
    assert buffer.alike == 1
    buffer.clear()
    buffer.add(rewarded(6, 0, 1))
    again = buffer.take(2, CHAIN)
    assert again is not None
    assert (again.dropped, again.uninformative) == ({}, 0)


@pytest.mark.parametrize(
    ("groups", "difficulty"),
    [
        ([], None),
        ([(2, None)], None),
        ([(2, 1.0), (2, 0.5)], 0.25),
        ([(6, 1.0), (2, 0.5), (4, None)], 0.125),
        ([(2, 0.5), (3, None)], None),
        ([(2, 0.5), (2, None)], 0.5),
    ],
)
def test_how_hard_a_batch_is_is_told_where_half_of_it_is_known(
    groups: list[tuple[int, float | None]], difficulty: float | None
) -> None:
    found = tuple(replace(group(n, "2.6", size=size), expected=known) for n, (size, known) in enumerate(groups))
    batch = Batch(groups=found, lags={one.lease: 0 for one in found}, dropped={})
    assert batch.difficulty == difficulty


@pytest.mark.parametrize(
    ("times", "gathered_s"),
    [
        ([], None),
        ([(None, None)], None),
        ([(1000, None)], None),
        ([(1000, 3500)], 2.5),
        ([(2000, 3000), (1000, 2000), (1500, 9000)], 8.0),
        ([(0, None), (1000, 3000)], 2.0),
        ([(5000, 3000)], 0.0),
    ],
    ids=["no group", "rebuilt", "half rebuilt", "one", "three", "one rebuilt", "the clock was set back"],
)
def test_how_long_a_batch_was_gathered(times: list[tuple[int | None, int | None]], gathered_s: float | None) -> None:
    found = tuple(replace(group(n, "2.6"), leased_ms=leased, came_ms=came) for n, (leased, came) in enumerate(times))
    assert Batch(groups=found, lags={one.lease: 0 for one in found}, dropped={}).gathered_s == gathered_s


@pytest.mark.parametrize(
    ("rewards", "error"),
    [([(0, 1)], None), ([(0, 1), (1, 0)], 0.0), ([(0, 0), (1, 1)], 0.5), ([(0, 0), (1, 1), (0, 1)], 1 / math.sqrt(12))],
)
def test_how_far_off_the_mean_reward_may_be(rewards: list[tuple[float, ...]], error: float | None) -> None:
    """By hand: the deviation of the groups' means over the root of their number."""
    buffer = Buffer(window=3)
    for number, of_group in enumerate(rewards):
        buffer.add(rewarded(number, *of_group))
    batch = buffer.take(2 * len(rewards), CHAIN)
    assert batch is not None
    assert batch.reward_error == (None if error is None else pytest.approx(error))


def test_what_is_usually_kept_follows_what_comes_and_never_nears_zero() -> None:
    buffer = Buffer(window=3, informative_only=True)
    for number in range(200):
        buffer.add(rewarded(number, 0, number % 4 == 0))
    assert 0.15 < buffer.kept < 0.35
    for number in range(200, 500):
        buffer.add(rewarded(number, 1, 1))
    assert buffer.kept == LEAST_KEPT
    untouched = Buffer(window=3)
    untouched.add(rewarded(1, 1, 1))
    assert untouched.kept == 1.0


def test_the_oldest_version_leaves_first_then_who_came_first() -> None:
    buffer = Buffer(window=3)
    for number, made_by in enumerate([("2.6",), ("2.5",), ("2.6", "1.4"), ("2.5",), ("1.4",)]):
        buffer.add(group(number, *made_by))
    batch = buffer.take(8, CHAIN)
    assert batch is not None
    assert ids(batch.groups) == [2, 4, 1, 3]
    assert list(batch.lags.values()) == [2, 2, 1, 1]
    assert batch.rollouts == 8
    assert len(buffer) == 2


def test_a_batch_waits_until_it_is_whole_and_takes_no_more_than_it_must() -> None:
    buffer = Buffer(window=3)
    buffer.add(group(1, "2.6", size=3))
    assert buffer.take(4, CHAIN) is None
    assert len(buffer) == 3
    buffer.add(group(2, "2.6", size=3))
    buffer.add(group(3, "2.6", size=3))
    batch = buffer.take(4, CHAIN)
    assert batch is not None
    assert ids(batch.groups) == [1, 2], "whole groups, so a few rollouts more than asked for"
    assert len(buffer) == 3


def test_what_has_grown_too_old_is_dropped_and_told_with_the_next_batch() -> None:
    buffer = Buffer(window=3)
    buffer.add(group(1, "1.3"))
    buffer.add(group(2, "1.2", "2.6"))
    buffer.add(group(3, "1.5"))
    assert buffer.take(4, CHAIN) is None
    assert len(buffer) == 2, "only group 1 is left"
    buffer.add(group(4, "2.6"))
    batch = buffer.take(4, CHAIN)
    assert batch is not None
    assert ids(batch.groups) == [1, 4]
    assert batch.dropped == {lease_id(2): "stale", lease_id(3): "orphaned"}
    assert batch.stale == 4
    buffer.add(group(5, "2.6"))
    later = buffer.take(2, CHAIN)
    assert later is not None
    assert later.dropped == {}
    assert later.stale == 0


def test_clear_forgets_what_was_dropped_too() -> None:
    buffer = Buffer(window=0)
    buffer.add(group(1, "1.2"))
    assert buffer.take(1, CHAIN) is None
    buffer.clear()
    assert len(buffer) == 0
    buffer.add(group(2, "2.6"))
    batch = buffer.take(1, CHAIN)
    assert batch is not None
    assert (batch.dropped, batch.stale) == ({}, 0)


@pytest.mark.parametrize("window", [0, 1, 2])
@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.one_of(st.integers(0, 3).map(lambda back: ("add", back)), st.just(("take", 0)), st.just(("step", 0))),
        max_size=60,
    )
)
def test_no_batch_breaks_the_window_and_every_group_ends_once(window: int, events: list[tuple[str, int]]) -> None:
    """A literal model: groups are in one of three places, in the buffer, handed out, or dropped."""
    buffer, chain = Buffer(window=window), Chain(bases=(0,), head=PolicyVersion(1, 0))
    inside: dict[LeaseId, int] = {}
    ended: set[LeaseId] = set()
    for number, (event, back) in enumerate(events):
        if event == "add":
            made_by = max(0, chain.head.version - back)
            buffer.add(group(number, f"1.{made_by}", size=1 + number % 3))
            inside[lease_id(number)] = made_by
        elif event == "step":
            chain = chain.advance()
        elif (batch := buffer.take(3, chain)) is not None:
            handed = {one.lease for one in batch.groups}
            assert batch.rollouts >= 3
            for one in batch.groups:
                assert batch.lags[one.lease] == lag_of(chain.head, one.behaviour) <= window
            assert all(chain.head.version - inside[lease] > window for lease in batch.dropped)
            assert not ended & (handed | set(batch.dropped))
            ended |= handed | set(batch.dropped)
            inside = {lease: made_by for lease, made_by in inside.items() if lease not in ended}
            left = {lease for lease, made_by in inside.items() if chain.head.version - made_by <= window}
            assert len(buffer) == sum(1 + int.from_bytes(lease, "big") % 3 for lease in left)
