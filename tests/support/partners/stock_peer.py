"""Run a peer of stock py-libp2p 0.8.1 in this process: its host, its relay, its circuits and its hole punching."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from libp2p import new_host
from libp2p.abc import IHost, INetConn, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.relay.circuit_v2.config import RelayConfig, RelayRole
from libp2p.relay.circuit_v2.dcutr import DCUtRProtocol
from libp2p.relay.circuit_v2.protocol import PROTOCOL_ID, CircuitV2Protocol
from libp2p.relay.circuit_v2.transport import CircuitV2Transport
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.security.tls.transport import TLSTransport
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.core.ids import PeerId
from swarm.libp2p.identify import PING_BYTES, PING_PROTOCOL
from swarm.libp2p.security import NOISE, TLS
from tests.support.partners.circuits import LOOPBACK


@dataclass(frozen=True, kw_only=True)
class StockPeer:
    """A running host, and the orders to it."""

    host: IHost
    peer: PeerId
    relay: CircuitV2Protocol
    transport: CircuitV2Transport
    punching: DCUtRProtocol

    @property
    def addresses(self) -> list[str]:
        """Return its addresses, with its name at the end."""
        return [str(address) for address in self.host.get_addrs()]

    async def connect(self, address: str) -> ID:
        """Dial a peer directly."""
        info = info_from_p2p_addr(Multiaddr(address))
        await self.host.connect(info)
        return info.peer_id

    async def reserve(self, relay: str) -> bool:
        """Ask a relay for a reservation; return whether it was granted."""
        peer = await self.connect(relay)
        stream = await self.host.new_stream(peer, [PROTOCOL_ID])
        granted = await self.transport._make_reservation(stream, peer)
        await stream.close()
        return granted

    async def circuit_to(self, address: str) -> INetConn:
        """Return a circuit to the peer at this address. Raises the library's own errors."""
        return await self.transport.dial(Multiaddr(address))

    async def open_stream(self, peer: PeerId, protocol: str) -> INetStream:
        """Return a stream to a connected peer, perhaps over a circuit."""
        return await self.host.new_stream(ID.from_base58(peer), [TProtocol(protocol)])


async def stock_pings(stock: StockPeer, peer: PeerId) -> None:
    """Have it open a stream to a connected peer, and echo over it."""
    stream = await stock.open_stream(peer, PING_PROTOCOL)
    await stream.write(bytes(PING_BYTES))
    assert await stream.read(PING_BYTES) == bytes(PING_BYTES)
    await stream.close()


@asynccontextmanager
async def stock_peer(
    seed: int,
    *,
    relays: bool = False,
    punches: bool = False,
    is_client: bool = False,
    security: str = NOISE,
) -> AsyncIterator[StockPeer]:
    """Run a host on loopback that ends with the scope.

    Args:
        seed: seed of its key.
        relays: whether it is a relay.
        punches: whether it speaks DCUtR.
        is_client: whether it reserves with a relay before each circuit.
        security: the one security protocol that it speaks.
    """
    keys = create_new_key_pair(bytes([seed]) * 32)
    noise = NoiseTransport(keys, noise_privkey=create_new_x25519_key_pair().private_key)
    host = new_host(
        key_pair=keys,
        sec_opt={TProtocol(security): {NOISE: noise, TLS: TLSTransport(keys)}[security]},
        muxer_opt={TProtocol("/yamux/1.0.0"): Yamux},
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(host.run(listen_addrs=[Multiaddr(LOOPBACK)]))
        roles = RelayRole.STOP
        if relays:
            roles |= RelayRole.HOP
        if is_client:
            roles |= RelayRole.CLIENT
        config = RelayConfig(roles=roles)
        relay = CircuitV2Protocol(host, config.limits, allow_hop=relays)
        transport = CircuitV2Transport(host, relay, config)
        punching = DCUtRProtocol(host)
        await stack.enter_async_context(background_trio_service(relay))
        if punches:
            await stack.enter_async_context(background_trio_service(punching))
            await punching.event_started.wait()
        await relay.event_started.wait()
        yield StockPeer(host=host, peer=PeerId(str(host.get_id())), relay=relay, transport=transport, punching=punching)
