"""Tell the owner what to do at the router, or that nothing would help."""

from __future__ import annotations

from typing import Any

import pytest

from node.doctor.connection import judge_connection
from node.doctor.findings import Contact, Listening, LocalNetwork, NotKnown, Where
from node.doctor.router_advice import advise
from tests.support.doctor_findings import FOUND, SEEN, evidence, findings, sight, tried


def advice(**changes: Any) -> list[str]:
    found = findings(**changes)
    return list(advise(found, judge_connection(found)))


SWITCH_ON = "Enable UPnP, NAT-PMP or PCP in the settings of your router: the node then opens its port itself."


def test_a_usual_home() -> None:
    assert advice() == [
        SWITCH_ON,
        "Or forward TCP port 4001 to 192.168.1.2, port 4001, in the settings of your router, usually at "
        "http://192.168.1.1.",
    ]


def test_a_port_is_to_be_chosen_before_it_can_be_forwarded() -> None:
    assert advice(listening=Listening(ports=(38531,))) == [
        SWITCH_ON,
        'Or by hand: give the node a fixed port in node.toml: [network] listen = ["/ip4/0.0.0.0/tcp/4001", '
        '"/ip6/::/tcp/4001"].',
        "Then forward TCP port 4001 to 192.168.1.2, port 4001, in the settings of your router, usually at "
        "http://192.168.1.1.",
    ]


def test_the_port_is_forwarded_to_the_address_in_the_routers_network() -> None:
    network = LocalNetwork(ip4=("10.8.0.3", "172.17.0.1", "192.168.1.77"), gateways=("fe80::1", "192.168.1.1"))
    assert "forward TCP port 4001 to 192.168.1.77, port 4001" in advice(network=network)[-1]


def test_a_router_that_must_not_be_asked() -> None:
    lines = advice(map_port=False, mapping=NotKnown(why="[network] map_port = false"))
    assert lines[0] == "Let the node ask your router to open a port: remove [network] map_port = false from node.toml."


def test_where_each_observer_sees_another_port_the_forwarded_one_is_to_be_told() -> None:
    lines = advice(evidence=evidence(sight(), sight("/ip4/45.0.0.1/tcp/61234", "45.0.2.2")))
    assert lines[-1] == 'Then announce that port in node.toml: [network] announce = ["/ip4/45.0.0.1/tcp/4001"].'


def test_behind_a_providers_router_no_port_helps() -> None:
    lines = advice(hops=("192.168.1.1", "100.64.3.1"))
    assert lines[-1] == "Ask your provider for an IPv4 address of your own, or for IPv6."
    assert not any("forward" in line.lower() for line in lines)


def test_another_router_at_home_needs_the_same() -> None:
    assert advice(hops=("192.168.1.1", "10.0.0.1"))[-1] == (
        "Behind your router is another one, with the private address 10.0.0.1. If that one is yours as well, forward "
        "the port there, too."
    )


def test_a_firewall_before_an_address_of_ones_own() -> None:
    own = evidence(sight(SEEN, local=SEEN), addresses=(tried(SEEN, "interface", failed_by=1),))
    assert advice(evidence=own, network=LocalNetwork(ip4=("45.0.0.1",), gateways=("45.0.0.254",))) == [
        "Allow incoming TCP connections to port 4001: a firewall on or before this machine blocks them."
    ]


def test_a_firewall_for_ipv6() -> None:
    closed = evidence(sight(), addresses=(tried("/ip6/2600::5/tcp/4001", "interface", failed_by=1),))
    assert "Allow incoming TCP connections to 2600::5, port 4001, in the router's firewall for IPv6." in advice(
        evidence=closed
    )


def test_a_node_that_listens_nowhere() -> None:
    assert advice(listening=Listening()) == [
        "Let the node listen: omit --no-listen, and remove [network] listen = [] from node.toml."
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"evidence": evidence(sight(), addresses=(tried(is_reached=True),))},
        {"contact": NotKnown(why="")},
        {"contact": Contact(found=FOUND, where=Where.THIS_MACHINE)},
    ],
)
def test_nothing_is_advised_where_nothing_is_to_be_done_or_nobody_looked(changes: dict[str, object]) -> None:
    assert advice(**changes) == []
