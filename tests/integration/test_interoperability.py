"""Stock py-libp2p and our host: both directions, over TLS and over noise, from identify to a chunk of weights.

The stock host is used as it comes, with one exception: one kind of it carries our TLS transport, since that is written
to fit there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from libp2p import new_host
from libp2p.abc import IHost, INetStream, ISecureTransport
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
from libp2p.custom_types import TProtocol
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.security.tls.transport import TLSTransport
from libp2p.stream_muxer.yamux.yamux import Yamux
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.core.codec import decode, encode
from protocol.core.digest import cid_of
from protocol.core.ids import PeerId
from protocol.versions import exchange
from swarm.libp2p import open_libp2p
from swarm.libp2p.identify import IDENTIFY_PROTOCOL, PING_PROTOCOL
from swarm.libp2p.security import NOISE, TLS
from swarm.libp2p.tls.transport import TlsTransport
from swarm.store import ChunkStore
from swarm.testing.transport_conformance import ECHO, echo, pattern, read_all, read_exactly
from swarm.transfer.serving import Knowledge, Serving
from swarm.transport.framing import PREFIX, FrameStream
from swarm.transport.interface import Transport
from tests.support.store_fixture import fill, small_swarm

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
SEED_A, SEED_B = b"a" * 32, b"b" * 32

SWARM = small_swarm()
FILES = {"weights.json": pattern(1_000_000)}
"""One chunk of four windows: neither side can send it without credit from the other."""
SIGNED = SWARM.publish(FILES, chunk_bytes=1 << 20)
CID = cid_of(FILES["weights.json"])


def stock_noise(keys: KeyPair) -> ISecureTransport:
    return NoiseTransport(keys, noise_privkey=create_new_x25519_key_pair().private_key)


SECURITY: dict[str, tuple[str, Callable[[KeyPair], ISecureTransport]]] = {
    "noise": (NOISE, stock_noise),
    "tls": (TLS, TLSTransport),
    "tls of ours": (TLS, TlsTransport),
}
each_security = pytest.mark.parametrize("security", SECURITY)


@asynccontextmanager
async def stock_host(security: str) -> AsyncIterator[tuple[IHost, str]]:
    """Yield a stock py-libp2p host that speaks one security protocol and echoes ECHO, and its address."""
    keys = create_new_key_pair(SEED_B)
    protocol, make = SECURITY[security]
    host = new_host(
        key_pair=keys,
        sec_opt={TProtocol(protocol): make(keys)},
        muxer_opt={TProtocol("/yamux/1.0.0"): Yamux},
    )

    async def echo_stock(stream: INetStream) -> None:
        data = await stream.read(1000)
        await stream.write(data)
        await stream.close()

    host.set_stream_handler(TProtocol(ECHO), echo_stock)
    async with host.run(listen_addrs=[Multiaddr(LOOPBACK)]):
        yield host, str(host.get_addrs()[0])


async def stock_stream(stock: IHost, ours: Transport, protocol: str) -> INetStream:
    """Return a stream that the stock host opens to us, dialling if need be."""
    info = info_from_p2p_addr(Multiaddr(ours.addresses()[0]))
    await stock.connect(info)
    return await stock.new_stream(info.peer_id, [TProtocol(protocol)])


async def stock_read(stream: INetStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await stream.read(size - len(data))
    return data


async def stock_frame(stream: INetStream) -> bytes:
    """Return one of our frames, read by the stock host."""
    (size,) = PREFIX.unpack(await stock_read(stream, PREFIX.size))
    return await stock_read(stream, size)


def introduced(data: bytes) -> Identify:
    """Return the message of an identify stream, without its length."""
    message = Identify()
    message.ParseFromString(data[2:] if data[0] >= 0x80 else data[1:])
    return message


@each_security
async def test_we_dial_the_stock_host(security: str) -> None:
    async with stock_host(security) as (stock, address), open_libp2p(SEED_A, []) as ours:
        peer = await ours.dial([address])
        assert peer == str(stock.get_id())
        stream = await ours.open_stream(peer, ECHO)
        await stream.send_all(b"hello stock")
        assert await read_all(stream) == b"hello stock"
        ping = await ours.open_stream(peer, PING_PROTOCOL)
        await ping.send_all(b"p" * 32)
        assert await read_exactly(ping, 32) == b"p" * 32
        identify = introduced(await read_all(await ours.open_stream(peer, IDENTIFY_PROTOCOL)))
        assert identify.public_key == create_new_key_pair(SEED_B).public_key.serialize()


@each_security
async def test_the_stock_host_dials_us(security: str) -> None:
    async with stock_host(security) as (stock, _), open_libp2p(SEED_A, [LOOPBACK]) as ours:
        ours.handle(ECHO, echo)
        stream = await stock_stream(stock, ours, ECHO)
        sent = pattern(200_000)
        await stream.write(sent)
        assert await stock_read(stream, len(sent)) == sent
        ping = await stock_stream(stock, ours, PING_PROTOCOL)
        await ping.write(b"p" * 32)
        assert await stock_read(ping, 32) == b"p" * 32
        identify = introduced(await (await stock_stream(stock, ours, IDENTIFY_PROTOCOL)).read(4096))
        assert (identify.agent_version, ECHO in identify.protocols) == ("volery", True)
        assert ours.connected_peers() == {PeerId(str(stock.get_id()))}


@each_security
async def test_the_stock_host_asks_us_for_a_chunk(security: str, tmp_path: Path) -> None:
    knowledge = Knowledge(genesis=SWARM.genesis, newest=lambda: b"", peers=list)
    request = encode(exchange.Request(cid=CID))
    with ChunkStore.open(tmp_path / "store", SWARM.authority) as store:
        fill(store, SIGNED, FILES)
        async with stock_host(security) as (stock, _), open_libp2p(SEED_A, [LOOPBACK]) as ours:
            Serving(transport=ours, store=store, knowledge=knowledge).start()
            stream = await stock_stream(stock, ours, exchange.CHUNKS)
            await stream.write(PREFIX.pack(len(request)) + request)
            answer = decode(exchange.ChunkAnswer, await stock_frame(stream), exchange.MAX_CHUNK_FRAME_BYTES)
        assert answer == exchange.Chunk(cid=CID, data=FILES["weights.json"])


@each_security
async def test_we_ask_the_stock_host_for_a_chunk(security: str) -> None:
    async def serve(stream: INetStream) -> None:
        request = decode(exchange.ChunkRequest, await stock_frame(stream), 1000)
        assert request == exchange.Request(cid=CID)
        chunk = encode(exchange.Chunk(cid=CID, data=FILES["weights.json"]))
        await stream.write(PREFIX.pack(len(chunk)) + chunk)
        await stream.close()

    async with stock_host(security) as (stock, address), open_libp2p(SEED_A, []) as ours:
        stock.set_stream_handler(TProtocol(exchange.CHUNKS), serve)
        stream = await ours.open_stream(await ours.dial([address]), exchange.CHUNKS)
        frames = FrameStream(stream, exchange.MAX_CHUNK_FRAME_BYTES)
        await frames.send(exchange.Request(cid=CID))
        with trio.fail_after(30):
            answer = await frames.receive(exchange.ChunkAnswer)
        assert answer == exchange.Chunk(cid=CID, data=FILES["weights.json"])
