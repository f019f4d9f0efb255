"""One key, and perhaps two processes: tell a node that comes back from a copy, by greetings and heartbeats."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.work.duplicate_keys import (
    CROSSING_S,
    LONGEST_RETRY_S,
    PROVE_HEARTBEATS,
    Copied,
    Doubles,
    Standing,
    Unsettled,
    Welcomed,
)
from tests.support.examples import examples
from tests.support.swarm_fixture import peer_of

PEER, OTHER = peer_of("attic"), peer_of("cellar")
FIRST, SECOND, THIRD = b"\x01" * 16, b"\x02" * 16, b"\x03" * 16
HEARTBEAT_S = 5.0
RETRY_S = HEARTBEAT_S + CROSSING_S


def here(heard_s: float, instance: bytes = FIRST) -> Standing:
    return Standing(instance=instance, heard_s=heard_s)


def test_one_process_is_welcome_however_often_it_comes() -> None:
    doubles = Doubles()
    assert doubles.judge(PEER, FIRST, None, 0.0) == Welcomed()
    assert doubles.judge(PEER, FIRST, here(3.0), 3.1) == Welcomed(), "its line is half-open: it has another network"


def test_programs_that_tell_no_number_are_welcome_as_before() -> None:
    assert Doubles().judge(PEER, b"", here(3.0), 3.1) == Welcomed()
    assert Doubles().judge(PEER, SECOND, here(3.0, instance=b""), 3.1) == Welcomed()


def test_a_second_process_is_a_copy_once_the_first_has_spoken_twice() -> None:
    doubles = Doubles(heartbeat_s=HEARTBEAT_S)
    assert doubles.judge(PEER, SECOND, here(99.0), 100.0) == Unsettled(retry_s=RETRY_S)
    assert doubles.judge(PEER, SECOND, here(104.0), 106.0) == Unsettled(retry_s=RETRY_S)
    assert doubles.judge(PEER, SECOND, here(109.0), 112.0) == Copied()


def test_what_the_system_of_a_killed_process_sends_long_after_it_is_no_life() -> None:
    """Its heir waits for two heartbeats since that word, and not from its own second greeting."""
    doubles = Doubles(heartbeat_s=HEARTBEAT_S)
    assert doubles.judge(PEER, SECOND, here(99.0), 100.0) == Unsettled(retry_s=RETRY_S)
    assert doubles.judge(PEER, SECOND, here(102.0), 106.0) == Unsettled(retry_s=RETRY_S)
    assert doubles.judge(PEER, SECOND, here(102.0), 112.0) == Unsettled(retry_s=2.0)
    assert doubles.judge(PEER, SECOND, here(102.0), 102.0 + PROVE_HEARTBEATS * RETRY_S) == Welcomed()


def test_what_crossed_the_second_greeting_proves_nothing_either() -> None:
    doubles = Doubles(heartbeat_s=HEARTBEAT_S)
    doubles.judge(PEER, SECOND, here(99.0), 100.0)
    doubles.judge(PEER, SECOND, here(104.0), 106.0)
    assert isinstance(doubles.judge(PEER, SECOND, here(106.0 + CROSSING_S), 112.0), Unsettled)


def test_where_heartbeats_are_too_rare_for_a_second_word_one_is_enough() -> None:
    doubles = Doubles(heartbeat_s=PROVE_HEARTBEATS * LONGEST_RETRY_S)
    assert isinstance(doubles.judge(PEER, SECOND, here(99.0), 100.0), Unsettled)
    assert doubles.judge(PEER, SECOND, here(104.0), 115.0) == Copied()


def test_what_crossed_the_greeting_proves_nothing() -> None:
    doubles = Doubles(heartbeat_s=HEARTBEAT_S)
    doubles.judge(PEER, SECOND, here(99.0), 100.0)
    assert isinstance(doubles.judge(PEER, SECOND, here(100.0 + CROSSING_S), 106.0), Unsettled)


def test_who_was_started_again_after_a_power_cut_waits_for_two_heartbeats() -> None:
    doubles = Doubles(heartbeat_s=HEARTBEAT_S)
    assert doubles.judge(PEER, SECOND, here(99.0), 100.0) == Unsettled(retry_s=RETRY_S)
    assert doubles.judge(PEER, SECOND, here(99.0), 107.0) == Unsettled(retry_s=5.0)
    assert doubles.judge(PEER, SECOND, here(99.0), 100.0 + PROVE_HEARTBEATS * RETRY_S) == Welcomed()


def test_a_third_process_begins_to_wait_anew_and_other_peers_are_no_matter() -> None:
    doubles = Doubles(heartbeat_s=HEARTBEAT_S)
    doubles.judge(PEER, SECOND, here(99.0), 100.0)
    assert doubles.judge(PEER, THIRD, here(99.0), 111.0) == Unsettled(retry_s=RETRY_S)
    assert doubles.judge(OTHER, SECOND, here(99.0), 111.0) == Unsettled(retry_s=RETRY_S)


def test_what_is_forgotten_counts_no_more() -> None:
    doubles = Doubles(heartbeat_s=HEARTBEAT_S)
    doubles.judge(PEER, SECOND, here(99.0), 100.0)
    doubles.forget(PEER)
    assert doubles.judge(PEER, SECOND, here(112.0), 113.0) == Unsettled(retry_s=RETRY_S)


def test_seldom_heartbeats_keep_nobody_waiting_for_minutes() -> None:
    assert Doubles(heartbeat_s=600.0).judge(PEER, SECOND, here(0.0), 1.0) == Unsettled(retry_s=LONGEST_RETRY_S)


@dataclass
class Line:
    """What the learner's end would hold, by the judgements of the core."""

    doubles: Doubles = field(default_factory=lambda: Doubles(heartbeat_s=HEARTBEAT_S))
    standing: Standing | None = None

    def greet(self, instance: bytes, now: float) -> object:
        judged = self.doubles.judge(PEER, instance, self.standing, now)
        if isinstance(judged, Welcomed):
            self.standing = here(now, instance)
        return judged

    def speak(self, instance: bytes, now: float) -> None:
        if self.standing is not None and self.standing.instance == instance:
            self.standing = here(now, instance)


@settings(max_examples=examples(200))
@given(st.floats(0.1, 29.0), st.floats(0.0, 20.0), st.floats(0.1, 4.0), st.floats(0.0, 1.0))
def test_of_two_that_live_the_second_gives_up_and_the_first_is_never_disturbed(
    heartbeat_s: float, came_s: float, pause_s: float, phase: float
) -> None:
    """Whenever the second comes, however soon it comes again, and wherever the first stands between two heartbeats, if
    there is one in LONGEST_RETRY_S * PROVE_HEARTBEATS."""
    line, greeting_s, beat_s = Line(Doubles(heartbeat_s=heartbeat_s)), came_s, phase * heartbeat_s
    longest_s = 2 * (heartbeat_s + CROSSING_S) + 3 * max(line.doubles.retry_s, pause_s)
    assert line.greet(FIRST, 0.0) == Welcomed()
    while True:
        while beat_s <= greeting_s:
            line.speak(FIRST, beat_s)
            beat_s += heartbeat_s
        judged = line.greet(SECOND, greeting_s)
        assert judged != Welcomed()
        if judged == Copied():
            break
        assert isinstance(judged, Unsettled)
        greeting_s += max(judged.retry_s, pause_s)
        assert greeting_s < came_s + longest_s


@settings(max_examples=examples(200))
@given(
    st.floats(0.0, 30.0),
    st.lists(st.floats(0.1, 15.0), min_size=30, max_size=30),
    st.one_of(st.just(0.0), st.floats(0.0, 60.0)),
)
def test_of_a_line_that_is_dead_the_heir_waits_no_longer_than_it_takes_to_be_sure(
    came_s: float, pauses: list[float], late_s: float
) -> None:
    """Whenever the last word of the dead process is read, if one still is."""
    line, now = Line(), came_s
    line.greet(FIRST, 0.0)
    for pause_s in pauses:
        if late_s <= now:
            line.speak(FIRST, late_s)
        judged = line.greet(SECOND, now)
        if judged == Welcomed():
            break
        assert isinstance(judged, Unsettled)
        assert now < max(came_s, late_s if late_s <= now else 0.0) + PROVE_HEARTBEATS * RETRY_S
        now += max(judged.retry_s, pause_s)
    else:
        raise AssertionError("it was never welcomed")
