"""Measure how long versions travel from publications and installations."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.provisioning.estimation.broadcasts import VERSIONS, BroadcastTracker

TEN = [f"p{k}" for k in range(10)]
ELEVEN = [f"p{k}" for k in range(11)]


def took(journeys: BroadcastTracker) -> float | None:
    return None if journeys.broadcast_s is None else journeys.broadcast_s.value


def test_the_quorum_is_ten_of_eleven() -> None:
    journeys = BroadcastTracker()
    journeys.published(0, 100, ELEVEN, ELEVEN)
    for second, peer in enumerate(ELEVEN[:-2], start=1):
        journeys.installed(peer, 0, 100 + second)
    assert took(journeys) is None
    journeys.installed(ELEVEN[-2], 0, 150)
    assert took(journeys) == 50
    journeys.installed(ELEVEN[-1], 0, 900)
    assert took(journeys) == 50


def test_a_version_that_was_overtaken_counts_with_the_newer_one() -> None:
    journeys = BroadcastTracker()
    journeys.published(2, 100, ["a"], ["a"])
    journeys.published(4, 130, ["a"], ["a"])
    assert journeys.installed("a", 4, 150) == [50, 20]
    assert took(journeys) == 35


def test_an_older_version_is_no_arrival() -> None:
    journeys = BroadcastTracker()
    journeys.published(4, 100, ["a"], ["a"])
    assert journeys.installed("a", 2, 110) == []
    assert took(journeys) is None


def test_who_left_is_not_waited_for_nor_counted() -> None:
    journeys = BroadcastTracker()
    journeys.published(0, 0, TEN, TEN)
    for second, peer in enumerate(TEN[:-1], start=1):
        journeys.installed(peer, 0, second)
    journeys.left(TEN[-1])  # nine remain, and all of them have it
    assert took(journeys) == 9


def test_only_the_active_make_the_quorum_and_all_hear_their_own_delay() -> None:
    journeys = BroadcastTracker()
    journeys.published(0, 0, ["a", "b"], ["a"])
    journeys.installed("a", 0, 5)
    assert took(journeys) == 5
    assert journeys.installed("b", 0, 60) == [60]
    assert took(journeys) == 5


def test_a_newcomers_first_download_is_no_broadcast() -> None:
    journeys = BroadcastTracker()
    journeys.published(0, 0, ["a"], ["a"])
    journeys.installed("a", 0, 5)
    journeys.published(2, 100, ["a", "new"], ["a", "new"])
    journeys.installed("a", 2, 107)
    assert took(journeys) == 6
    assert journeys.installed("new", 2, 500) == []


def test_a_new_beginning_forgets_the_numbers() -> None:
    journeys = BroadcastTracker()
    journeys.published(10, 0, ["a"], ["a"])
    journeys.installed("a", 10, 5)
    journeys.begin()
    journeys.published(8, 100, ["a"], ["a"])
    assert took(journeys) == 5
    assert journeys.installed("a", 8, 120) == [20]


def test_what_nobody_installs_is_not_remembered_for_ever() -> None:
    journeys = BroadcastTracker()
    for version in range(VERSIONS + 5):
        journeys.published(version, version, ["a"], ["a"])
    assert len(journeys.installed("a", VERSIONS + 5, 1000)) == VERSIONS


@given(st.permutations(TEN), st.integers(0, 1 << 30))
def test_who_is_who_does_not_matter(order: list[str], seed: int) -> None:
    delays = [random.Random(seed).uniform(0, 100) for _ in TEN]

    def run(peers: list[str]) -> float | None:
        journeys = BroadcastTracker()
        journeys.published(0, 50, sorted(peers), sorted(peers))
        for delay, peer in sorted(zip(delays, peers, strict=True)):
            journeys.installed(peer, 0, 50 + delay)
        return took(journeys)

    assert run(order) == run(TEN) == pytest.approx(max(delays))


# How long the source is busy with a version


def follows(journeys: BroadcastTracker, *versions: int, every_s: float, took_s: float) -> None:
    """A peer that installs these, the publication of each being `took_s` ago."""
    for number, version in enumerate(versions):
        journeys.published(version, every_s * number, ["a"], ["a"])
        journeys.installed("a", version, every_s * number + took_s)


def test_who_installs_every_version_shows_that_the_source_keeps_up() -> None:
    journeys = BroadcastTracker()
    follows(journeys, 0, 2, 4, 6, every_s=20.0, took_s=50.0)
    assert journeys.source_s(2, 9.0) == 18
    assert journeys.source_s(2, 90.0) == 50, "at most T_bcast"


def test_who_skips_versions_shows_how_long_one_takes() -> None:
    journeys = BroadcastTracker()
    follows(journeys, 0, 3, 6, 9, every_s=25.0, took_s=50.0)
    assert journeys.source_s(1, 9.0) == 25


def test_who_goes_back_to_an_older_version_for_a_while_has_not_been_served_sooner() -> None:
    journeys = BroadcastTracker()
    for version, at_s in ((0, 10.0), (3, 40.0), (0, 69.0), (6, 70.0)):
        journeys.published(version, at_s - 35.0, ["a"], ["a"])
        journeys.installed("a", version, at_s)
    assert journeys.source_s(1, 9.0) == 30


def test_what_was_never_seen_twice_is_t_bcast() -> None:
    journeys = BroadcastTracker()
    assert journeys.source_s(1, 9.0) is None
    follows(journeys, 0, every_s=1.0, took_s=50.0)
    journeys.begin()
    follows(journeys, 3, every_s=1.0, took_s=50.0)
    assert journeys.source_s(1, 9.0) == 50
    journeys.left("a")
    follows(journeys, 4, every_s=1.0, took_s=50.0)
    assert journeys.source_s(1, 9.0) == 50, "the time of a peer that was away must not count"
