"""Answer the two protocols that every libp2p node is expected to answer: identify and ping.

Identify tells a peer our key, our protocols and the address at which we see it; it tells nobody else anything. A peer's
statements about itself, and about where it sees us, are only its claims.
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
"""Bytes of an identify answer; other implementations allow as much."""

MAX_PROTOCOLS = 256
"""Protocol names that are read from one answer."""

PINGS = Rate(per_s=20.0, burst=100.0)
"""Pings answered on one stream. Other nodes measure a round trip every second or so. A flood of pings would cost a
scheduler turn each."""


def identify_handler(
    identity: Identity, addresses: Callable[[], list[str]], protocols: Callable[[], list[str]]
) -> StreamHandler:
    """Return the handler that answers identify with what this node says of itself."""

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
    """A peer's claims about itself. `observed` is where it sees us; None if it does not say, or we cannot be there."""

    agent: str
    protocols: frozenset[str]
    addresses: tuple[Address, ...]
    observed: Address | None


async def read_introduction(stream: Stream) -> Introduced:
    """Read a peer's answer on a stream of IDENTIFY_PROTOCOL. Raises PeerError, StreamBroken."""
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
