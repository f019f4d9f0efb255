"""Membership: the peers that are present, and exactly one Lost for each Joined."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from protocol.core.ids import PeerId, PolicyVersion
from swarm.work.membership import (
    RETURNS_WITHIN_S,
    Awaited,
    Event,
    Gone,
    Heard,
    Joined,
    Lost,
    Membership,
    Opened,
    Tick,
)

A, B = PeerId("a"), PeerId("b")


def test_a_peer_that_says_goodbye_is_lost_once() -> None:
    table = Membership(timeout_s=10)
    assert table.handle(Joined(peer=A), 1.0) == []
    assert table.handle(Gone(peer=A, reason="bye"), 4.0) == [Lost(peer=A, reason="bye", present_s=3.0)]
    assert table.handle(Gone(peer=A, reason="bye"), 5.0) == []
    assert table.members == {}


def test_silence_longer_than_allowed_is_lost_at_the_next_tick() -> None:
    table = Membership(timeout_s=10)
    table.handle(Joined(peer=A), 0.0)
    table.handle(Joined(peer=B), 0.0)
    table.handle(Heard(peer=B, installed=PolicyVersion(1, 3)), 5.0)
    assert table.handle(Tick(), 10.0) == []
    assert table.handle(Tick(), 10.5) == [Lost(peer=A, reason="no heartbeat for 10 s", present_s=10.5)]
    assert table.members[B].installed == PolicyVersion(1, 3)


def test_joining_again_ends_the_visit_before() -> None:
    table = Membership(timeout_s=10)
    table.handle(Joined(peer=A), 0.0)
    table.handle(Heard(peer=A, installed=PolicyVersion(1, 3)), 1.0)
    assert table.handle(Joined(peer=A), 2.0) == [Lost(peer=A, reason="joined again", present_s=2.0)]
    assert table.members[A].since == 2.0
    assert table.members[A].installed is None


def test_signs_of_life_of_strangers_change_nothing() -> None:
    table = Membership(timeout_s=10)
    assert table.handle(Heard(peer=A, installed=None), 0.0) == []
    assert table.members == {}


def test_who_was_here_before_a_restart_is_awaited_from_when_we_are_open() -> None:
    table = Membership(timeout_s=4)
    table.handle(Awaited(peer=A), 0.0)
    assert table.handle(Tick(), 1000.0) == []
    table.handle(Opened(), 1000.0)
    table.handle(Opened(), 1010.0)
    assert table.handle(Tick(), 1000.0 + RETURNS_WITHIN_S) == []
    [lost] = table.handle(Tick(), 1000.5 + RETURNS_WITHIN_S)
    assert lost.reason == "it did not return within 25 s after the learner's restart"


def test_who_is_awaited_and_joins_is_held_to_its_heartbeats() -> None:
    table = Membership(timeout_s=4)
    table.handle(Awaited(peer=A), 0.0)
    table.handle(Joined(peer=A), 1.0)
    table.handle(Awaited(peer=A), 1.0)
    assert [lost.reason for lost in table.handle(Tick(), 5.5)] == ["no heartbeat for 4 s"]


PEERS = st.sampled_from([A, B, PeerId("c")])
EVENTS = st.one_of(
    st.builds(Joined, peer=PEERS),
    st.builds(Heard, peer=PEERS, installed=st.none()),
    st.builds(Gone, peer=PEERS, reason=st.just("gone")),
    st.builds(Tick),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0, 20)), max_size=60))
def test_every_joined_has_one_lost_or_is_still_here(steps: list[tuple[Event, float]]) -> None:
    table = Membership(timeout_s=15)
    joined, lost, present_s, now = Counter[PeerId](), Counter[PeerId](), 0.0, 0.0
    heard: dict[PeerId, float] = {}
    for event, passed in steps:
        now += passed
        effects = table.handle(event, now)
        lost.update(effect.peer for effect in effects)
        present_s += sum(effect.present_s for effect in effects)
        match event:
            case Joined(peer=peer):
                joined[peer] += 1
                heard[peer] = now
            case Heard(peer=peer):
                heard[peer] = now
            case Tick():
                assert all(now - heard[peer] <= 15 for peer in table.members)
                assert all(now - heard[effect.peer] > 15 for effect in effects)
            case Gone(peer=peer):
                assert peer not in table.members
        assert {peer: joined[peer] - lost[peer] for peer in joined} == {
            peer: int(peer in table.members) for peer in joined
        }
    assert 0 <= present_s <= now * 3
