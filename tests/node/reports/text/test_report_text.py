"""Words and figures of the report in a terminal."""

from __future__ import annotations

import pytest

from node.reports.text.report_text import _nats


@pytest.mark.parametrize(
    ("kl", "told"), [(None, "-"), (2.5e-13, "0"), (-1e-9, "0"), (4e-6, "4e-06"), (0.0312, "0.0312")]
)
def test_a_kl_that_is_rounding_is_told_as_nothing(kl: float | None, told: str) -> None:
    assert _nats(kl) == told
