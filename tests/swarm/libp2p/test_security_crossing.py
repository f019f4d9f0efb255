"""Two ends that take themselves for the client, over a connection that is real."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from swarm.libp2p.security import (
    NOISE,
    TLS,
    BothDialled,
    HandshakeFailed,
    Identity,
    SecurityTable,
    secure_outbound,
    security_table,
)
from swarm.libp2p.sockets.tcp import TcpConnection
from swarm.libp2p.yamux.connection import YAMUX_PROTOCOL

IDENTITIES = [Identity.from_seed(bytes([number]) * 32) for number in (1, 2)]


@pytest.mark.parametrize("offered", [[[TLS], [TLS]], [[TLS, NOISE], [TLS, NOISE]], [[TLS, NOISE], [NOISE, TLS]]])
async def test_both_are_told_that_both_dialled(offered: list[list[str]]) -> None:
    """As it is where their packets cross: TCP then has no listener."""
    tables = [security_table(one, names) for one, names in zip(IDENTITIES, offered, strict=True)]
    for error in await failures(tables):
        assert type(error) is BothDialled


async def test_in_noise_it_fails_as_any_handshake_does() -> None:
    """Nobody speaks noise with us who could speak TLS, so only others meet like this."""
    for error in await failures([security_table(one, [NOISE]) for one in IDENTITIES]):
        assert isinstance(error, HandshakeFailed)


async def failures(tables: Sequence[SecurityTable]) -> list[HandshakeFailed]:
    """What comes of a connection whose ends both speak first."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        ends = [await trio.testing.open_stream_to_socket_listener(listener), await listener.accept()]
    found: list[HandshakeFailed] = []

    async def speak(stream: trio.SocketStream, table: SecurityTable, wanted: Identity) -> None:
        async with stream:
            raw = TcpConnection(stream, is_initiator=True)
            with pytest.raises(HandshakeFailed) as raised:
                await secure_outbound(raw, table, wanted.peer_id, YAMUX_PROTOCOL)
            found.append(raised.value)

    async with trio.open_nursery() as nursery:
        for stream, table, wanted in zip(ends, tables, reversed(IDENTITIES), strict=True):
            nursery.start_soon(speak, stream, table, wanted)
    return found
