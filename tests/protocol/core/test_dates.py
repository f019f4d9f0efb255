"""Format points in time for people, for any value that a peer signed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.dates import DAY_MS, HOUR_MS, ago, moment


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (0, "1970-01-01 00:00:00 UTC"),
        (1_700_000_000_999, "2023-11-14 22:13:20 UTC"),
        (253_402_300_799_000, "9999-12-31 23:59:59 UTC"),
        (253_402_300_800_000, "253402300800000 ms UTC"),
    ],
)
def test_a_moment(at_ms: int, text: str) -> None:
    assert moment(at_ms) == text


@given(st.integers(-(2**64), 2**64))
def test_no_number_is_too_large(at_ms: int) -> None:
    assert moment(at_ms).endswith(" UTC")


def test_a_length_of_time() -> None:
    assert [ago(HOUR_MS), ago(35 * HOUR_MS), ago(2 * DAY_MS)] == ["1.0 hours", "35.0 hours", "2.0 days"]
