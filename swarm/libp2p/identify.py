"""The two protocols that every libp2p node is expected to answer: identify and ping.

Identify tells a peer our key, our protocols and the address we see it at; it tells nobody else anything. What a peer
tells of itself is its word alone, and so is where it sees us.
Specifications: https://github.com/libp2p/specs/tree/master/identify and .../ping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio
from libp2p.identity.identify.pb.identify_pb2 import Identify

from protocol.core.limits import KIB, MAX_ADDRESSES
from swarm.libp2p.reachability.multiaddrs import from_bytes, to_bytes
from swarm.libp2p.reachability.wire import framed, receive
from swarm.libp2p.security import Identity
from swarm.libp2p.sockets.addresses import Address
from swarm.libp2p.stream import Libp2pStream
from swarm.transport.event_rate import Bucket, Rate
from swarm.transport.interface import Stream, StreamHandler

IDENTIFY_PROTOCOL = "/ipfs/id/1.0.0"
PING_PROTOCOL = "/ipfs/ping/1.0.0"
PING_BYTES = 32
AGENT = "volery"

MAX_IDENTIFY_BYTES = 8 * KIB
"""Of an answer; other implementations allow as much."""

MAX_PROTOCOLS = 256
"""Names that are looked at."""

PINGS = Rate(per_s=20.0, burst=100.0)
"""Answered on one stream. Others measure a round trip every second or so; a bulk of pings would be a task's turn
each."""


def identify_handler(
    identity: Identity, addresses: Callable[[], list[str]], protocols: Callable[[], list[str]]
) -> StreamHandler:
    """Return the handler that introduces us."""

    async def introduce(stream: Stream) -> None:
        assert isinstance(stream, Libp2pStream)
        route = stream.connection.route
        message = Identify(
            protocol_version="ipfs/0.1.0",
            agent_version=AGENT,
            public_key=identity.key_pair.public_key.serialize(),
            listen_addrs=[to_bytes(address.partition("/p2p/")[0]) for address in addresses()],
            protocols=protocols(),
            observed_addr=None if route.relay is not None else to_bytes(route.address),
        )
        await stream.send_all(framed(message))

    return introduce


@dataclass(frozen=True, kw_only=True)
class Introduced:
    """What a peer says of itself, and where it sees us; None: it does not say, or nowhere that we could be."""

    agent: str
    protocols: frozenset[str]
    addresses: tuple[Address, ...]
    observed: Address | None


async def read_introduction(stream: Stream) -> Introduced:
    """Read what a peer answers on a stream of IDENTIFY_PROTOCOL. Raises PeerError, StreamBroken."""
    told = await receive(stream, Identify, MAX_IDENTIFY_BYTES)
    observed = from_bytes([told.observed_addr], 1)
    return Introduced(
        agent=told.agent_version,
        protocols=frozenset(told.protocols[:MAX_PROTOCOLS]),
        addresses=tuple(from_bytes(told.listen_addrs, MAX_ADDRESSES)),
        observed=observed[0] if observed else None,
    )


async def answer_ping(stream: Stream) -> None:
    """Echo pings until the peer ends its stream, no faster than PINGS."""
    bucket = Bucket(rate=PINGS)
    while data := await stream.receive_some(PING_BYTES):
        await stream.send_all(data)
        await trio.sleep(bucket.charge(1.0, trio.current_time()))
