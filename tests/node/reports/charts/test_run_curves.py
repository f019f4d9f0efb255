"""Curves of a run: a peer that is there at the end is drawn so."""

from __future__ import annotations

import pytest

from node.reports.charts.run_curves import SEEN_S, _present


@pytest.mark.parametrize(
    ("last_seen_s", "number"), [(170.0, 1.0), (170.0 - SEEN_S / 2, 1.0), (170.0 - 2 * SEEN_S, 0.0)]
)
def test_a_peer_seen_shortly_before_the_end_stays_present(last_seen_s: float, number: float) -> None:
    points = _present([(0.0, last_seen_s)], 170.0)
    assert points[-1][1] == number
