"""go-libp2p and our host: relays, circuits, vouchers and identify, both directions, over TLS and over noise.

The other end is p2pd, a daemon of go-libp2p 0.32.1. It speaks neither DCUtR nor AutoNAT v2, which is tested here too:
whoever replaces it by one that does should learn of it.
"""

from __future__ import annotations

import pytest
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb

from swarm.libp2p.identify import PING_BYTES, PING_PROTOCOL
from swarm.libp2p.reachability.autonat_server import DIAL_REQUEST
from swarm.libp2p.reachability.circuits import NoCircuit
from swarm.libp2p.reachability.hole_punch import DCUTR, Punched
from swarm.libp2p.reachability.multiaddrs import from_bytes
from swarm.libp2p.reachability.relay import HOP, STOP, sign_voucher
from swarm.libp2p.reachability.relay_budget import RelayBudget, RelayLimits
from swarm.libp2p.reachability.wire import framed, receive
from swarm.libp2p.security import NOISE, TLS, Identity
from swarm.libp2p.stream import Libp2pStream
from swarm.transport.interface import Stream, StreamBroken, StreamRefused
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
from tests.support.partners.go_peer import GoError, GoPeer, go_behind, go_name, go_peer, go_pings
from tests.support.partners.programs import needs_go

pytestmark = needs_go

GO, OTHER_GO = 7, 8
ONLY = {TLS: "-noise=false", NOISE: "-tls=false"}
"""What makes the daemon speak one security protocol alone."""
each_security = pytest.mark.parametrize("security", ONLY)


@each_security
async def test_go_relays_between_two_of_ours(security: str) -> None:
    async with go_peer(GO, ONLY[security]) as go, ours(1) as source, ours(2, security=[security]) as target:
        for one in (source, target):
            await one.dial(go.addresses)
        assert await target.reaching.circuits.reserve(go.peer) > 1000
        circuit = await source.reaching.circuits.connect(go.peer, target.peer_id)
        assert circuit.route.is_limited
        await ping(source, circuit)
        told = await introduction(source, circuit)
        assert (told.agent_version, told.observed_addr) == ("volery", b"")
        back = await circuit_from(target, source.peer_id)
        assert back.route.relay == go.peer
        await ping(target, back)


async def test_a_peer_that_reserved_nothing_is_not_reached_through_go() -> None:
    async with go_peer(GO) as go, ours(1) as source, ours(2) as target:
        for one in (source, target):
            await one.dial(go.addresses)
        with pytest.raises(NoCircuit, match="NO_RESERVATION"):
            await source.reaching.circuits.connect(go.peer, target.peer_id)


async def test_go_vouches_for_its_reservation() -> None:
    async with go_peer(GO) as go, ours(1) as host:
        await host.dial(go.addresses)
        answer = await reservation(host, go.peer)
        granted = answer.reservation
        assert (answer.type, answer.status) == (pb.HopMessage.STATUS, pb.OK)
        check_voucher(granted.voucher, go.peer, host.peer_id, granted.expire)
        assert answer.limit.duration > 0


@each_security
async def test_identify_outside_of_circuits(security: str) -> None:
    async with go_peer(GO, ONLY[security]) as go, ours(1) as host:
        connection = await connection_to(host, go.addresses[0])
        told = await introduction(host, connection)
        assert told.agent_version == "p2pd/0.1"
        assert places(told.listen_addrs) == places_of(go)
        assert places([told.observed_addr]) == [local_address(connection)]
        assert {HOP, STOP, PING_PROTOCOL} <= set(told.protocols)
        await go_pings(go, host.peer_id)


def places_of(go: GoPeer) -> list[str]:
    return [address.partition("/p2p/")[0] for address in go.addresses]


@each_security
async def test_go_is_reached_through_our_relay_and_reaches_us(security: str) -> None:
    """Each reserves with the same relay of ours, and opens a circuit to the other."""
    async with ours(1, members=[go_name(GO)]) as relay, ours(2) as host:
        relay.trust(host.peer_id)
        await host.dial(relay.addresses())
        await host.reaching.circuits.reserve(relay.peer_id)
        async with go_behind(relay.addresses()[0], GO, ONLY[security]) as go:
            await until_reserved(relay, go.peer)
            await go.connect(host.peer_id, through(relay, host.peer_id))
            back = await circuit_from(host, go.peer)
            assert (back.route.relay, back.dialled, back.route.is_limited) == (relay.peer_id, False, True)
            await go_pings(go, host.peer_id)
            await ping(host, back)
            circuit = await host.reaching.circuits.connect(relay.peer_id, go.peer)
            await ping(host, circuit)
            told = await introduction(host, circuit)
            assert told.agent_version == "p2pd/0.1"
            assert from_bytes([told.observed_addr], 1) == [], "where the relay is, is not where we are"


async def test_we_relay_between_two_of_go() -> None:
    names = [go_name(GO), go_name(OTHER_GO)]
    async with (
        ours(1, members=names) as relay,
        go_behind(relay.addresses()[0], GO) as target,
        go_peer(OTHER_GO) as source,
    ):
        await until_reserved(relay, target.peer)
        await source.connect(target.peer, through(relay, target.peer))
        await go_pings(source, target.peer)
        assert all("p2p-circuit" in address for address in (await source.connected())[target.peer])
        assert relay.reaching.relay.relayed_bytes > 2 * PING_BYTES


async def test_go_reaches_us_through_go_and_is_reached_by_us() -> None:
    async with go_peer(GO) as relay, ours(1) as host, go_behind(relay.addresses[0], OTHER_GO) as other:
        await host.dial(relay.addresses)
        await host.reaching.circuits.reserve(relay.peer)
        await other.connect(host.peer_id, through(relay.addresses[0], host.peer_id))
        back = await circuit_from(host, other.peer)
        assert back.route.relay == relay.peer
        await go_pings(other, host.peer_id)
        circuit = await until_reached(host, relay.peer, other.peer)
        await ping(host, circuit)


async def test_go_is_told_that_our_relay_does_not_take_strangers() -> None:
    async with ours(1) as relay, ours(2) as host, go_peer(GO) as go:
        relay.trust(host.peer_id)
        await host.dial(relay.addresses())
        await host.reaching.circuits.reserve(relay.peer_id)
        with pytest.raises(GoError, match="PERMISSION_DENIED"):
            await go.connect(host.peer_id, through(relay, host.peer_id))


async def test_go_is_told_that_a_peer_reserved_nothing() -> None:
    async with ours(1, members=[go_name(GO)]) as relay, ours(2) as host, go_peer(GO) as go:
        await host.dial(relay.addresses())
        with pytest.raises(GoError, match="NO_RESERVATION"):
            await go.connect(host.peer_id, through(relay, host.peer_id))


async def test_a_circuit_of_go_ends_with_its_bytes_on_our_relay() -> None:
    async with ours(1, members=[go_name(GO)]) as relay, ours(2) as host, go_peer(GO) as go:
        relay.reaching.relay.budget = RelayBudget(limits=RelayLimits(circuit_bytes=20_000))
        relay.trust(host.peer_id)
        await host.dial(relay.addresses())
        await host.reaching.circuits.reserve(relay.peer_id)
        await go.connect(host.peer_id, through(relay, host.peer_id))
        circuit = await circuit_from(host, go.peer)
        stream = await host.open_stream_on(circuit, PING_PROTOCOL)
        with pytest.raises(StreamBroken):
            await use_up(stream)
        await circuit.gone.wait()
        assert relay.reaching.relay.budget.num_circuits == 0


async def test_a_circuit_of_ours_ends_with_its_bytes_on_a_relay_of_go() -> None:
    async with go_peer(GO) as go, ours(1) as source, ours(2) as target:
        for one in (source, target):
            await one.dial(go.addresses)
        await target.reaching.circuits.reserve(go.peer)
        circuit = await source.reaching.circuits.connect(go.peer, target.peer_id)
        stream = await source.open_stream_on(circuit, PING_PROTOCOL)
        with pytest.raises(StreamBroken):
            await use_up(stream)
        await circuit.gone.wait()
        assert source.connected_peers() == {go.peer}, "the connection to the relay goes on"


async def use_up(stream: Stream) -> None:
    """Send more than the relay carries (go-libp2p's 128 KiB each way), and read until that is noticed."""
    await stream.send_all(bytes(200_000))
    while await stream.receive_some(1024):
        pass
    raise StreamBroken("the peer ended the stream")


async def test_go_reads_our_voucher_and_takes_no_other() -> None:
    """A relay of ours hands out one whose signature is wrong, and then one as it should be."""

    async def lie(stream: Stream) -> None:
        assert isinstance(stream, Libp2pStream)
        await receive(stream, pb.HopMessage)
        expires = 2_000_000_000
        voucher = bytearray(sign_voucher(Identity.from_seed(bytes([1]) * 32), stream.remote, expires))
        voucher[-1] ^= 1
        granted = pb.Reservation(expire=expires, voucher=bytes(voucher))
        await stream.send_all(framed(pb.HopMessage(type=pb.HopMessage.STATUS, status=pb.OK, reservation=granted)))

    async with ours(1, members=[go_name(GO)]) as relay:
        relay.handle(HOP, lie)
        async with go_behind(relay.addresses()[0], GO) as go:
            await go.until_said("error consuming voucher envelope")
        relay.handle(HOP, relay.reaching.relay.serve)
        async with go_behind(relay.addresses()[0], GO) as go:
            await go.until_said("adding new relay")


async def test_go_does_not_punch() -> None:
    """Whoever meets it over a circuit learns so at once, and keeps the circuit."""
    async with ours(1, members=[go_name(GO)]) as relay, ours(2) as host, go_peer(GO) as go:
        relay.trust(host.peer_id)
        await host.dial(relay.addresses())
        await host.reaching.circuits.reserve(relay.peer_id)
        await go.connect(host.peer_id, through(relay, host.peer_id))
        circuit = await circuit_from(host, go.peer)
        told = await introduction(host, circuit)
        assert not {DCUTR, DIAL_REQUEST} & set(told.protocols)
        with pytest.raises(StreamRefused):
            await host.open_stream_on(circuit, DCUTR)
        said = await host.reaching.puncher.upgrade(circuit)
        assert said == Punched(tries=1, why=f"{go.peer} does not say where it can be seen")
        await ping(host, circuit)
