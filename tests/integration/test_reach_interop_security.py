"""Other implementations are asked for TLS at once, and agree on the muxer within it where they can.

The other tests of interoperability show that streams work over these connections.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
from libp2p.peer.peerinfo import info_from_p2p_addr
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.core.ids import PeerId
from swarm.libp2p.security import NOISE, TLS, Identity, SecureChannel, secure_inbound, secure_outbound, security_table
from swarm.libp2p.sockets.addresses import parse_address
from swarm.libp2p.sockets.tcp import TcpConnection
from swarm.libp2p.yamux.connection import YAMUX_PROTOCOL
from tests.support.partners.circuits import UNTIL_S, connection_to, ours, ping
from tests.support.partners.go_peer import go_peer
from tests.support.partners.js_peer import js_peer
from tests.support.partners.programs import needs_go, needs_js
from tests.support.partners.stock_peer import stock_peer

SEED = 7
OURS = Identity.from_seed(bytes(32))


@dataclass(frozen=True, kw_only=True)
class Partner:
    """A peer of another implementation: its address, and a function that makes it dial a peer at an address."""

    peer: PeerId
    address: str
    dial: Callable[[PeerId, str], Awaitable[object]]


Start = Callable[[str], AbstractAsyncContextManager[Partner]]
"""Starts a partner that speaks only this security protocol."""


@asynccontextmanager
async def go(security: str) -> AsyncIterator[Partner]:
    async with go_peer(SEED, {TLS: "-noise=false", NOISE: "-tls=false"}[security]) as peer:
        yield Partner(peer=peer.peer, address=peer.addresses[0], dial=peer.connect)


@asynccontextmanager
async def js(security: str) -> AsyncIterator[Partner]:
    async with js_peer(SEED, security=[{TLS: "tls", NOISE: "noise"}[security]]) as peer:

        async def dial(wanted: PeerId, address: str) -> None:
            await peer.order("dial", address=f"{address}/p2p/{wanted}")

        yield Partner(peer=peer.peer, address=peer.addresses[0], dial=dial)


@asynccontextmanager
async def stock(security: str) -> AsyncIterator[Partner]:
    async with stock_peer(SEED, security=security) as peer:

        async def dial(wanted: PeerId, address: str) -> None:
            await peer.host.connect(info_from_p2p_addr(Multiaddr(f"{address}/p2p/{wanted}")))

        yield Partner(peer=peer.peer, address=peer.addresses[0], dial=dial)


PARTNERS = [
    pytest.param(go, YAMUX_PROTOCOL, marks=needs_go, id="go"),
    pytest.param(js, YAMUX_PROTOCOL, marks=needs_js, id="js"),
    pytest.param(stock, "", id="py"),
]


@pytest.mark.parametrize(("partner", "muxer"), PARTNERS)
async def test_we_dial(partner: Start, muxer: str) -> None:
    async with partner(TLS) as other:
        stream = await trio.open_tcp_stream("127.0.0.1", parse_address(other.address).port)
        with trio.fail_after(UNTIL_S):
            raw = TcpConnection(stream, is_initiator=True)
            channel = await secure_outbound(raw, security_table(OURS), other.peer, YAMUX_PROTOCOL)
        assert (channel.remote, channel.muxer) == (other.peer, muxer)
        await channel.aclose()


@pytest.mark.parametrize(("partner", "muxer"), PARTNERS)
async def test_we_are_dialled(partner: Start, muxer: str) -> None:
    found: list[SecureChannel] = []
    secured = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        raw = TcpConnection(stream, is_initiator=False)
        found.append(await secure_inbound(raw, security_table(OURS), YAMUX_PROTOCOL))
        secured.set()
        await trio.sleep_forever()

    async with partner(TLS) as other:
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, serve, listeners)
            port = listeners[0].socket.getsockname()[1]
            nursery.start_soon(other.dial, OURS.peer_id, f"/ip4/127.0.0.1/tcp/{port}")
            with trio.fail_after(UNTIL_S):
                await secured.wait()
            nursery.cancel_scope.cancel()
        assert (found[0].remote, found[0].muxer) == (other.peer, muxer)


@pytest.mark.parametrize("security", [TLS, NOISE])
@pytest.mark.parametrize(("partner", "muxer"), PARTNERS)
async def test_whoever_speaks_noise_alone_is_reached_and_remembered(partner: Start, muxer: str, security: str) -> None:
    async with partner(security) as other, ours(1) as host:
        address = other.address if "/p2p/" in other.address else f"{other.address}/p2p/{other.peer}"
        await ping(host, await connection_to(host, address))
        assert host.haste.suits(other.peer) is (security == TLS)
