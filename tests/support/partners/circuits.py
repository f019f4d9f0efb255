"""Work with circuits in the tests of interoperability, for any relay and any other end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import trio
from libp2p.crypto.ed25519 import Ed25519PublicKey
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.peer.id import ID
from libp2p.peer.pb.envelope_pb2 import Envelope
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.core.ids import PeerId
from swarm.libp2p import circuit_address, open_libp2p
from swarm.libp2p.connection import Connection
from swarm.libp2p.host import Host
from swarm.libp2p.identify import IDENTIFY_PROTOCOL, MAX_IDENTIFY_BYTES, PING_BYTES, PING_PROTOCOL
from swarm.libp2p.reachability.circuits import NoCircuit
from swarm.libp2p.reachability.relaying.relay import HOP
from swarm.libp2p.reachability.wire import framed, receive, uvarint
from swarm.libp2p.security import NOISE, TLS
from swarm.testing.transport_conformance import read_exactly
from swarm.transport.interface import TransportError

LOOPBACK = "/ip4/127.0.0.1/tcp/0"

LOOK_AGAIN_S = 0.02
"""Seconds between two looks at the state of another process."""

UNTIL_S = 120.0
"""Seconds to wait for another process: what is waited for takes one, and a minute where the machine is busy."""


@asynccontextmanager
async def ours(
    seed: int,
    *,
    members: Iterable[PeerId] = (),
    security: Sequence[str] = (TLS, NOISE),
    listen: Sequence[str] = (LOOPBACK,),
    announce: Sequence[str] = (),
) -> AsyncIterator[Host]:
    """Yield a host of ours that takes these for members of its swarm, and leaves circuits from peers as they are."""
    async with open_libp2p(bytes([seed]) * 32, listen, announce, security=security) as transport:
        host = cast(Host, transport)
        for member in members:
            host.trust(member)
        host.reaching.circuits.on_inbound = lambda circuit: None
        yield host


def through(relay: Host | str, peer: PeerId) -> str:
    """Return the address of a peer behind a relay, which is a host of ours or at an address."""
    return circuit_address(relay if isinstance(relay, str) else relay.addresses()[0], peer)


async def introduction(host: Host, connection: Connection) -> Identify:
    """Return what the peer at the other end says of itself in identify.

    js-libp2p answers one such question on a connection at a time, and resets the stream of another; our host asks its
    own as soon as there is a connection.
    """
    with trio.fail_after(UNTIL_S):
        while True:
            try:
                stream = await host.open_stream_on(connection, IDENTIFY_PROTOCOL)
                told = await receive(stream, Identify, MAX_IDENTIFY_BYTES)
                await stream.aclose()
                return told
            except TransportError:
                await trio.sleep(LOOK_AGAIN_S)


async def ping(host: Host, connection: Connection) -> None:
    """Have the peer at the other end send back what we send."""
    sent = bytes(range(PING_BYTES))
    stream = await host.open_stream_on(connection, PING_PROTOCOL, sent)
    assert await read_exactly(stream, PING_BYTES) == sent
    await stream.aclose()


async def connection_to(host: Host, address: str) -> Connection:
    """Return a connection to the peer at an address."""
    connection = host.open_connection(await host.dial([address]))
    assert connection is not None
    return connection


async def circuit_from(host: Host, peer: PeerId) -> Connection:
    """Return the circuit that a peer has opened to us."""
    with trio.fail_after(UNTIL_S):
        while not host._circuits.get(peer):
            await trio.sleep(LOOK_AGAIN_S)
    return host._circuits[peer][0]


async def until_reserved(relay: Host, peer: PeerId) -> None:
    """Wait until a peer can be reached through a relay of ours."""
    with trio.fail_after(UNTIL_S):
        while not relay.reaching.relay.budget.is_reserved(peer, trio.current_time()):
            await trio.sleep(LOOK_AGAIN_S)


async def until_reached(host: Host, relay: PeerId, peer: PeerId) -> Connection:
    """Return a circuit to a peer that will soon reserve with another's relay."""
    with trio.fail_after(UNTIL_S):
        while True:
            try:
                return await host.reaching.circuits.connect(relay, peer)
            except NoCircuit:
                await trio.sleep(LOOK_AGAIN_S)


async def reservation(host: Host, relay: PeerId) -> pb.HopMessage:
    """Ask a relay for a reservation, and return its answer as it is."""
    connection = host.open_connection(relay)
    assert connection is not None
    stream = await host.open_stream_on(connection, HOP, framed(pb.HopMessage(type=pb.HopMessage.RESERVE)))
    answer = await receive(stream, pb.HopMessage)
    await stream.aclose()
    return answer


def check_voucher(raw: bytes, relay: PeerId, peer: PeerId, expires: int) -> None:
    """Check a voucher: the relay's signed statement that `peer` can be reached through it, by the rules of signed
    envelopes.
    """
    envelope = Envelope.FromString(raw)
    assert envelope.payload_type == b"\x03\x02"
    domain = b"libp2p-relay-rsvp"
    signed = b"".join(uvarint(len(part)) + part for part in (domain, envelope.payload_type, envelope.payload))
    key = Ed25519PublicKey.from_bytes(envelope.public_key.Data)
    assert key.verify(signed, envelope.signature)
    assert PeerId(ID.from_pubkey(key).to_base58()) == relay
    voucher = pb.Voucher.FromString(envelope.payload)
    assert PeerId(ID(voucher.relay).to_base58()) == relay
    assert PeerId(ID(voucher.peer).to_base58()) == peer
    assert voucher.expiration == expires


def places(raw: Iterable[bytes]) -> list[str]:
    """Return addresses in their text form, without the peer's name."""
    return [str(Multiaddr(one)).partition("/p2p/")[0] for one in raw]


def local_address(connection: Connection) -> str:
    """Return our address on a connection, as its other end should see it."""
    local = connection.raw.local  # type: ignore[union-attr]
    return f"/{local.kind}/{local.host}/tcp/{local.port}"
