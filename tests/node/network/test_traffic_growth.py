"""When a node's traffic is told again."""

from __future__ import annotations

import pytest

from node.network.traffic_growth import has_grown
from swarm.transport.interface import Traffic


@pytest.mark.parametrize(
    ("told", "moved", "again"),
    [
        (Traffic(), Traffic(), False),
        (Traffic(), Traffic(sent=1), True),
        (Traffic(sent=600, received=400), Traffic(sent=600, received=450), False),
        (Traffic(sent=600, received=400), Traffic(sent=651, received=400), True),
    ],
)
def test_traffic_is_told_again_when_it_has_grown_by_a_twentieth(told: Traffic, moved: Traffic, again: bool) -> None:
    assert has_grown(told, moved) == again
