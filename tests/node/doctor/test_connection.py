"""Draw conclusions about a machine's connection, and say what is not known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.doctor.connection import Filtering, Mapping, SecondRouter, judge_connection
from node.doctor.findings import (
    Contact,
    Findings,
    Listening,
    LocalNetwork,
    MappedPort,
    NotKnown,
    PortMapping,
    Where,
)
from tests.support.doctor_findings import FOUND, SEEN, evidence, findings, sight, tried, without_invite

OTHER = "/ip4/45.0.0.1/tcp/61234"


def test_a_usual_home() -> None:
    found = judge_connection(findings())
    assert (found.mapping, found.mapping_why) == (Mapping.SAME_PORT, "2 observers see the same port")
    assert (found.filtering, found.filtering_why) == (Filtering.LETS_NOBODY_IN, f"1 peer could not connect to {SEEN}")
    assert found.second_router is SecondRouter.NO
    assert found.seen_at == (SEEN,)
    assert not found.reached


def test_a_router_that_shows_each_observer_another_port() -> None:
    found = judge_connection(findings(evidence=evidence(sight(), sight(OTHER, "45.0.2.2"))))
    assert (found.mapping, found.mapping_why) == (Mapping.ANOTHER_PORT, "2 observers see 2 different ports")
    assert not found.kept_port


@pytest.mark.parametrize(("address", "kept"), [(SEEN, True), (OTHER, False)])
def test_one_observer_is_not_enough(address: str, kept: bool) -> None:
    two_of_one = evidence(sight(address), sight(address))
    found = judge_connection(findings(evidence=two_of_one))
    assert (found.mapping, found.mapping_why) == (Mapping.NOT_KNOWN, "only one observer, and 2 are needed")
    assert found.kept_port is kept


def test_a_connection_that_left_from_elsewhere_says_nothing_of_where_to_knock() -> None:
    found = judge_connection(findings(evidence=evidence(sight(), sight(OTHER, "45.0.2.2", from_listening=False))))
    assert found.mapping is Mapping.NOT_KNOWN


def test_an_address_of_ones_own() -> None:
    own = evidence(sight("/ip4/45.0.0.1/tcp/4001", local="/ip4/45.0.0.1/tcp/4001"))
    found = judge_connection(findings(evidence=own, network=LocalNetwork(ip4=("45.0.0.1",))))
    assert found.mapping is Mapping.NONE
    assert (found.second_router, found.second_router_why) == (SecondRouter.NO, "no router translates addresses here")


def test_a_dial_back_that_came_through_a_port_that_was_opened_says_nothing_of_the_router_unasked() -> None:
    mapped = tried(SEEN, "observed", "mapped", is_reached=True)
    found = judge_connection(findings(evidence=evidence(sight(), addresses=(mapped,))))
    why = "the router had opened the port before it was tried"
    assert (found.filtering, found.filtering_why) == (Filtering.NOT_KNOWN, why)
    open_one = tried(SEEN, "observed", is_reached=True)
    assert judge_connection(findings(evidence=evidence(addresses=(open_one,)))).filtering is Filtering.LETS_IN


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"evidence": evidence(num_helpers=0)}, "no connected peer dials back"),
        ({"evidence": evidence()}, "there was no address to dial"),
        ({"evidence": evidence(addresses=(tried(),))}, "no peer dialled back in time"),
        ({"evidence": NotKnown(why="not found out within 24 s")}, "not found out within 24 s"),
        (
            {"contact": Contact(found=FOUND, where=Where.THIS_MACHINE), "evidence": evidence()},
            "the learner is on this machine, so no peer looked from outside",
        ),
        ({"contact": NotKnown(why=""), "evidence": evidence()}, "the learner was not reached"),
    ],
)
def test_what_nobody_tried_is_not_known(changes: dict[str, object], why: str) -> None:
    found = judge_connection(findings(**changes))
    assert (found.filtering, found.filtering_why) == (Filtering.NOT_KNOWN, why)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"listening": Listening()}, "the node does not listen"),
        ({"network": LocalNetwork(ip6=("2600::1",))}, "this machine has no IPv4 address"),
        ({}, "no peer has reported at which IPv4 address it sees this machine"),
    ],
)
def test_why_nobody_sees_it(changes: dict[str, object], why: str) -> None:
    found = judge_connection(findings(evidence=evidence(), **changes))
    assert (found.mapping, found.mapping_why) == (Mapping.NOT_KNOWN, why)


def port(address: str, *, is_behind_another_nat: bool) -> PortMapping:
    one = MappedPort(
        address=address, protocol="PCP", gateway="192.168.1.1", is_behind_another_nat=is_behind_another_nat
    )
    return PortMapping(mapped=(one,))


@pytest.mark.parametrize(
    ("changes", "second", "why"),
    [
        (
            {"hops": ("192.168.1.1", "100.64.3.1")},
            SecondRouter.YES,
            "the router behind yours has 100.64.3.1, an address that providers share (CGNAT)",
        ),
        (
            {"hops": ("192.168.1.1", "10.0.0.1")},
            SecondRouter.PERHAPS,
            "behind your router is another one, with the private address 10.0.0.1",
        ),
        (
            {"hops": ("192.168.1.1",)},
            SecondRouter.NO,
            "no router with a private address was found behind yours",
        ),
        (
            {"mapping": port("/ip4/10.0.0.7/tcp/4001", is_behind_another_nat=True)},
            SecondRouter.YES,
            "the router at 192.168.1.1 has the address 10.0.0.7, which is not public",
        ),
        (
            {"mapping": port(SEEN, is_behind_another_nat=False), "hops": ("192.168.1.1", "10.0.0.1")},
            SecondRouter.NO,
            "the router at 192.168.1.1 has the public address 45.0.0.1",
        ),
        (
            {"network": LocalNetwork(ip4=("100.64.0.9",))},
            SecondRouter.YES,
            "this machine has 100.64.0.9, an address that providers share (CGNAT)",
        ),
        ({"hops": NotKnown(why="nobody answered")}, SecondRouter.NOT_KNOWN, "nobody answered"),
    ],
)
def test_a_second_router(changes: dict[str, object], second: SecondRouter, why: str) -> None:
    found = judge_connection(findings(**changes))
    assert (found.second_router, found.second_router_why) == (second, why)


def test_without_an_invite_nothing_is_known() -> None:
    found = judge_connection(without_invite())
    assert (found.mapping, found.filtering, found.second_router) == (
        Mapping.NOT_KNOWN,
        Filtering.NOT_KNOWN,
        SecondRouter.NOT_KNOWN,
    )


SIGHTS = st.lists(
    st.builds(sight, st.sampled_from([SEEN, OTHER]), st.sampled_from(["45.0.1.1", "45.0.2.2", "45.0.3.3"])), max_size=6
)


@given(SIGHTS)
def test_mapping_is_known_only_if_observers_that_sit_apart_looked(sights: list[object]) -> None:
    found = judge_connection(_of(sights))
    origins = {one.origin for one in sights}  # type: ignore[attr-defined]
    assert (found.mapping is Mapping.NOT_KNOWN) == (len(origins) < 2)


def _of(sights: list[object]) -> Findings:
    return findings(evidence=evidence(*sights))  # type: ignore[arg-type]
