"""Measure how far a clock is from another one, within half of a round trip."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.doctor.clock import Reading, offset_of

MS = st.floats(0, 5000)


@given(st.lists(st.tuples(MS, MS), min_size=1, max_size=5), st.floats(-1e9, 1e9))
def test_the_true_offset_is_within_the_error(ways: list[tuple[float, float]], ahead_ms: float) -> None:
    """It holds for any time that either way takes: `ways` are the times there and back."""
    readings = [
        Reading(asked_ms=1e6, came_ms=1e6 + there + back, theirs_ms=1e6 + there - ahead_ms) for there, back in ways
    ]
    found = offset_of(readings)
    assert abs(1000 * found.ahead_s - ahead_ms) <= 1000 * found.error_s + 1e-3
    assert found.round_trip_s == min(one.came_ms - one.asked_ms for one in readings) / 1000
