"""A relay on loopback: members are joined, others are not, and nobody has more than the limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast

import pytest
import trio
from libp2p.crypto.ed25519 import Ed25519PublicKey
from libp2p.peer.id import ID
from libp2p.peer.pb.envelope_pb2 import Envelope
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb

from protocol.core.ids import PeerId
from protocol.reach import Way
from swarm.libp2p import open_libp2p
from swarm.libp2p.connection import Connection
from swarm.libp2p.host import Host
from swarm.libp2p.identify import IDENTIFY_PROTOCOL, PING_PROTOCOL
from swarm.libp2p.reachability.circuits import NoCircuit
from swarm.libp2p.reachability.relaying.relay import HOP, REQUESTS, STOP, sign_voucher
from swarm.libp2p.reachability.relaying.relay_budget import RelayBudget, RelayLimits
from swarm.libp2p.reachability.wire import framed, receive
from swarm.libp2p.security import NOISE, Identity, security_table
from swarm.libp2p.sockets.addresses import circuit_address, parse_address
from swarm.libp2p.stream import Libp2pStream
from swarm.testing.transport_conformance import ECHO, echo, pattern, read_exactly
from swarm.transport.interface import Stream, StreamBroken, StreamRefused
from tests.support.learner_fixture import until

LOOPBACK = "/ip4/127.0.0.1/tcp/0"


@asynccontextmanager
async def host(seed: int, listen: str = LOOPBACK) -> AsyncIterator[Host]:
    async with open_libp2p(bytes([seed]) * 32, [listen]) as transport:
        yield cast(Host, transport)


@asynccontextmanager
async def swarm(limits: RelayLimits | None = None) -> AsyncIterator[tuple[Host, Host, Host]]:
    """A relay, and two members that it knows and that are connected to it alone; the second can be reached."""
    async with host(1) as relay, host(2) as source, host(3) as target:
        relay.reaching.relay.budget = RelayBudget(limits=limits or RelayLimits())
        for member in (source, target):
            relay.trust(member.peer_id)
            await member.dial(relay.addresses())
        target.reaching.circuits.on_inbound = lambda circuit: (
            None
        )  # it goes on, though no hole can be punched on loopback
        await target.reaching.circuits.reserve(relay.peer_id)
        yield relay, source, target


async def _ping_for_ever(ping: Stream) -> None:
    while True:
        await ping.send_all(bytes(1024))
        await ping.receive_some(1024)


async def connect(relay: Host, source: Host, target: Host) -> Connection:
    return await source.reaching.circuits.connect(relay.peer_id, target.peer_id)


async def test_a_circuit_leads_to_the_peer_and_is_no_connection_to_those_above() -> None:
    async with swarm() as (relay, source, target):
        circuit = await connect(relay, source, target)
        assert circuit.peer == target.peer_id
        assert circuit.route.relay == relay.peer_id
        assert circuit.route.is_limited
        assert target.peer_id not in source.connected_peers()
        with pytest.raises(StreamRefused, match="is not connected"):
            await source.open_stream(target.peer_id, PING_PROTOCOL)
        ping = await source.open_stream_on(circuit, PING_PROTOCOL, b"p" * 32)
        assert await ping.receive_some(32) == b"p" * 32


async def test_a_circuit_carries_introductions_and_nothing_else() -> None:
    async with swarm() as (relay, source, target):
        target.handle(ECHO, echo)
        circuit = await connect(relay, source, target)
        with pytest.raises(StreamRefused, match="answered with 'na'"):
            await source.open_stream_on(circuit, ECHO)
        await source.open_stream_on(circuit, IDENTIFY_PROTOCOL)


async def test_where_the_operator_allows_bulk_a_circuit_is_a_connection() -> None:
    async with swarm(RelayLimits(allows_bulk=True, circuit_bytes=1)) as (relay, source, target):
        target.handle(ECHO, echo)
        await source.dial([circuit_address(relay.addresses()[0], target.peer_id)])
        assert target.peer_id in source.connected_peers()
        stream = await source.open_stream(target.peer_id, ECHO)
        data = pattern(300_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, data)
            assert await read_exactly(stream, len(data)) == data
        assert relay.reaching.relay.relayed_bytes >= 2 * len(data)
        ends = (source.peer_id, target.peer_id)
        assert dict(relay.take_carried()) == {(min(ends), max(ends)): relay.reaching.relay.relayed_bytes}
        assert not source.take_carried(), "an end carries nothing for others"
        assert [one.way for one in source.reached().met if one.peer == target.peer_id] == [Way.RELAYED]


async def until_known(*hosts: Host) -> None:
    """Wait until they know what all who are connected to them are."""
    await until(lambda: all(one.agent for host in hosts for one in host.connections()))


async def ask(host: Host, relay: Host, target: Host, behind: bytes) -> Libp2pStream:
    """Ask a relay for a circuit, with something behind the question."""
    connection = host.open_connection(relay.peer_id)
    assert connection is not None
    peer = pb.PeerId(id=ID.from_base58(target.peer_id).to_bytes())
    asked = framed(pb.HopMessage(type=pb.HopMessage.CONNECT, peer=peer))
    return await host.open_stream_on(connection, HOP, asked + behind)


async def test_the_first_words_reach_a_peer_that_keeps_them_before_it_takes_the_circuit() -> None:
    async with swarm() as (relay, source, target):
        await until_known(relay)
        heard: list[bytes] = []

        async def take(stream: Stream) -> None:
            await receive(stream, pb.StopMessage)
            heard.append(await read_exactly(stream, 11))
            await stream.send_all(framed(pb.StopMessage(type=pb.StopMessage.STATUS, status=pb.OK)) + b"hear you")
            heard.append(await stream.receive_some(100))

        target.handle(STOP, take)
        stream = await ask(source, relay, target, b"first words")
        await until(lambda: heard == [b"first words"])
        assert (await receive(stream, pb.HopMessage)).status == pb.OK
        assert await read_exactly(stream, 8) == b"hear you"
        await stream.send_all(b"and more")
        await until(lambda: heard == [b"first words", b"and more"])
        assert relay.reaching.relay.relayed_bytes == len(b"first words" + b"hear you" + b"and more")
        await stream.aclose()


async def test_whoever_may_not_keep_them_gets_the_first_words_with_the_rest() -> None:
    async with swarm() as (relay, source, target):
        await until_known(relay)
        for connection in relay.connections_to(target.peer_id):
            connection.agent = "another program"
        taken, heard = trio.Event(), list[bytes]()

        async def take(stream: Stream) -> None:
            assert isinstance(stream, Libp2pStream)
            await receive(stream, pb.StopMessage)
            heard.append(stream.take_arrived(100))
            await taken.wait()
            await stream.send_all(framed(pb.StopMessage(type=pb.StopMessage.STATUS, status=pb.OK)))
            heard.append(await read_exactly(stream, 11))

        target.handle(STOP, take)
        stream = await ask(source, relay, target, b"first words")
        await until(lambda: heard == [b""])
        taken.set()
        assert (await receive(stream, pb.HopMessage)).status == pb.OK
        await until(lambda: heard == [b"", b"first words"])
        await stream.aclose()


async def test_first_words_without_end_count_as_all_bytes_do() -> None:
    async with swarm(RelayLimits(circuit_bytes=1000)) as (relay, source, target):
        await until_known(relay)
        heard = bytearray()

        async def take(stream: Stream) -> None:
            await receive(stream, pb.StopMessage)
            await stream.send_all(framed(pb.StopMessage(type=pb.StopMessage.STATUS, status=pb.OK)))
            while data := await stream.receive_some(100_000):
                heard.extend(data)

        target.handle(STOP, take)
        stream = await ask(source, relay, target, bytes(100_000))
        with suppress(StreamBroken):
            while await stream.receive_some(1000):
                pass
        await until(lambda: relay.reaching.relay.budget.num_circuits == 0)
        assert len(heard) <= relay.reaching.relay.relayed_bytes <= 1000


async def test_whoever_is_refused_hears_why_whatever_came_behind_the_question() -> None:
    async with swarm() as (relay, source, target):
        await until_known(relay)

        async def refuse(stream: Stream) -> None:
            await receive(stream, pb.StopMessage)
            await stream.send_all(framed(pb.StopMessage(type=pb.StopMessage.STATUS, status=pb.PERMISSION_DENIED)))

        target.handle(STOP, refuse)
        stream = await ask(source, relay, target, b"first words")
        assert (await receive(stream, pb.HopMessage)).status == pb.CONNECTION_FAILED
        assert await stream.receive_some(1) == b""


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_peer_that_speaks_noise_alone_is_reached_as_well(is_known: bool) -> None:
    async with swarm() as (relay, source, target):
        target.security = security_table(target.identity, (NOISE,))
        await until_known(relay, source)
        if not is_known:
            for host in (relay, source):
                for connection in host.connections():
                    connection.agent = "another program"
        assert source.haste.suits(target.peer_id)
        for _ in range(2):
            circuit = await connect(relay, source, target)
            ping = await source.open_stream_on(circuit, PING_PROTOCOL, b"p" * 32)
            assert await ping.receive_some(32) == b"p" * 32
            assert not source.haste.suits(target.peer_id)
            await circuit.aclose()


async def test_the_ends_of_a_circuit_that_is_over_know_it() -> None:
    async with swarm() as (relay, source, target):
        circuit = await connect(relay, source, target)
        await target.disconnect(relay.peer_id)
        await circuit.gone.wait()
        assert not source._circuits
        assert not target._circuits


async def test_a_circuit_ends_with_its_bytes() -> None:
    async with swarm(RelayLimits(circuit_bytes=20_000)) as (relay, source, target):
        circuit = await connect(relay, source, target)
        ping = await source.open_stream_on(circuit, PING_PROTOCOL)
        with pytest.raises(StreamBroken):
            await _ping_for_ever(ping)
        await circuit.gone.wait()
        assert relay.reaching.relay.relayed_bytes <= 2 * 20_000
        assert relay.reaching.relay.budget.num_circuits == 0
        assert source.connected_peers() == {relay.peer_id}, "the connection to the relay goes on"


async def test_a_circuit_ends_with_its_time() -> None:
    async with swarm(RelayLimits(circuit_s=3.0)) as (relay, source, target):
        circuit = await connect(relay, source, target)
        await circuit.gone.wait()
        assert relay.reaching.relay.budget.num_circuits == 0


async def test_strangers_are_neither_reached_nor_joined() -> None:
    async with swarm() as (relay, _, target), host(4) as stranger:
        await stranger.dial(relay.addresses())
        with pytest.raises(NoCircuit, match="PERMISSION_DENIED"):
            await stranger.reaching.circuits.reserve(relay.peer_id)
        with pytest.raises(NoCircuit, match="PERMISSION_DENIED"):
            await connect(relay, stranger, target)


async def test_who_has_reserved_nothing_is_not_reached() -> None:
    async with swarm() as (relay, source, target):
        with pytest.raises(NoCircuit, match="NO_RESERVATION"):
            await target.reaching.circuits.connect(relay.peer_id, PeerId(Identity.from_seed(bytes(32)).peer_id))
        await target.disconnect(relay.peer_id)
        with pytest.raises(NoCircuit, match="NO_RESERVATION"):
            await connect(relay, source, target)


async def test_a_relay_that_we_have_not_asked_brings_nobody() -> None:
    async with swarm() as (_, source, target), host(4) as other:
        await other.dial(target.addresses())  # a relay is asked by whoever dialled it
        await source.dial(other.addresses())
        other.trust(source.peer_id)
        other.reaching.relay.budget.reserve(target.peer_id, "made up", trio.current_time())
        with pytest.raises(NoCircuit, match="CONNECTION_FAILED"):
            await connect(other, source, target)
        assert not target._circuits


async def test_no_circuit_leads_through_another() -> None:
    async with swarm() as (relay, source, target):
        circuit = await connect(relay, source, target)
        with pytest.raises(StreamRefused):
            await source.open_stream_on(circuit, HOP, framed(pb.HopMessage(type=pb.HopMessage.RESERVE)))


async def test_ten_thousand_reservations_cost_one_place() -> None:
    async with swarm() as (relay, source, _):
        refused: list[str] = []
        for _ in range(200):
            try:
                await source.reaching.circuits.reserve(relay.peer_id)
            except NoCircuit as error:
                refused.append(str(error))
        assert len(refused) >= 200 - REQUESTS.burst - 100 * REQUESTS.per_s
        assert all("RESOURCE_LIMIT_EXCEEDED" in why for why in refused)
        assert len(relay.reaching.relay.budget._reservations) == 2


@pytest.mark.parametrize("data", [b"\xff\xff\x7f", b"\x03\xff\xff\xff", framed(pb.HopMessage())])
async def test_what_is_no_request_is_answered_and_ends_the_stream_alone(data: bytes) -> None:
    async with swarm() as (relay, source, _):
        connection = source.open_connection(relay.peer_id)
        assert connection is not None
        stream = await source.open_stream_on(connection, HOP, data)
        answer = await receive(stream, pb.HopMessage)
        assert answer.status in {pb.MALFORMED_MESSAGE, pb.UNEXPECTED_MESSAGE, pb.OK}
        assert await stream.receive_some(1) == b""
        assert connection.muxer.is_open


def test_a_voucher_is_the_relays_word() -> None:
    """By the rules of signed envelopes (RFC 0002 of libp2p's), spelled out."""
    relay, peer = Identity.from_seed(b"r" * 32), Identity.from_seed(b"p" * 32)
    raw = sign_voucher(relay, peer.peer_id, 1_700_000_000)
    envelope = Envelope.FromString(raw)
    assert envelope.payload_type == b"\x03\x02"
    voucher = pb.Voucher.FromString(envelope.payload)
    assert ID(voucher.relay).to_base58() == relay.peer_id
    assert ID(voucher.peer).to_base58() == peer.peer_id
    assert voucher.expiration == 1_700_000_000
    signed = b"\x11libp2p-relay-rsvp" + b"\x02\x03\x02" + bytes([len(envelope.payload)]) + envelope.payload
    key = Ed25519PublicKey.from_bytes(envelope.public_key.Data)
    assert key.verify(signed, envelope.signature)
    assert raw == sign_voucher(relay, peer.peer_id, 1_700_000_000)


@pytest.mark.parametrize(
    ("message", "raw"),
    [
        (pb.HopMessage(type=pb.HopMessage.RESERVE), "02 0800"),
        (pb.HopMessage(type=pb.HopMessage.CONNECT, peer=pb.PeerId(id=b"\x00\x01\x02")), "09 0801 1205 0a03000102"),
        (
            pb.HopMessage(type=pb.HopMessage.STATUS, status=pb.OK, limit=pb.Limit(duration=60, data=65536)),
            "0c 0802 2206 083c 10808004 2864",
        ),
        (pb.StopMessage(type=pb.StopMessage.CONNECT, peer=pb.PeerId(id=b"\x00")), "07 0800 1203 0a0100"),
        (pb.StopMessage(type=pb.StopMessage.STATUS, status=pb.OK), "04 0801 2064"),
    ],
)
def test_messages_are_the_specifications_byte_for_byte(message: pb.HopMessage | pb.StopMessage, raw: str) -> None:
    assert framed(message) == bytes.fromhex(raw)


async def test_a_hundred_circuits_at_once_are_as_many_as_are_allowed() -> None:
    limits = RelayLimits(circuits_of_peer=4)
    async with swarm(limits) as (relay, source, target):
        opened: list[Connection] = []
        refused: list[str] = []

        async def one() -> None:
            try:
                opened.append(await connect(relay, source, target))
            except NoCircuit as error:
                refused.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one)
        assert len(opened) <= 4
        assert len(opened) + len(refused) == 20
        assert all("RESOURCE_LIMIT_EXCEEDED" in why for why in refused)


async def test_of_several_connections_one_is_left() -> None:
    async with host(1) as one, host(2) as other:
        await one.dial(other.addresses())
        address = parse_address(one.addresses()[0])
        await other.connect(one.peer_id, address)
        await until(lambda: len(one.connections_to(other.peer_id)) == 2)
        extra = max(one.connections_to(other.peer_id), key=lambda connection: connection.number)
        await extra.gone.wait()
        assert len(one.connections_to(other.peer_id)) == len(other.connections_to(one.peer_id)) == 1
