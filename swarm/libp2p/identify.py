"""The two protocols that every libp2p node is expected to answer: identify and ping.

Identify tells a peer our key, our protocols and the address we see it at; it tells nobody else anything.
Specifications: https://github.com/libp2p/specs/tree/master/identify and .../ping.
"""

from __future__ import annotations

from collections.abc import Callable

import trio
from libp2p.identity.identify.pb.identify_pb2 import Identify
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from swarm.libp2p.security import Identity
from swarm.transport.event_rate import Bucket, Rate
from swarm.transport.interface import Stream, StreamHandler

IDENTIFY_PROTOCOL = "/ipfs/id/1.0.0"
PING_PROTOCOL = "/ipfs/ping/1.0.0"
PING_BYTES = 32
AGENT = "volery"

PINGS = Rate(per_s=20.0, burst=100.0)
"""Answered on one stream. Others measure a round trip every second or so; a bulk of pings would be a task's turn
each."""


def identify_handler(
    identity: Identity, addresses: Callable[[], list[str]], protocols: Callable[[], list[str]]
) -> StreamHandler:
    """Return the handler that introduces us."""

    async def introduce(stream: Stream) -> None:
        listening = [Multiaddr(address.partition("/p2p/")[0]).to_bytes() for address in addresses()]
        message = Identify(
            protocol_version="ipfs/0.1.0",
            agent_version=AGENT,
            public_key=identity.key_pair.public_key.serialize(),
            listen_addrs=listening,
            protocols=protocols(),
        ).SerializeToString()
        await stream.send_all(_uvarint(len(message)) + message)

    return introduce


async def answer_ping(stream: Stream) -> None:
    """Echo pings until the peer ends its stream, no faster than PINGS."""
    bucket = Bucket(rate=PINGS)
    while data := await stream.receive_some(PING_BYTES):
        await stream.send_all(data)
        await trio.sleep(bucket.charge(1.0, trio.current_time()))


def _uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(encoded) + bytes([value])
