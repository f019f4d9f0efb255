"""Test our host with every other implementation of libp2p: relays, circuits, vouchers and identify, both ways.

The others are go-libp2p (its daemon p2pd), js-libp2p and stock py-libp2p 0.8.1. Tests of a single implementation are in
`test_reach_interop_go.py` and so on.
"""

from __future__ import annotations

from itertools import permutations

import pytest
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb

from swarm.libp2p.host import Host
from swarm.libp2p.identify import PING_BYTES
from swarm.libp2p.reachability.circuits import NoCircuit
from swarm.libp2p.reachability.multiaddrs import from_bytes
from swarm.libp2p.security import NOISE, TLS
from tests.support.partners.circuits import (
    check_voucher,
    circuit_from,
    connection_to,
    introduction,
    local_address,
    ours,
    ping,
    places,
    reservation,
    through,
    until_reached,
    until_reserved,
)
from tests.support.partners.implementations import ALL, Implementation, name_of

THEIRS, OTHERS = 7, 8

each_security = pytest.mark.parametrize("security", [TLS, NOISE])
each = pytest.mark.parametrize("it", [pytest.param(one, marks=one.marks, id=one.title) for one in ALL])
each_pair = pytest.mark.parametrize(
    ("source", "target"),
    [pytest.param(*pair, marks=[*pair[0].marks, *pair[1].marks], id=f"{pair[0].title}-{pair[1].title}")
     for pair in permutations(ALL, 2)],
)  # fmt: skip


async def reserve(host: Host, relay: Host) -> None:
    """Make `host` a member of a relay's swarm that is reached through the relay."""
    relay.trust(host.peer_id)
    await host.dial(relay.addresses())
    await host.reaching.circuits.reserve(relay.peer_id)


# They relay.


@each
@each_security
async def test_a_relay_of_theirs_joins_two_of_ours(it: Implementation, security: str) -> None:
    async with it.open(THEIRS, security=security) as relay, ours(1) as source, ours(2, security=[security]) as target:
        for one in (source, target):
            await one.dial(relay.addresses)
        assert await target.reaching.circuits.reserve(relay.peer) > 1000
        circuit = await source.reaching.circuits.connect(relay.peer, target.peer_id)
        assert circuit.route.is_limited
        await ping(source, circuit)
        told = await introduction(source, circuit)
        assert (told.agent_version, told.observed_addr) == ("volery", b"")
        back = await circuit_from(target, source.peer_id)
        assert back.route.relay == relay.peer
        await ping(target, back)


@each
async def test_a_relay_of_theirs_vouches_for_its_reservation(it: Implementation) -> None:
    async with it.open(THEIRS) as relay, ours(1) as host:
        await host.dial(relay.addresses)
        answer = await reservation(host, relay.peer)
        granted = answer.reservation
        assert (answer.type, answer.status) == (pb.HopMessage.STATUS, pb.OK)
        check_voucher(granted.voucher, relay.peer, host.peer_id, granted.expire)
        assert answer.limit.duration > 0


@each
async def test_a_peer_that_reserved_nothing_is_not_reached_through_them(it: Implementation) -> None:
    async with it.open(THEIRS) as relay, ours(1) as source, ours(2) as target:
        await source.dial(relay.addresses)  # the other implementation would ask for a reservation by itself
        with pytest.raises(NoCircuit, match="NO_RESERVATION"):
            await source.reaching.circuits.connect(relay.peer, target.peer_id)


@each
async def test_through_a_relay_of_theirs_they_reach_us_and_we_them(it: Implementation) -> None:
    async with (
        it.open(THEIRS) as relay,
        ours(1) as host,
        it.open(OTHERS, relay=relay.addresses[0]) as other,
    ):
        await host.dial(relay.addresses)
        await host.reaching.circuits.reserve(relay.peer)
        await other.reach(host.peer_id, through(relay.addresses[0], host.peer_id))
        back = await circuit_from(host, other.peer)
        assert back.route.relay == relay.peer
        await other.ping(host.peer_id)
        await ping(host, back)
        await ping(host, await until_reached(host, relay.peer, other.peer))


# We relay.


@each
@each_security
async def test_they_reach_us_through_our_relay(it: Implementation, security: str) -> None:
    async with ours(1, members=[name_of(THEIRS)]) as relay, ours(2) as host:
        await reserve(host, relay)
        async with it.open(THEIRS, relay=relay.addresses()[0], security=security) as peer:
            await until_reserved(relay, peer.peer)
            await peer.reach(host.peer_id, through(relay, host.peer_id))
            back = await circuit_from(host, peer.peer)
            assert (back.route.relay, back.dialled, back.route.is_limited) == (relay.peer_id, False, True)
            await peer.ping(host.peer_id)
            await ping(host, back)


@each
@each_security
async def test_we_reach_them_through_our_relay(it: Implementation, security: str) -> None:
    async with ours(1, members=[name_of(THEIRS)]) as relay, ours(2) as host:
        await reserve(host, relay)
        async with it.open(THEIRS, relay=relay.addresses()[0], security=security) as peer:
            await until_reserved(relay, peer.peer)
            circuit = await host.reaching.circuits.connect(relay.peer_id, peer.peer)
            await ping(host, circuit)
            told = await introduction(host, circuit)
            assert told.agent_version.startswith(it.agent)
            assert from_bytes([told.observed_addr], 1) == [], "the relay's address must not be reported as ours"


@each
async def test_our_relay_joins_two_of_theirs(it: Implementation) -> None:
    async with (
        ours(1, members=[name_of(THEIRS), name_of(OTHERS)]) as relay,
        it.open(THEIRS, relay=relay.addresses()[0]) as target,
        it.open(OTHERS) as source,
    ):
        await until_reserved(relay, target.peer)
        await source.reach(target.peer, through(relay, target.peer))
        await source.ping(target.peer)
        assert relay.reaching.relay.relayed_bytes > 2 * PING_BYTES


@each_pair
async def test_our_relay_joins_peers_of_different_implementations(
    source: Implementation, target: Implementation
) -> None:
    """They share with us nothing but the specification."""
    async with (
        ours(1, members=[name_of(THEIRS), name_of(OTHERS)]) as relay,
        target.open(THEIRS, relay=relay.addresses()[0]) as reached,
        source.open(OTHERS) as reaching,
    ):
        await until_reserved(relay, reached.peer)
        await reaching.reach(reached.peer, through(relay, reached.peer))
        await reaching.ping(reached.peer)


@each
async def test_they_are_told_that_our_relay_does_not_take_strangers(it: Implementation) -> None:
    async with ours(1) as relay, ours(2) as host, it.open(THEIRS) as peer:
        await reserve(host, relay)
        with pytest.raises(it.error, match=it.told("PERMISSION_DENIED")):
            await peer.reach(host.peer_id, through(relay, host.peer_id))


@each
async def test_they_are_told_that_a_peer_reserved_nothing(it: Implementation) -> None:
    async with ours(1, members=[name_of(THEIRS)]) as relay, ours(2) as host, it.open(THEIRS) as peer:
        await host.dial(relay.addresses())
        with pytest.raises(it.error, match=it.told("NO_RESERVATION")):
            await peer.reach(host.peer_id, through(relay, host.peer_id))


# Without a relay between.


@each
@each_security
async def test_identify_outside_of_circuits(it: Implementation, security: str) -> None:
    async with it.open(THEIRS, security=security) as peer, ours(1) as host:
        connection = await connection_to(host, peer.addresses[0])
        told = await introduction(host, connection)
        assert told.agent_version.startswith(it.agent)
        assert places([told.observed_addr]) == [local_address(connection)]
        assert it.speaks <= set(told.protocols)
        await peer.ping(host.peer_id)
