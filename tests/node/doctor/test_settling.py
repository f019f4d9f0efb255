"""Detect that there is nothing more to wait for."""

from __future__ import annotations

from typing import Any

import pytest

from node.doctor.findings import MappedPort, NotKnown, PortMapping
from node.doctor.settling import SIGHTS_S, has_answered, is_settled
from swarm.transport.reach_evidence import ReachEvidence
from tests.support.doctor_findings import evidence, sight, tried

ROUTERS = ("192.168.1.1", "fe80::1")
NO = PortMapping(refusals=(("192.168.1.1", "no"),))
PORT = PortMapping(
    mapped=(MappedPort(address="/ip4/45.0.0.1/tcp/1", protocol="PCP", gateway="x", is_behind_another_nat=False),)
)


def settled(found: ReachEvidence, mapping: PortMapping | None = None, **changes: Any) -> bool:
    usual: dict[str, Any] = {"routers": ROUTERS, "num_met": 1, "is_outside": True, "elapsed_s": 0.0}
    return is_settled(found, mapping, **{**usual, **changes})


def test_everybody_who_was_met_says_where_they_see_us() -> None:
    one = evidence(sight(), addresses=(tried(failed_by=1),))
    assert settled(one)
    assert not settled(one, num_met=2)
    assert settled(one, num_met=2, elapsed_s=SIGHTS_S)


def test_every_address_is_tried() -> None:
    assert not settled(evidence(sight(), addresses=(tried(is_reached=True), tried("/ip4/45.0.0.1/tcp/2"))))
    assert settled(evidence(sight(), addresses=(tried(is_reached=True), tried(failed_by=1))))


def test_the_router_answers() -> None:
    found = evidence(sight(), addresses=(tried(failed_by=1),))
    assert not settled(found, PortMapping())
    assert settled(found, NO)
    assert settled(found, PORT)


def test_where_nobody_dials_back_nobody_is_waited_for_long() -> None:
    for found in (evidence(sight(), num_helpers=0), evidence(sight())):
        assert not settled(found)
        assert settled(found, elapsed_s=SIGHTS_S)


def test_a_learner_in_ones_own_network_says_where_it_sees_us_and_no_more() -> None:
    assert settled(evidence(sight(), addresses=(tried(),)), PortMapping(), is_outside=False)


@pytest.mark.parametrize(
    ("mapping", "routers", "answered"),
    [
        (NotKnown(why=""), ROUTERS, False),
        (PortMapping(refusals=(("fe80::1", "no"),)), ROUTERS, False),
        (PortMapping(refusals=(("fe80::1", "no"),)), ("fe80::1",), True),
        (PortMapping(refusals=(("", "there is no router to ask"),)), ROUTERS, True),
    ],
)
def test_it_is_the_router_of_ipv4_that_counts(
    mapping: PortMapping | NotKnown, routers: tuple[str, ...], answered: bool
) -> None:
    assert has_answered(mapping, routers) is answered
