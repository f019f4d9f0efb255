"""Announcements: which version to fetch, as events and effects."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.core.ids import PolicyVersion
from protocol.versions.announcement import SignedAnnouncement
from swarm.versions.announcements import REMEMBERED_NAMES, Abandon, Announcements, Equivocation, Fetch, Relay
from tests.support.swarm_fixture import hash_of, heard_of


def test_the_first_announcement_is_relayed_and_fetched() -> None:
    core, one = Announcements(), heard_of(1)
    assert core.hear(one) == [Relay(announcement=one), Fetch(announcement=one)]
    assert core.hear(one) == []


def test_a_version_in_flight_is_finished_and_the_newest_comes_next() -> None:
    core, one, two, three = Announcements(), heard_of(1), heard_of(2), heard_of(3)
    core.hear(one)
    assert core.hear(two) == [Relay(announcement=two)]
    assert core.hear(three) == [Relay(announcement=three)]
    assert core.in_flight is one
    assert core.note_complete(one) == [Fetch(announcement=three)]
    assert core.note_complete(three) == []
    assert core.held == PolicyVersion(1, 3)


def test_names_only_go_up() -> None:
    core, five = Announcements(), heard_of(5)
    core.hear(five)
    assert core.hear(heard_of(4)) == []
    assert core.newest is five


def test_a_higher_incarnation_preempts_what_is_in_flight() -> None:
    core, old, new = Announcements(), heard_of(9), heard_of(2, incarnation=2)
    core.hear(old)
    assert core.hear(new) == [Relay(announcement=new), Abandon(announcement=old), Fetch(announcement=new)]
    assert core.hear(heard_of(10)) == []


def test_an_abandoned_version_that_ends_late_does_not_end_its_successor() -> None:
    core, old, new = Announcements(), heard_of(9), heard_of(2, incarnation=2)
    core.hear(old)
    core.hear(new)
    assert core.note_complete(old) == []
    assert core.note_failure(old) == []
    assert core.in_flight is new


def test_a_failed_version_waits_for_a_retry_unless_there_is_a_newer_one() -> None:
    core, one, two = Announcements(), heard_of(1), heard_of(2)
    core.hear(one)
    assert core.note_failure(one) == []
    assert core.retry() == [Fetch(announcement=one)]
    assert core.retry() == []
    core.hear(two)
    assert core.note_failure(one) == [Fetch(announcement=two)]


def test_two_manifests_under_one_name_are_shown_once_and_the_second_refused() -> None:
    core, one, other = Announcements(), heard_of(1), heard_of(1, manifest="another")
    core.hear(one)
    shown = Equivocation(version=one.version, first=one.manifest, second=other.manifest)
    assert core.hear(other) == [shown]
    assert core.hear(other) == []
    assert core.newest is one


def test_what_the_store_held_before_is_neither_fetched_nor_replaced_by_something_older() -> None:
    core, five = Announcements(), heard_of(5)
    core.note_stored(five.version, five.manifest, complete=True)
    assert core.hear(heard_of(3)) == []
    assert core.hear(heard_of(5, manifest="another")) == [
        Equivocation(version=five.version, first=five.manifest, second=hash_of("another"))
    ]
    assert core.hear(five) == [Relay(announcement=five)]
    six = heard_of(6)
    assert core.hear(six) == [Relay(announcement=six), Fetch(announcement=six)]


def test_a_version_found_in_part_is_fetched_when_it_is_announced() -> None:
    core, five = Announcements(), heard_of(5)
    core.note_stored(five.version, five.manifest, complete=False)
    assert core.hear(five) == [Relay(announcement=five), Fetch(announcement=five)]


def test_memory_is_bounded() -> None:
    core = Announcements()
    for version in range(3 * REMEMBERED_NAMES):
        core.hear(heard_of(version))
        core.hear(heard_of(version, manifest=f"fork of {version}"))
    assert len(core._names) == REMEMBERED_NAMES
    assert len(core._shown) <= REMEMBERED_NAMES


class Follow(RuleBasedStateMachine):
    """A learner that may restart and may lie, and a fetcher that succeeds, fails, or ends after it was abandoned."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Announcements()
        self.flying: SignedAnnouncement | None = None
        self.newest: PolicyVersion | None = None
        self.first: dict[PolicyVersion, str] = {}
        self.abandoned: list[SignedAnnouncement] = []

    def perform(self, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case Fetch(announcement=news):
                    assert self.flying is None, "one in flight"
                    assert self.core.held is None or news.version > self.core.held
                    self.flying = news
                case Abandon(announcement=old):
                    assert self.flying is old
                    assert self.core.newest is not None
                    assert old.version.incarnation < self.core.newest.version.incarnation
                    self.flying = None
                    self.abandoned.append(old)
                case Relay(announcement=news):
                    assert self.newest is None or news.version > self.newest
                    self.newest = news.version

    @rule(version=st.integers(0, 6), incarnation=st.integers(1, 3), fork=st.sampled_from(["x", "y"]))
    def hear(self, version: int, incarnation: int, fork: str) -> None:
        news = heard_of(version, incarnation=incarnation, manifest=f"{incarnation}.{version}{fork}")
        first = self.first.setdefault(news.version, fork)
        effects = self.core.hear(news)
        if first != fork:
            assert all(isinstance(effect, Equivocation) for effect in effects), "refused, and shown"
        self.perform(list(effects))

    @precondition(lambda self: self.flying is not None)
    @rule(success=st.booleans())
    def land(self, success: bool) -> None:
        flying, self.flying = self.flying, None
        assert flying is not None
        self.perform(list(self.core.note_complete(flying) if success else self.core.note_failure(flying)))

    @precondition(lambda self: self.abandoned)
    @rule(success=st.booleans())
    def land_late(self, success: bool) -> None:
        old = self.abandoned.pop()
        self.perform(list(self.core.note_complete(old) if success else self.core.note_failure(old)))

    @rule()
    def retry(self) -> None:
        self.perform(list(self.core.retry()))
        newest, held = self.core.newest, self.core.held
        assert newest is None or self.flying is not None or (held is not None and held >= newest.version), "no livelock"

    @invariant()
    def agrees(self) -> None:
        assert self.core.in_flight is self.flying
        assert (self.core.newest.version if self.core.newest else None) == self.newest


TestFollow = Follow.TestCase


def test_the_newest_once_more_under_a_certificate_that_holds_for_longer_is_told_on_and_fetched_once() -> None:
    core = Announcements()
    first = replace(heard_of(7), until_ms=100)
    renewed = replace(heard_of(7), until_ms=200, raw=b"renewed")
    assert core.hear(first) == [Relay(announcement=first), Fetch(announcement=first)]
    assert core.hear(renewed) == [Relay(announcement=renewed)]
    assert core.newest is renewed
    assert core.hear(first) == [], "the old one is not taken back"
    assert core.note_complete(first) == []
    assert core.held == renewed.version
