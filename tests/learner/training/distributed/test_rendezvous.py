"""Ranks that wait for each other, in virtual time."""

from __future__ import annotations

import pytest

from learner.training.distributed.rendezvous import HERE, JOIN_S, TOLD_S, NotHere, wait_for_all


class Shared:
    """A store, and a clock in whose time the others come."""

    def __init__(self, comes_s: dict[int, float]) -> None:
        self.now_s = 50.0
        self.comes_s = comes_s
        self.kept: set[str] = set()

    def set(self, key: str, value: str, /) -> None:
        self.kept.add(key)

    def check(self, keys: list[str], /) -> bool:
        came = {f"{HERE}{rank}" for rank, at_s in self.comes_s.items() if self.now_s >= 50.0 + at_s}
        return set(keys) <= self.kept | came

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def wait(shared: Shared, number: int, count: int) -> list[str]:
    told: list[str] = []
    wait_for_all(shared, number, count, told.append, clock=shared.clock, sleep=shared.sleep)
    return told


def test_nothing_is_said_where_all_come_soon() -> None:
    shared = Shared({1: 3.0, 2: TOLD_S - 1})
    assert wait(shared, 0, 3) == []
    assert shared.now_s == pytest.approx(50.0 + TOLD_S - 1, abs=0.3)


def test_who_has_not_come_is_told_again_and_again() -> None:
    told = wait(Shared({1: 1.0, 2: 2 * TOLD_S + 5, 3: TOLD_S + 5}), 0, 4)
    assert [text.partition(":")[0] for text in told] == [
        "rank 2, 3 of 4 has not come after 30 s",
        "rank 2 of 4 has not come after 60 s",
    ]


def test_one_that_never_comes_is_not_waited_for_for_ever() -> None:
    shared = Shared({1: 1.0})
    with pytest.raises(NotHere, match="rank 2 of 3 has not come within 300 s"):
        wait(shared, 0, 3)
    assert shared.now_s == pytest.approx(50.0 + JOIN_S, abs=0.5)


@pytest.mark.parametrize(("number", "tells"), [(1, True), (2, False)])
def test_where_rank_0_does_not_come_the_first_that_is_here_says_so(number: int, tells: bool) -> None:
    shared = Shared({3 - number: 1.0, 0: TOLD_S + 5})
    assert bool(wait(shared, number, 3)) is tells
