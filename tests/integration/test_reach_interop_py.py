"""Stock py-libp2p 0.8.1 and our host: relays, circuits, vouchers, identify and DCUtR, both directions."""

from __future__ import annotations

import pytest
import trio
from libp2p.peer.envelope import unmarshal_envelope
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb

from swarm.libp2p.host import Host
from swarm.libp2p.reachability.circuits import NoCircuit
from swarm.libp2p.reachability.hole_punch import Punched
from swarm.libp2p.reachability.multiaddrs import from_bytes
from swarm.libp2p.reachability.relay import sign_voucher
from swarm.libp2p.security import NOISE, TLS, Identity
from swarm.libp2p.sockets.addresses import Address, from_socket
from tests.support.partners.circuits import (
    UNTIL_S,
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
)
from tests.support.partners.stock_peer import stock_peer, stock_pings

STOCK, OTHER_STOCK = 7, 8
each_security = pytest.mark.parametrize("security", [TLS, NOISE])


async def reserve(host: Host, relay: Host) -> None:
    """Be a member of a relay's swarm, and reached through it."""
    relay.trust(host.peer_id)
    await host.dial(relay.addresses())
    await host.reaching.circuits.reserve(relay.peer_id)


@each_security
async def test_the_stock_relay_joins_two_of_ours(security: str) -> None:
    async with (
        stock_peer(STOCK, relays=True, security=security) as stock,
        ours(1) as source,
        ours(2, security=[security]) as target,
    ):
        for one in (source, target):
            await one.dial(stock.addresses)
        assert await target.reaching.circuits.reserve(stock.peer) > 1000
        circuit = await source.reaching.circuits.connect(stock.peer, target.peer_id)
        assert circuit.route.is_limited
        await ping(source, circuit)
        told = await introduction(source, circuit)
        assert (told.agent_version, told.observed_addr) == ("volery", b"")
        back = await circuit_from(target, source.peer_id)
        assert back.route.relay == stock.peer
        await ping(target, back)


async def test_the_stock_relay_vouches_for_its_reservation() -> None:
    async with stock_peer(STOCK, relays=True) as stock, ours(1) as host:
        await host.dial(stock.addresses)
        answer = await reservation(host, stock.peer)
        granted = answer.reservation
        assert (answer.type, answer.status) == (pb.HopMessage.STATUS, pb.OK)
        check_voucher(granted.voucher, stock.peer, host.peer_id, granted.expire)


async def test_the_library_reads_our_voucher() -> None:
    relay, peer = Identity.from_seed(bytes(32)), Identity.from_seed(bytes(range(32))).peer_id
    voucher = sign_voucher(relay, peer, 2_000_000_000)
    envelope = unmarshal_envelope(voucher)
    envelope.validate("libp2p-relay-rsvp")
    assert str(ID.from_pubkey(envelope.public_key)) == relay.peer_id
    with pytest.raises(ValueError, match="ignature"):
        unmarshal_envelope(voucher[:-1] + bytes([voucher[-1] ^ 1])).validate("libp2p-relay-rsvp")


async def test_a_stock_peer_that_reserves_before_each_circuit_is_joined() -> None:
    """As a client it does so, and shows what it was granted when it asks for the circuit."""
    async with ours(1) as relay, ours(2) as host, stock_peer(STOCK, is_client=True) as stock:
        relay.trust(stock.peer)
        await reserve(host, relay)
        await stock.circuit_to(through(relay, host.peer_id))
        await stock_pings(stock, host.peer_id)


async def test_a_peer_that_reserved_nothing_is_not_reached_through_the_stock_relay() -> None:
    async with stock_peer(STOCK, relays=True) as stock, ours(1) as source, ours(2) as target:
        for one in (source, target):
            await one.dial(stock.addresses)
        with pytest.raises(NoCircuit, match="NO_RESERVATION"):
            await source.reaching.circuits.connect(stock.peer, target.peer_id)


@each_security
async def test_identify_outside_of_circuits(security: str) -> None:
    async with stock_peer(STOCK, security=security) as stock, ours(1) as host:
        connection = await connection_to(host, stock.addresses[0])
        told = await introduction(host, connection)
        assert places([told.observed_addr]) == [local_address(connection)]
        await stock_pings(stock, host.peer_id)


@each_security
async def test_the_stock_peer_is_reached_through_our_relay_and_reaches_us(security: str) -> None:
    async with ours(1) as relay, ours(2) as host, stock_peer(STOCK, security=security) as stock:
        relay.trust(stock.peer)
        await reserve(host, relay)
        assert await stock.reserve(relay.addresses()[0])
        await stock.circuit_to(through(relay, host.peer_id))
        back = await circuit_from(host, stock.peer)
        assert (back.route.relay, back.dialled, back.route.is_limited) == (relay.peer_id, False, True)
        await stock_pings(stock, host.peer_id)
        await ping(host, back)


@each_security
async def test_we_reach_the_stock_peer_through_our_relay(security: str) -> None:
    async with ours(1) as relay, ours(2) as host, stock_peer(STOCK, security=security) as stock:
        relay.trust(stock.peer)
        await reserve(host, relay)
        assert await stock.reserve(relay.addresses()[0])
        circuit = await host.reaching.circuits.connect(relay.peer_id, stock.peer)
        await ping(host, circuit)
        told = await introduction(host, circuit)
        assert from_bytes([told.observed_addr], 1) == [], "where the relay is, is not where we are"


async def test_we_relay_between_two_stock_peers() -> None:
    async with ours(1) as relay, stock_peer(STOCK) as source, stock_peer(OTHER_STOCK) as target:
        for one in (source, target):
            relay.trust(one.peer)
            assert await one.reserve(relay.addresses()[0])
        await source.circuit_to(through(relay, target.peer))
        await stock_pings(source, target.peer)
        assert relay.reaching.relay.relayed_bytes > 0


async def test_a_stock_peer_reaches_us_through_a_stock_relay_and_is_reached_by_us() -> None:
    async with stock_peer(STOCK, relays=True) as relay, ours(1) as host, stock_peer(OTHER_STOCK) as other:
        await host.dial(relay.addresses)
        await host.reaching.circuits.reserve(relay.peer)
        assert await other.reserve(relay.addresses[0])
        await other.circuit_to(through(relay.addresses[0], host.peer_id))
        back = await circuit_from(host, other.peer)
        await stock_pings(other, host.peer_id)
        await ping(host, back)
        await ping(host, await host.reaching.circuits.connect(relay.peer, other.peer))


async def test_the_stock_peer_is_told_that_our_relay_does_not_take_strangers() -> None:
    async with ours(1) as relay, ours(2) as host, stock_peer(STOCK) as stock:
        await reserve(host, relay)
        assert not await stock.reserve(relay.addresses()[0])
        with pytest.raises(ConnectionError, match=f"status {int(pb.PERMISSION_DENIED)}"):
            await stock.circuit_to(through(relay, host.peer_id))


# DCUtR. Neither side asks where loopback is public: the stock peer dials what it is told, and ours is told that it may.


def knocking_at_loopback(host: Host) -> None:
    """Punch on loopback, where the host listens."""

    def bound() -> list[Address]:
        return [from_socket(listener.socket.getsockname()) for listener in host.listeners]

    host.reaching.puncher.seen_at = bound
    host.reaching.puncher.may_dial = lambda address: True


async def test_a_circuit_from_the_stock_peer_becomes_a_direct_connection() -> None:
    async with ours(1) as relay, ours(2) as host, stock_peer(STOCK, punches=True) as stock:
        knocking_at_loopback(host)
        relay.trust(stock.peer)
        await reserve(host, relay)
        await stock.circuit_to(through(relay, host.peer_id))
        circuit = await circuit_from(host, stock.peer)
        assert await host.reaching.puncher.upgrade(circuit) == Punched(tries=1)
        connection = host.open_connection(stock.peer)
        assert connection is not None
        await ping(host, connection)


async def test_a_circuit_to_the_stock_peer_becomes_a_direct_connection() -> None:
    async with ours(1) as relay, ours(2) as host, stock_peer(STOCK, punches=True) as stock:
        knocking_at_loopback(host)
        relay.trust(stock.peer)
        await reserve(host, relay)
        assert await stock.reserve(relay.addresses()[0])
        await host.reaching.circuits.connect(relay.peer_id, stock.peer)
        with trio.fail_after(UNTIL_S):
            await host.unless_met(stock.peer, trio.sleep_forever)
        connection = host.open_connection(stock.peer)
        assert connection is not None
        await ping(host, connection)
