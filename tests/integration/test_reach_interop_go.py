"""Test our host with go-libp2p alone. Tests of all implementations are in `test_reach_interop.py`.

The other end is p2pd, a daemon of go-libp2p 0.32.1. It speaks neither DCUtR nor AutoNAT v2. That is tested here too, so
that a later daemon which does will be noticed.
"""

from __future__ import annotations

import pytest
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb

from swarm.libp2p.identify import PING_PROTOCOL
from swarm.libp2p.reachability.autonat.server import DIAL_REQUEST
from swarm.libp2p.reachability.hole_punch import DCUTR, Punched
from swarm.libp2p.reachability.relaying.relay import HOP, sign_voucher
from swarm.libp2p.reachability.relaying.relay_budget import RelayBudget, RelayLimits
from swarm.libp2p.reachability.wire import framed, receive
from swarm.libp2p.security import Identity
from swarm.libp2p.stream import Libp2pStream
from swarm.transport.interface import Stream, StreamBroken, StreamRefused
from tests.support.partners.circuits import (
    circuit_from,
    connection_to,
    introduction,
    ours,
    ping,
    places,
    through,
    until_reserved,
)
from tests.support.partners.go_peer import go_behind, go_name, go_peer
from tests.support.partners.programs import needs_go

pytestmark = needs_go

GO, OTHER_GO = 7, 8


async def test_go_says_where_it_listens() -> None:
    async with go_peer(GO) as go, ours(1) as host:
        told = await introduction(host, await connection_to(host, go.addresses[0]))
        assert places(told.listen_addrs) == [address.partition("/p2p/")[0] for address in go.addresses]


async def test_go_knows_a_circuit_for_one() -> None:
    names = [go_name(GO), go_name(OTHER_GO)]
    async with (
        ours(1, members=names) as relay,
        go_behind(relay.addresses()[0], GO) as target,
        go_peer(OTHER_GO) as source,
    ):
        await until_reserved(relay, target.peer)
        await source.connect(target.peer, through(relay, target.peer))
        assert all("p2p-circuit" in address for address in (await source.connected())[target.peer])


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
        assert source.connected_peers() == {go.peer}, "the connection to the relay must stay"


async def use_up(stream: Stream) -> None:
    """Send more than the relay carries (go-libp2p's 128 KiB each way), and read until the circuit is closed."""
    await stream.send_all(bytes(200_000))
    while await stream.receive_some(1024):
        pass
    raise StreamBroken("the peer ended the stream")


async def test_go_reads_our_voucher_and_takes_no_other() -> None:
    """Our relay issues one voucher with a wrong signature, and then a right one."""

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
    """A host that meets it over a circuit learns so at once, and keeps the circuit."""
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
        said = await host.reaching.meetings.puncher.upgrade(circuit)
        assert said == Punched(tries=1, why=f"{go.peer} does not say where it can be seen")
        await ping(host, circuit)
