"""Reputation: shares of what was seen, fair to newcomers and to the slow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.reputation import Observations, reputation_of

NOTHING = Observations(
    present_s=0.0, known_s=0.0, leases_in_time=0, leases_failed=0, records_honest=0, records_blamed=0
)
COUNTS = st.integers(0, 10**6)
SEEN = st.builds(
    Observations,
    present_s=st.floats(0, 1e9),
    known_s=st.floats(0, 1e9),
    leases_in_time=COUNTS,
    leases_failed=COUNTS,
    records_honest=COUNTS,
    records_blamed=COUNTS,
)


def test_of_whom_nothing_is_known_nothing_bad_is_known() -> None:
    assert reputation_of(NOTHING).score == 1.0


def test_one_bad_observation_halves_a_newcomer_and_hardly_moves_a_veteran() -> None:
    newcomer, veteran = replace(NOTHING, records_blamed=1), replace(NOTHING, records_honest=999, records_blamed=1)
    assert reputation_of(newcomer).honesty == 0.5
    assert reputation_of(veteran).honesty == pytest.approx(1000 / 1001)


def test_availability_is_the_share_of_the_time_known() -> None:
    seen = replace(NOTHING, present_s=30.0, known_s=120.0)
    assert reputation_of(seen).availability == 0.25
    assert reputation_of(seen).score == 0.25


@given(SEEN)
def test_shares_are_shares_and_the_score_is_their_product(seen: Observations) -> None:
    found = reputation_of(seen)
    shares = [found.availability, found.timeliness, found.honesty]
    assert all(0.0 <= share <= 1.0 for share in shares)
    assert found.score == pytest.approx(shares[0] * shares[1] * shares[2])


@given(SEEN)
def test_good_observations_never_lower_and_bad_ones_always_do(seen: Observations) -> None:
    before = reputation_of(seen)
    assert reputation_of(replace(seen, leases_in_time=seen.leases_in_time + 1)).timeliness >= before.timeliness
    assert reputation_of(replace(seen, records_honest=seen.records_honest + 1)).honesty >= before.honesty
    assert reputation_of(replace(seen, leases_failed=seen.leases_failed + 1)).timeliness < before.timeliness
    assert reputation_of(replace(seen, records_blamed=seen.records_blamed + 1)).honesty < before.honesty
