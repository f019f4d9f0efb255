"""Measure how long versions travel from publications and installations."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.provisioning.estimation.broadcasts import VERSIONS, BroadcastTracker

TEN = [f"p{k}" for k in range(10)]
ELEVEN = [f"p{k}" for k in range(11)]


def took(broadcasts: BroadcastTracker) -> float | None:
    return None if broadcasts.broadcast_s is None else broadcasts.broadcast_s.value


def test_the_quorum_is_ten_of_eleven() -> None:
    broadcasts = BroadcastTracker()
    broadcasts.published(0, 100, ELEVEN, ELEVEN)
    for second, peer in enumerate(ELEVEN[:-2], start=1):
        broadcasts.installed(peer, 0, 100 + second)
    assert took(broadcasts) is None
    broadcasts.installed(ELEVEN[-2], 0, 150)
    assert took(broadcasts) == 50
    broadcasts.installed(ELEVEN[-1], 0, 900)
    assert took(broadcasts) == 50


def test_a_version_that_was_overtaken_counts_with_the_newer_one() -> None:
    broadcasts = BroadcastTracker()
    broadcasts.published(2, 100, ["a"], ["a"])
    broadcasts.published(4, 130, ["a"], ["a"])
    assert broadcasts.installed("a", 4, 150) == [50, 20]
    assert took(broadcasts) == 35


def test_an_older_version_is_no_arrival() -> None:
    broadcasts = BroadcastTracker()
    broadcasts.published(4, 100, ["a"], ["a"])
    assert broadcasts.installed("a", 2, 110) == []
    assert took(broadcasts) is None


def test_who_left_is_not_waited_for_nor_counted() -> None:
    broadcasts = BroadcastTracker()
    broadcasts.published(0, 0, TEN, TEN)
    for second, peer in enumerate(TEN[:-1], start=1):
        broadcasts.installed(peer, 0, second)
    broadcasts.left(TEN[-1])  # nine remain, and all of them have it
    assert took(broadcasts) == 9


def test_only_the_active_make_the_quorum_and_all_hear_their_own_delay() -> None:
    broadcasts = BroadcastTracker()
    broadcasts.published(0, 0, ["a", "b"], ["a"])
    broadcasts.installed("a", 0, 5)
    assert took(broadcasts) == 5
    assert broadcasts.installed("b", 0, 60) == [60]
    assert took(broadcasts) == 5


def test_a_newcomers_first_download_is_no_broadcast() -> None:
    broadcasts = BroadcastTracker()
    broadcasts.published(0, 0, ["a"], ["a"])
    broadcasts.installed("a", 0, 5)
    broadcasts.published(2, 100, ["a", "new"], ["a", "new"])
    broadcasts.installed("a", 2, 107)
    assert took(broadcasts) == 6
    assert broadcasts.installed("new", 2, 500) == []


def test_a_new_beginning_forgets_the_numbers() -> None:
    broadcasts = BroadcastTracker()
    broadcasts.published(10, 0, ["a"], ["a"])
    broadcasts.installed("a", 10, 5)
    broadcasts.begin()
    broadcasts.published(8, 100, ["a"], ["a"])
    assert took(broadcasts) == 5
    assert broadcasts.installed("a", 8, 120) == [20]


def test_what_nobody_installs_is_not_remembered_for_ever() -> None:
    broadcasts = BroadcastTracker()
    for version in range(VERSIONS + 5):
        broadcasts.published(version, version, ["a"], ["a"])
    assert len(broadcasts.installed("a", VERSIONS + 5, 1000)) == VERSIONS


@given(st.permutations(TEN), st.integers(0, 1 << 30))
def test_who_is_who_does_not_matter(order: list[str], seed: int) -> None:
    delays = [random.Random(seed).uniform(0, 100) for _ in TEN]

    def run(peers: list[str]) -> float | None:
        broadcasts = BroadcastTracker()
        broadcasts.published(0, 50, sorted(peers), sorted(peers))
        for delay, peer in sorted(zip(delays, peers, strict=True)):
            broadcasts.installed(peer, 0, 50 + delay)
        return took(broadcasts)

    assert run(order) == run(TEN) == pytest.approx(max(delays))


# How long the source is busy with a version


def follows(broadcasts: BroadcastTracker, *versions: int, every_s: float, took_s: float) -> None:
    """A peer that installs these, the publication of each being `took_s` ago."""
    for number, version in enumerate(versions):
        broadcasts.published(version, every_s * number, ["a"], ["a"])
        broadcasts.installed("a", version, every_s * number + took_s)


def test_who_installs_every_version_shows_that_the_source_keeps_up() -> None:
    broadcasts = BroadcastTracker()
    follows(broadcasts, 0, 2, 4, 6, every_s=20.0, took_s=50.0)
    assert broadcasts.source_s(2, 9.0) == 18
    assert broadcasts.source_s(2, 90.0) == 50, "at most T_bcast"


def test_who_skips_versions_shows_how_long_one_takes() -> None:
    broadcasts = BroadcastTracker()
    follows(broadcasts, 0, 3, 6, 9, every_s=25.0, took_s=50.0)
    assert broadcasts.source_s(1, 9.0) == 25


def test_who_goes_back_to_an_older_version_for_a_while_has_not_been_served_sooner() -> None:
    broadcasts = BroadcastTracker()
    for version, at_s in ((0, 10.0), (3, 40.0), (0, 69.0), (6, 70.0)):
        broadcasts.published(version, at_s - 35.0, ["a"], ["a"])
        broadcasts.installed("a", version, at_s)
    assert broadcasts.source_s(1, 9.0) == 30


def test_what_was_never_seen_twice_is_t_bcast() -> None:
    broadcasts = BroadcastTracker()
    assert broadcasts.source_s(1, 9.0) is None
    follows(broadcasts, 0, every_s=1.0, took_s=50.0)
    broadcasts.begin()
    follows(broadcasts, 3, every_s=1.0, took_s=50.0)
    assert broadcasts.source_s(1, 9.0) == 50
    broadcasts.left("a")
    follows(broadcasts, 4, every_s=1.0, took_s=50.0)
    assert broadcasts.source_s(1, 9.0) == 50, "the time of a peer that was away must not count"
