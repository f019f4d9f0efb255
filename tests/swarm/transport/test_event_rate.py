"""Rates: a burst, a long run, and what is remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.transport.event_rate import Bucket, Buckets, Rate

RATE = Rate(per_s=10.0, burst=5.0)


def test_a_burst_passes_and_what_follows_waits_its_turn() -> None:
    bucket = Bucket(rate=RATE)
    assert [bucket.charge(1, 0.0) for _ in range(7)] == pytest.approx([0, 0, 0, 0, 0, 0.1, 0.2])
    assert bucket.charge(1, 0.2) == pytest.approx(0.1)


def test_what_is_refused_costs_nothing() -> None:
    bucket = Bucket(rate=RATE)
    assert [bucket.admit(0.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert bucket.admit(0.1)
    assert not bucket.admit(0.1)
    assert not bucket.is_full(0.5)
    assert bucket.is_full(0.7)


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 4)), max_size=60))
def test_whoever_waits_as_told_keeps_to_the_rate(steps: list[tuple[float, float]]) -> None:
    """Units that passed without a wait, over any time since the start: a burst and the rate, plus the last charge."""
    bucket, now, passed = Bucket(rate=RATE), 0.0, 0.0
    for pause, cost in steps:
        now += pause
        passed += cost
        now += bucket.charge(cost, now)
        assert passed <= RATE.burst + RATE.per_s * now + 1e-6


def test_only_so_many_are_remembered_the_last_used_first() -> None:
    buckets = Buckets[str](rate=RATE, most=2)
    for key in ("a", "b", "a", "c"):
        buckets.of(key).charge(5, 0.0)
    assert len(buckets) == 2
    assert not buckets.of("a").admit(0.0)
    assert buckets.of("b").admit(0.0)
