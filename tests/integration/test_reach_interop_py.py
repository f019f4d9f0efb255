"""Stock py-libp2p 0.8.1 and our host: our voucher, a client that reserves first, and DCUtR, both directions.

Tests of all implementations are in `test_reach_interop.py`.
"""

from __future__ import annotations

import pytest
import trio
from libp2p.peer.envelope import unmarshal_envelope
from libp2p.peer.id import ID

from swarm.libp2p.host import Host
from swarm.libp2p.reachability.relaying.relay import sign_voucher
from swarm.libp2p.security import NOISE, TLS, Identity
from swarm.libp2p.sockets.addresses import Address, from_socket
from tests.support.partners.circuits import (
    UNTIL_S,
    circuit_from,
    ours,
    ping,
    through,
)
from tests.support.partners.stock_peer import stock_peer, stock_pings

STOCK, OTHER_STOCK = 7, 8
each_security = pytest.mark.parametrize("security", [TLS, NOISE])


async def reserve(host: Host, relay: Host) -> None:
    """Make `host` a member of a relay's swarm that is reached through the relay."""
    relay.trust(host.peer_id)
    await host.dial(relay.addresses())
    await host.reaching.circuits.reserve(relay.peer_id)


async def test_the_library_reads_our_voucher() -> None:
    relay, peer = Identity.from_seed(bytes(32)), Identity.from_seed(bytes(range(32))).peer_id
    voucher = sign_voucher(relay, peer, 2_000_000_000)
    envelope = unmarshal_envelope(voucher)
    envelope.validate("libp2p-relay-rsvp")
    assert str(ID.from_pubkey(envelope.public_key)) == relay.peer_id
    with pytest.raises(ValueError, match="ignature"):
        unmarshal_envelope(voucher[:-1] + bytes([voucher[-1] ^ 1])).validate("libp2p-relay-rsvp")


async def test_a_stock_peer_that_reserves_before_each_circuit_is_joined() -> None:
    """As a client it does so, and shows its voucher when it asks for the circuit."""
    async with ours(1) as relay, ours(2) as host, stock_peer(STOCK, is_client=True) as stock:
        relay.trust(stock.peer)
        await reserve(host, relay)
        await stock.circuit_to(through(relay, host.peer_id))
        await stock_pings(stock, host.peer_id)


async def test_a_stock_peer_that_is_a_stranger_reserves_nothing_with_us() -> None:
    async with ours(1) as relay, stock_peer(STOCK) as stock:
        assert not await stock.reserve(relay.addresses()[0])


# DCUtR. Neither side checks that loopback is public: the stock peer dials any address, and ours is allowed to.


def knocking_at_loopback(host: Host) -> None:
    """Let the host punch on loopback, where it listens."""

    def bound() -> list[Address]:
        return [from_socket(listener.socket.getsockname()) for listener in host.listeners]

    host.reaching.meetings.puncher.seen_at = bound
    host.reaching.meetings.puncher.may_dial = lambda address: True


async def test_a_circuit_from_the_stock_peer_becomes_a_direct_connection() -> None:
    async with ours(1) as relay, ours(2) as host, stock_peer(STOCK, punches=True) as stock:
        knocking_at_loopback(host)
        relay.trust(stock.peer)
        await reserve(host, relay)
        await stock.circuit_to(through(relay, host.peer_id))
        circuit = await circuit_from(host, stock.peer)
        punched = await host.reaching.meetings.puncher.upgrade(circuit)
        assert (punched.why, punched.tries >= 1) == ("", True)
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
