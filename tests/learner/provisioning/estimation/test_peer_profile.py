"""A peer's rate is what it shows; its own claim counts for little, and not for long."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.provisioning.estimation.estimates import ENOUGH, WINDOW
from learner.provisioning.estimation.peer_profile import BRIEF_S, KNOWN_HOURS, STOPS_PER_HOUR, Profile
from learner.provisioning.estimation.recording import Delivered, Joined
from tests.support.estimates import has_drifted
from tests.support.observed_swarm import batches, delivered


def profile_of(events: list[Delivered], claim: float = 0.0) -> Profile:
    profile = Profile("a")
    profile.joined(Joined(at_s=0, peer="a", name="box", machine="m", price=0.35, rate=claim))
    for event in events:
        profile.delivered(event)
    return profile


def rate_of(events: list[Delivered], claim: float = 0.0) -> float:
    rate = profile_of(events, claim).rate()
    assert rate is not None
    return rate.value


def test_a_paced_peer_is_as_fast_as_one_that_is_kept_busy() -> None:
    busy = rate_of(batches("a", 10, took_s=10, every_s=10))
    paced = rate_of(batches("a", 10, took_s=10, every_s=600))
    assert busy == paced == pytest.approx(1.6)


def test_a_peer_whose_leases_wait_in_its_hands_is_kept_busy() -> None:
    kept = profile_of([delivered(10 * k + 10, 10, held_s=18) for k in range(10)])
    assert not kept.is_least


def test_a_peer_that_begins_what_it_is_leased_at_once_may_be_faster() -> None:
    """It stood still until then, and what it was leased may be less than it could take."""
    assert profile_of([delivered(30 * k + 10, 10, held_s=11) for k in range(10)]).is_least
    assert not profile_of([]).is_least


def test_a_peer_that_is_kept_busy_from_now_on_is_known_after_half_a_window() -> None:
    events = [delivered(30 * k + 10, 10) for k in range(WINDOW)]
    events += [delivered(2000 + 10 * k, 10, held_s=20) for k in range(WINDOW)]
    is_least = [profile_of(events[: WINDOW + many]).is_least for many in range(WINDOW)]
    assert is_least == [True] * (WINDOW // 2 + 1) + [False] * (WINDOW // 2 - 1)


def test_the_leases_of_a_batch_share_its_time() -> None:
    profile = profile_of(batches("a", 3, took_s=10, every_s=20, leases=4))
    rate, size = profile.rate(), profile.batch_rollouts
    assert rate is not None
    assert size is not None
    assert rate.value == pytest.approx(3.2)
    assert size.value == 32


def test_a_batch_that_is_still_being_delivered_does_not_look_slow() -> None:
    events = batches("a", 4, took_s=10, every_s=20, leases=4)
    assert rate_of(events[:-3]) == pytest.approx(3.2)


def test_leases_that_overlap_as_they_like_are_counted_once() -> None:
    # An engine that works on two leases at a time, each 10 s, one begun every 5 s.
    assert rate_of([delivered(5 * k + 10, 10) for k in range(40)]) == pytest.approx(8 / 5, rel=0.05)


def test_leases_that_ran_out_before_anything_was_known_say_nothing() -> None:
    profile = profile_of([])
    profile.expired(8)
    assert profile.rate() is None
    profile.delivered(delivered(20, 10))
    rate = profile.rate()
    assert rate is not None
    assert rate.value == pytest.approx(0.8)


def test_what_is_refused_is_no_rate() -> None:
    assert rate_of([delivered(20 * k + 10, 10, admitted=4, refused=4) for k in range(8)]) == pytest.approx(0.4)


def test_nothing_is_known_of_who_showed_and_said_nothing() -> None:
    profile = profile_of([])
    assert profile.rate() is None
    assert profile.broadcast_s is profile.generation_s is profile.batch_rollouts is None


def test_a_claim_counts_until_enough_batches_were_seen() -> None:
    claims = [rate_of(batches("a", count, took_s=10, every_s=20), claim=0.8) for count in range(1, ENOUGH + 3)]
    assert rate_of([], claim=0.8) == 0.8
    assert claims == sorted(claims)
    assert 0.8 < claims[0] < 1.6
    assert claims[-1] == pytest.approx(1.6)  # the last batch is still open, so ENOUGH were closed long ago


def test_the_first_batch_limits_a_boast() -> None:
    assert rate_of(batches("a", 1, took_s=10, every_s=20), claim=1e9) <= ENOUGH * 1.6 * 1.001


def test_a_claim_that_is_never_kept_is_worth_nothing() -> None:
    profile = profile_of([], claim=1e9)
    profile.expired(8)
    rate = profile.rate()
    assert rate is not None
    assert rate.value == 0


def test_leases_that_run_out_take_as_long_as_others() -> None:
    profile = profile_of(batches("a", 10, took_s=10, every_s=20))
    for _ in range(10):
        profile.expired(16)
    rate = profile.rate()
    assert rate is not None
    assert rate.value == pytest.approx(0.8, rel=0.02)


def test_a_slower_machine_is_seen_within_the_window() -> None:
    profile = profile_of(batches("a", 50, took_s=10, every_s=20))
    before = profile.rate()
    for event in batches("a", WINDOW + 1, took_s=40, every_s=50):
        profile.delivered(delivered(event.at_s + 5000, 40))
    after = profile.rate()
    assert before is not None
    assert after is not None
    assert after.value == pytest.approx(before.value / 4)
    assert has_drifted(after, before.value)


def test_what_waits_before_it_is_begun_is_not_being_generated() -> None:
    profile = profile_of([delivered(100 * k, 10, held_s=30) for k in range(1, 4)])
    assert profile.generation_s is not None
    assert profile.generation_s.value == 10


def test_stops_are_counted_over_the_time_it_was_here() -> None:
    profile = Profile("a")
    assert profile.stops_per_hour(0) == STOPS_PER_HOUR
    for hour in range(10):
        profile.joined(Joined(at_s=7200 * hour, peer="a"))
        profile.left(7200 * hour + 3600)
    assert profile.stops_per_hour(1e6) == pytest.approx((10 + STOPS_PER_HOUR * KNOWN_HOURS) / (10 + KNOWN_HOURS))


def test_who_goes_when_its_owners_hours_are_over_was_not_taken_away() -> None:
    profile = Profile("a")
    for night in range(10):
        at_s = 86_400.0 * night
        profile.joined(Joined(at_s=at_s, peer="a", until_s=at_s + 3600.0))
        assert profile.remaining_s(at_s + 600) == 3000
        profile.left(at_s + 3600.0 + (-BRIEF_S, 0.0, 5000.0)[night % 3])
    assert profile.stops_per_hour(1e6) < STOPS_PER_HOUR
    profile.joined(Joined(at_s=1e6, peer="a", until_s=1e6 + 3600.0))
    before = profile.stops_per_hour(1e6 + 1800)
    profile.left(1e6 + 1800)
    assert profile.stops_per_hour(1e6 + 1800) > before, "in the middle of them it was"


def test_a_line_that_broke_is_no_stop() -> None:
    profile = Profile("a")
    profile.joined(Joined(at_s=0, peer="a"))
    profile.left(100)
    profile.joined(Joined(at_s=100 + BRIEF_S / 2, peer="a"))
    assert profile.stops_per_hour(200) < STOPS_PER_HOUR


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.integers(0, 16), st.integers(0, 16)), max_size=80),
    st.floats(0, 1e9),
)
def test_rates_are_never_negative_and_lie_in_their_intervals(
    deliveries: list[tuple[float, float, int, int]], claim: float
) -> None:
    at_s, events = 200.0, []
    for later_s, took_s, admitted, refused in deliveries:
        at_s += later_s
        events.append(delivered(at_s, took_s, admitted=admitted, refused=refused))
    profile = profile_of(events, claim)
    for estimate in (profile.rate(), profile.shown_rate, profile.generation_s, profile.batch_rollouts):
        if estimate is not None:
            assert 0 <= estimate.low <= estimate.value <= estimate.high
            assert math.isfinite(estimate.value)


@given(st.floats(1, 100), st.floats(1, 1000), st.integers(1, 8), st.integers(3, 20))
def test_a_rate_does_not_depend_on_the_pauses(took_s: float, pause_s: float, leases: int, count: int) -> None:
    rate = rate_of(batches("a", count, took_s=took_s, every_s=took_s + pause_s, leases=leases))
    assert rate == pytest.approx(8 * leases / took_s)
