"""Choose which prompts of a window to lease to a peer, so that all are done in time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from learner.scheduling.longest_first import Busy, NextBatch, all_done_s, window_of


def peer(free_s: float = 0.0, rate: float = 1.0, batch_s: float = 8.0) -> Busy:
    return Busy(free_s=free_s, rate=rate, batch_s=batch_s)


def place_for(
    asker: Busy, others: Sequence[Busy], waiting: Sequence[float], group: int, chosen: Sequence[float]
) -> int:
    return NextBatch(everybody=lambda: [asker, *others], group=group, chosen=[*chosen]).place(waiting)


@pytest.mark.parametrize(
    ("work", "peers", "until"),
    [
        (10, [peer()], 10.0),
        (10, [peer(), peer(rate=4.0)], 2.0),
        (10, [peer(), peer(free_s=20.0)], 10.0),
        (10, [peer(free_s=2.0), peer(free_s=4.0)], 8.0),
        (10, [], math.inf),
        (10, [peer(rate=0.0)], math.inf),
    ],
    ids=["one", "two", "one that comes too late", "two that are busy", "nobody", "nobody known"],
)
def test_when_all_is_done(work: float, peers: list[Busy], until: float) -> None:
    assert all_done_s(work, peers) == until


def test_what_peers_that_are_alike_take_in_one_go_is_leased_as_it_comes() -> None:
    assert window_of(room=512, group=8, asked=512, rates=[1.0, 1.5]) == 1
    assert window_of(room=1024, group=8, asked=512, rates=[1.0, 1.5]) == 128
    assert window_of(room=512, group=8, asked=512, rates=[1.0, 2.5]) == 64
    assert window_of(room=3, group=8, asked=0, rates=[]) == 1
    assert window_of(room=0, group=8, asked=0, rates=[1.0]) == 1


def test_the_longest_is_for_who_has_it_done_first() -> None:
    """A fast peer and one that takes eight times as long: a group of three times the usual length."""
    fast, slow = peer(rate=8.0, batch_s=1.0), peer(rate=1.0, batch_s=8.0)
    waiting = [3.0, 1.0, 0.5, 0.1]
    assert place_for(fast, [slow], waiting, 8, []) == 0
    assert waiting[place_for(slow, [fast], waiting, 8, [])] == 0.5


def test_who_is_busy_leaves_it_to_who_is_free() -> None:
    waiting = [3.0, 1.0, 1.0, 0.2, 0.2]
    assert place_for(peer(), [peer(free_s=24.0)], waiting, 8, []) == 0
    assert place_for(peer(free_s=24.0), [peer()], waiting, 8, []) > 0


def test_somebody_takes_what_nobody_has_done_in_time() -> None:
    assert place_for(peer(), [peer(), peer()], [50.0, 0.1], 8, []) == 0


def test_who_has_no_time_left_has_the_shortest() -> None:
    assert place_for(peer(free_s=99.0), [peer()], [1.0, 0.9, 0.8], 2, []) == 2


def test_what_a_batch_has_makes_it_longer() -> None:
    asker, waiting = peer(), [1.2, 1.0, 1.0, 1.0]
    assert place_for(asker, [peer(rate=0.1)], waiting, 2, []) == 0
    assert place_for(asker, [peer(rate=0.1)], waiting, 2, [2.5, 2.5]) == 3


def test_who_is_not_known_takes_what_comes_first() -> None:
    assert NextBatch(everybody=list, group=8).place([9.0, 1.0]) == 0


def test_who_works_is_asked_once() -> None:
    asked: list[int] = []

    def everybody() -> list[Busy]:
        asked.append(1)
        return [peer()]

    batch = NextBatch(everybody=everybody, group=8)
    assert [batch.place([1.0, 0.5]) for _ in range(5)] == [0] * 5
    assert len(asked) == 1
