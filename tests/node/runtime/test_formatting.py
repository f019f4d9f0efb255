"""Write figures for people."""

from __future__ import annotations

import pytest

from node.runtime.formatting import decimal_size


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (415_000, "415 kB"),
        (8_040_000, "8.04 MB"),
        (64.36e9, "64.4 GB"),
        (5e13, "50,000 GB"),
    ],
)
def test_decimal_sizes_have_three_digits_and_the_unit_that_fits(num_bytes: float, shown: str) -> None:
    assert decimal_size(num_bytes) == shown
