"""A node makes itself reachable without help, here on loopback, which leads to no other machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
import trio
import trio.testing

from protocol.core.ids import PeerId
from protocol.reach import Meeting, ReachKind, Way
from swarm.libp2p import open_libp2p
from swarm.libp2p.host import Host
from swarm.libp2p.reachability.relaying.relay_budget import RelayBudget, RelayLimits, Status
from swarm.libp2p.sockets.addresses import circuit_address, parse_address
from swarm.transport.interface import DialFailed
from swarm.transport.reach_evidence import ReachEvidence
from tests.support.learner_fixture import until

LOOPBACK = "/ip4/127.0.0.1/tcp/0"


@asynccontextmanager
async def host(seed: int, listen: str = LOOPBACK) -> AsyncIterator[Host]:
    async with open_libp2p(bytes([seed]) * 32, [listen] if listen else []) as transport:
        yield cast(Host, transport)


async def test_whoever_is_taken_for_a_member_is_reached_through_whom_it_dialled() -> None:
    async with host(1) as learner, host(2) as node:
        await node.dial(learner.addresses())
        assert not node.reached().relays
        learner.trust(node.peer_id)
        await until(lambda: list(node.reached().relays) == [learner.peer_id])
        await node.disconnect(learner.peer_id)
        assert not node.reached().relays


async def test_a_connection_leaves_from_where_the_node_listens() -> None:
    async with host(1) as learner, host(2) as node, host(3, listen="") as dials_out:
        await node.dial(learner.addresses())
        await dials_out.dial(learner.addresses())
        await until(lambda: len(learner.connections()) == 2)
        ports = {one.peer: parse_address(one.route.address).port for one in learner.connections()}
        assert ports[node.peer_id] == parse_address(node.addresses()[0]).port
        assert not any(one.route.from_listening for one in dials_out.connections())


async def test_it_says_where_it_is_seen_from_and_what_it_is_made_of() -> None:
    async with host(1) as learner, host(2) as node, host(3, listen="") as dials_out:
        for one in (node, dials_out):
            await one.dial(learner.addresses())
            await until(lambda one=one: bool(one.reach_evidence().sights))  # type: ignore[misc]
        [sight] = node.reach_evidence().sights
        assert (sight.peer, sight.origin, sight.from_listening) == (learner.peer_id, "127.0.0.1", True)
        assert f"{sight.address}/p2p/{node.peer_id}" == f"{sight.local}/p2p/{node.peer_id}" == node.addresses()[0]
        assert not dials_out.reach_evidence().sights[0].from_listening
        assert node.reach_evidence().addresses == (), "loopback leads nobody here"
        await until(lambda: node.reach_evidence().num_helpers == 1)
        await node.disconnect(learner.peer_id)
        assert node.reach_evidence() == ReachEvidence()


async def test_it_says_whom_it_met_and_how() -> None:
    async with host(1) as learner, host(2) as node:
        await node.dial(learner.addresses())
        await until(lambda: bool(learner.reached().met))
        assert list(node.reached().met) == [Meeting(learner.peer_id, Way.DIALLED)]
        assert list(learner.reached().met) == [Meeting(node.peer_id, Way.WAS_DIALLED)]


@pytest.mark.parametrize(("listen", "kind"), [(LOOPBACK, ReachKind.UNKNOWN), ("", ReachKind.NOT)])
async def test_what_it_says_before_anybody_tried(listen: str, kind: ReachKind) -> None:
    async with host(1, listen) as node:
        assert node.reached().kind is kind


async def test_addresses_of_this_machine_are_dialled_where_the_learner_is_on_it() -> None:
    async with host(1) as learner, host(2) as node:
        address = learner.addresses()[0]
        by_relay = circuit_address(address, node.peer_id)
        assert not node.may_dial(address)
        assert not node.may_dial(by_relay)
        await node.dial([address])
        assert node.may_dial(address)
        assert node.may_dial(by_relay)


@pytest.mark.parametrize(
    ("address", "may"),
    [
        ("/ip4/45.1.2.3/tcp/4001", True),
        ("/dns/learner.example/tcp/4001", True),
        ("/ip4/10.255.255.1/tcp/4001", False),
        ("/ip4/169.254.169.254/tcp/80", False),
        ("/ip6/fe80::1/tcp/4001", False),
        ("/ip4/45.1.2.3/udp/4001", False),
        ("nonsense", False),
    ],
)
async def test_addresses_that_a_stranger_named(address: str, may: bool) -> None:
    async with host(1) as node:
        assert node.may_dial(address) is may


async def test_where_no_hole_can_be_punched_dialling_says_so() -> None:
    async with host(1) as learner, host(2) as one, host(3) as other:
        for node in (one, other):
            learner.trust(node.peer_id)
            await node.dial(learner.addresses())
        await until(lambda: bool(other.reached().relays))
        with pytest.raises(DialFailed, match="no direct connection through the routers"):
            await one.dial([circuit_address(learner.addresses()[0], other.peer_id)])
        assert one.connected_peers() == {learner.peer_id}


class NotedBudget(RelayBudget):
    """A budget that remembers what it said."""

    def open_circuit(self, source: PeerId, target: PeerId, now: float) -> Status:
        status = super().open_circuit(source, target, now)
        said.append(status)
        return status


said: list[Status] = []


async def test_a_relay_that_is_busy_is_asked_again() -> None:
    """Or a pair would be left alone because all were introduced at once."""
    async with host(1) as learner, host(2) as one, host(3) as other:
        said.clear()
        learner.reaching.relay.budget = NotedBudget(limits=RelayLimits(circuits=1))
        for node in (one, other):
            learner.trust(node.peer_id)
            await node.dial(learner.addresses())
        await until(lambda: bool(one.reached().relays and other.reached().relays))
        one.reaching.circuits.on_inbound = lambda circuit: None  # it goes on, and takes the only place
        taken = await other.reaching.circuits.connect(learner.peer_id, one.peer_id)

        async def meet() -> None:
            with pytest.raises(DialFailed, match="no direct connection through the routers"):
                await one.dial([circuit_address(learner.addresses()[0], other.peer_id)])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(meet)
            await until(lambda: Status.RESOURCE_LIMIT_EXCEEDED in said)
            await taken.aclose()
        assert said[-1] is Status.OK


async def test_whoever_waits_to_meet_somebody_is_told_and_leaves_nothing_behind() -> None:
    """Strangers could name peers without end."""
    async with host(1) as one, host(2) as other, trio.open_nursery() as nursery:
        nursery.start_soon(one.unless_met, other.peer_id, trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        await one.dial(other.addresses())
        await until(lambda: not one._unless_met)


@pytest.mark.parametrize("kind", ["dns", "dns4"])
async def test_a_name_that_leads_home_is_dialled_for_our_owner_and_for_nobody_else(kind: str) -> None:
    """The owner of a name can have it lead anywhere, also into our network, and somewhere else tomorrow."""
    async with host(1) as learner, host(2) as node:
        address = parse_address(learner.addresses()[0])
        named = f"/{kind}/localhost/tcp/{address.port}/p2p/{learner.peer_id}"
        assert node.may_dial(named), "where it leads shows when it is dialled"
        with pytest.raises(DialFailed, match="leads into a private network"):
            await node.dial([named], named_by_others=True)
        assert not learner.connections()
        assert await node.dial([named]) == learner.peer_id


async def test_what_others_name_is_not_dialled_inside() -> None:
    async with host(1) as learner, host(2) as node:
        with pytest.raises(DialFailed, match="leads into a private network"):
            await node.dial(learner.addresses(), named_by_others=True)
