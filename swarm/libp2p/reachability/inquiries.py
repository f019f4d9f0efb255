"""Ask a peer on a connection where it sees us, and whether it is still there."""

from __future__ import annotations

from contextlib import suppress

import trio

from protocol.core.errors import PeerError
from protocol.core.ids import PeerId
from swarm.libp2p.connection import Connection
from swarm.libp2p.identify import IDENTIFY_PROTOCOL, PING_BYTES, PING_PROTOCOL, Introduced, read_introduction
from swarm.libp2p.reachability.hosting import Hosting
from swarm.transport.interface import TransportError

IDENTIFY_S = 10.0

PING_TIMEOUT_S = 5.0
"""Seconds for a peer to answer after we slept or moved, or after it came to us in another way, as a peer does that has
lost the connection. Without an answer it counts as dead. A full link takes one second."""


async def identify(host: Hosting, connection: Connection) -> Introduced | None:
    """Return what a peer says of itself and of us; None if it does not answer."""
    with suppress(TransportError, PeerError, trio.TooSlowError), trio.fail_after(IDENTIFY_S):
        stream = await host.open_stream_on(connection, IDENTIFY_PROTOCOL)
        try:
            return await read_introduction(stream)
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()
    return None


async def check_alive(host: Hosting, connection: Connection, cause: str) -> None:
    """End a connection on which nobody answers any more."""
    try:
        with trio.fail_after(PING_TIMEOUT_S):
            ping = await host.open_stream_on(connection, PING_PROTOCOL, bytes(PING_BYTES))
            await ping.receive_some(PING_BYTES)
            await ping.aclose()
    except TransportError:
        pass  # the peer does not accept a ping, so it is there; or the connection is ending by itself
    except trio.TooSlowError:
        connection.muxer.break_off(f"nobody answered within {PING_TIMEOUT_S:.0f} s after {cause}")


async def check_others_alive(host: Hosting, peer: PeerId, but: Connection) -> None:
    """End the other connections to a peer on which nobody answers any more: it came to us in another way."""
    async with trio.open_nursery() as nursery:
        for connection in host.connections_to(peer):
            if connection is not but:
                nursery.start_soon(check_alive, host, connection, "the peer came another way")
