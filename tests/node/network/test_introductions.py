"""Peers that the learner introduces: which end dials, how often, and which pairs stay apart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from node.network.dial_plan import LOST_S, SPREAD_S
from node.network.introductions import Neighbours
from node.runtime.events import EventLog
from protocol.core.ids import PeerId
from protocol.reach import ReachKind
from protocol.versions.exchange import PeerAddresses
from protocol.work import Introduction
from swarm.libp2p import circuit_address
from swarm.testing.memory_transport import MemoryNetwork, MemoryTransport
from swarm.transport.interface import DIAL_TIMEOUT_S

A, B, C = PeerId("12D3KooW" + "a" * 44), PeerId("12D3KooW" + "b" * 44), PeerId("12D3KooW" + "c" * 44)


@dataclass(kw_only=True)
class Member:
    """One node, and what its neighbours' loop said."""

    transport: MemoryTransport
    neighbours: Neighbours
    said: list[str] = field(default_factory=list)

    def hear(self, *told: PeerAddresses) -> None:
        self.neighbours.hear(Introduction(peers=list(told)))


@asynccontextmanager
async def member(network: MemoryNetwork, peer: PeerId, *, listens: bool = True) -> AsyncIterator[Member]:
    events = EventLog()
    async with network.node(peer[-1], listens=listens, peer_id=peer) as transport, trio.open_nursery() as nursery:
        one = Member(transport=transport, neighbours=Neighbours(transport=transport, events=events, rng=Random(1)))
        events.listen(lambda name, fields: one.said.append(name))
        nursery.start_soon(one.neighbours.run)
        yield one
        nursery.cancel_scope.cancel()


def at(other: Member) -> PeerAddresses:
    return PeerAddresses(peer=other.transport.peer_id, addresses=other.transport.addresses())


def by_relay(peer: PeerId) -> PeerAddresses:
    return PeerAddresses(peer=peer, addresses=[circuit_address(f"/memory/relay/p2p/{C}", peer)])


async def pass_time(clock: MockClock, seconds: float) -> None:
    await wait_all_tasks_blocked()
    clock.jump(seconds)
    await wait_all_tasks_blocked()


async def test_of_two_that_can_be_dialled_the_smaller_id_dials(mock_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with member(network, A) as a, member(network, B) as b:
        a.hear(at(b))
        b.hear(at(a))
        await wait_all_tasks_blocked()
        assert (a.transport.dialled, b.transport.dialled) == ({B}, set())


async def test_who_cannot_be_dialled_dials(mock_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with member(network, A) as a, member(network, B, listens=False) as b:
        a.hear(by_relay(B))
        b.hear(at(a))
        await wait_all_tasks_blocked()
        assert (a.transport.dialled, b.transport.dialled) == (set(), {A})


async def test_of_two_that_cannot_be_dialled_one_knocks_and_once_in_vain(mock_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with member(network, A, listens=False) as a, member(network, B, listens=False) as b:
        a.hear(by_relay(B))
        b.hear(by_relay(A))
        await pass_time(mock_clock, SPREAD_S)
        assert (a.said, b.said) == (["neighbour_not_met"], [])
        a.hear(by_relay(B))
        await pass_time(mock_clock, SPREAD_S)
        assert a.said == ["neighbour_not_met"], "nothing has changed, so nothing else would come of it"


async def test_who_was_not_met_is_tried_again_when_it_is_elsewhere(mock_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with member(network, A) as a:
        a.hear(PeerAddresses(peer=B, addresses=[f"/memory/nowhere/p2p/{B}"]))
        await wait_all_tasks_blocked()
        assert a.said == ["neighbour_not_met"]
        async with member(network, B) as b:
            a.hear(at(b))
            await wait_all_tasks_blocked()
            assert a.transport.connected_peers() == {B}


async def test_another_way_is_tried_at_once_where_the_first_one_has_no_answer(mock_clock: MockClock) -> None:
    network = MemoryNetwork()
    nowhere = f"/memory/nowhere/p2p/{B}"
    network.swallow(nowhere)
    async with member(network, A) as a, member(network, B) as b:
        a.hear(PeerAddresses(peer=B, addresses=[nowhere]))
        await pass_time(mock_clock, 1.0)
        a.hear(PeerAddresses(peer=B, addresses=[nowhere]))  # nothing new
        await wait_all_tasks_blocked()
        assert not a.transport.connected_peers()
        a.hear(PeerAddresses(peer=B, addresses=[nowhere, *b.transport.addresses()]))
        await wait_all_tasks_blocked()
        assert a.transport.connected_peers() == {B}
        await pass_time(mock_clock, DIAL_TIMEOUT_S)
        assert a.said == [], "nothing has failed"


async def test_a_neighbour_that_was_lost_is_dialled_again(mock_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with member(network, A) as a, member(network, B) as b:
        a.hear(at(b))
        await wait_all_tasks_blocked()
        await b.transport.disconnect(A)
        await wait_all_tasks_blocked()
        assert not a.transport.connected_peers()
        await pass_time(mock_clock, 2 * LOST_S)
        assert a.transport.connected_peers() == {B}


async def test_whoever_is_introduced_is_trusted_and_no_longer_when_it_is_not(mock_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with member(network, A, listens=False) as a:
        a.hear(by_relay(B), PeerAddresses(peer=C))
        assert a.transport.is_trusted(B)
        a.hear(PeerAddresses(peer=C))
        assert not a.transport.is_trusted(B)
        assert a.transport.is_trusted(C)
        assert a.transport.reached().kind is ReachKind.NOT


async def test_many_are_dialled_at_once_and_all_in_the_end(mock_clock: MockClock) -> None:
    network = MemoryNetwork()
    peers = [PeerId("12D3KooW" + "z" * 42 + f"{number:02}") for number in range(30)]
    async with member(network, A) as a, trio.open_nursery() as nursery:

        async def be(number: int, peer: PeerId) -> None:
            async with network.node(f"n{number}", peer_id=peer):
                await trio.sleep_forever()

        for number, peer in enumerate(peers):
            nursery.start_soon(be, number, peer)
        await wait_all_tasks_blocked()
        a.hear(*(PeerAddresses(peer=peer, addresses=[f"/memory/n{n}/p2p/{peer}"]) for n, peer in enumerate(peers)))
        await wait_all_tasks_blocked()
        assert a.transport.connected_peers() == set(peers)
        nursery.cancel_scope.cancel()


async def test_whoever_has_lost_the_other_dials_it_again(mock_clock: MockClock) -> None:
    """The other one may not know, where a machine slept or moved."""
    network = MemoryNetwork()
    async with member(network, A) as a, network.node("b", peer_id=B) as b:
        neighbours = Neighbours(transport=b, events=EventLog(), rng=Random(1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbours.run)
            neighbours.hear(Introduction(peers=[at(a)]))
            await a.transport.dial(b.addresses())
            await wait_all_tasks_blocked()
            await a.transport.disconnect(B)
            await pass_time(mock_clock, 2 * LOST_S)
            assert b.dialled == {A}, "though its id is the larger one"
            nursery.cancel_scope.cancel()


async def test_who_was_met_once_is_tried_until_it_is_back(mock_clock: MockClock) -> None:
    """Its machine sleeps, or its router starts anew: nothing that the learner tells has changed."""
    network = MemoryNetwork()
    async with member(network, A) as a:
        async with network.node("b", peer_id=B) as b:
            told = PeerAddresses(peer=B, addresses=b.addresses())
            a.hear(told)
            await wait_all_tasks_blocked()
            assert a.transport.connected_peers() == {B}
        await pass_time(mock_clock, 2 * LOST_S)
        assert a.said == ["neighbour_not_met"]
        a.hear(told)
        await pass_time(mock_clock, 1.0)
        assert a.said == ["neighbour_not_met"], "not at once again"
        async with network.node("b", peer_id=B):
            await pass_time(mock_clock, 2 * LOST_S)
            assert a.transport.connected_peers() == {B}
