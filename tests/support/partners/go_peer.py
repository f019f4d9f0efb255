"""Run a peer of go-libp2p 0.32.1: its daemon as a process on loopback, with the daemon's control protocol.

    request, response = uvarint length | protobuf       one of each on a connection to the daemon's unix socket
    STREAM_OPEN: after the response the connection is the stream

Messages of the protocol are few and flat, so they are written and read here field by field (`p2pd.proto` in the wheel).
The daemon listens on loopback, maps no ports, announces itself nowhere, and has only the bootstrap peers that we name.
It contacts no other peer.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from libp2p.crypto.pb.crypto_pb2 import KeyType, PrivateKey
from libp2p.peer.id import ID
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.core.ids import PeerId
from swarm.libp2p.identify import PING_BYTES, PING_PROTOCOL
from swarm.libp2p.reachability.wire import uvarint
from swarm.libp2p.security import Identity
from tests.support.partners.programs import P2PD

IDENTIFY, CONNECT, STREAM_OPEN, LIST_PEERS = 0, 1, 2, 5

START_S = 60.0
"""Seconds until the daemon must listen: it unpacks itself first."""

SAID_S = 120.0
LOOK_AGAIN_S = 0.05
"""Seconds between two looks at its log, which is a file and gives no signal."""

Fields = dict[int, list[bytes | int]]


class GoError(Exception):
    """The daemon's reason why it did not do something."""


@dataclass(frozen=True, kw_only=True)
class GoPeer:
    """A running daemon, and the requests to it."""

    peer: PeerId
    addresses: list[str]
    """Its addresses, with its name at the end."""
    control: Path
    log: Path
    """Its log, about its search for relays and its errors."""

    async def until_said(self, what: str) -> None:
        """Wait until this is in its log."""
        with trio.fail_after(SAID_S):
            while what not in self.log.read_text(encoding="utf-8"):
                await trio.sleep(LOOK_AGAIN_S)

    async def connect(self, peer: PeerId, *addresses: str) -> None:
        """Dial a peer at these addresses, circuits among them. Raises GoError."""
        raw = [Multiaddr(address).to_bytes() for address in addresses]
        asked = _field(1, _id(peer)) + b"".join(_field(2, one) for one in raw) + _field(3, 20)
        _, stream = await self._ask(_field(1, CONNECT) + _field(2, asked))
        await stream.aclose()

    async def open_stream(self, peer: PeerId, protocol: str) -> trio.SocketStream:
        """Return a stream to a connected peer. Raises GoError."""
        asked = _field(1, _id(peer)) + _field(2, protocol.encode()) + _field(3, 20)
        _, stream = await self._ask(_field(1, STREAM_OPEN) + _field(3, asked))
        return stream

    async def connected(self) -> dict[PeerId, list[str]]:
        """Return the connected peers with their addresses, circuits included."""
        answer, stream = await self._ask(_field(1, LIST_PEERS))
        await stream.aclose()
        found: dict[PeerId, list[str]] = {}
        for raw in answer.get(6, []):
            info = _parse(_bytes(raw))
            peer = PeerId(ID(_bytes(info[1][0])).to_base58())
            found.setdefault(peer, []).extend(str(Multiaddr(_bytes(one))) for one in info.get(2, []))
        return found

    async def _ask(self, request: bytes) -> tuple[Fields, trio.SocketStream]:
        stream = await trio.open_unix_socket(str(self.control))
        try:
            await stream.send_all(uvarint(len(request)) + request)
            answer = _parse(await _exactly(stream, await _length(stream)))
            if answer[1] != [0]:
                raise GoError(_bytes(_parse(_bytes(answer[2][0]))[1][0]).decode())
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return answer, stream


def go_name(seed: int) -> PeerId:
    """Return the name of the peer that `go_peer` will be."""
    return Identity.from_seed(bytes([seed]) * 32).peer_id


@asynccontextmanager
async def go_peer(seed: int, *flags: str) -> AsyncIterator[GoPeer]:
    """Run a daemon on a port of its own of loopback; it ends with the scope."""
    with TemporaryDirectory(prefix="go-") as directory:  # a socket's path must be short
        async with _daemon(Path(directory), seed, flags) as peer:
            yield peer


@asynccontextmanager
async def go_behind(relay: str, seed: int, *flags: str) -> AsyncIterator[GoPeer]:
    """Run a peer of go-libp2p that believes that it cannot be dialled, and is reached through the relay at this
    address.

    Its search for relays wants a DHT. It is a client, and knows only the relay.
    """
    reached = ["-autoRelay", "-forceReachabilityPrivate", "-trustedRelays", relay, "-dhtClient"]
    async with go_peer(seed, "-relayService=false", *reached, "-bootstrapPeers", relay, *flags) as peer:
        yield peer


async def go_pings(go: GoPeer, peer: PeerId) -> None:
    """Have the daemon open a stream to a connected peer, and echo over it."""
    stream = await go.open_stream(peer, PING_PROTOCOL)
    async with stream:
        await stream.send_all(bytes(PING_BYTES))
        assert await stream.receive_some(PING_BYTES) == bytes(PING_BYTES)


@asynccontextmanager
async def _daemon(directory: Path, seed: int, flags: Sequence[str]) -> AsyncIterator[GoPeer]:
    identity = Identity.from_seed(bytes([seed]) * 32)
    key = PrivateKey(
        key_type=KeyType.Ed25519,
        data=bytes([seed]) * 32 + identity.key_pair.public_key.to_bytes(),
    )
    path = directory / "key"
    path.write_bytes(key.SerializeToString())
    control = directory / "control.sock"
    command = [str(P2PD), "-listen", f"/unix{control}", "-id", str(path), "-hostAddrs", "/ip4/127.0.0.1/tcp/0"]
    log = directory / "log"
    with log.open("wb") as said_of_itself:
        process = await trio.lowlevel.open_process(
            [*command, "-relayDiscovery=false", *flags],
            stdout=subprocess.PIPE,
            stderr=said_of_itself,
            cwd=directory,
            env=os.environ | {"GOLOG_LOG_LEVEL": "error,autorelay=debug"},
        )
    try:
        with trio.fail_after(START_S):
            said = b""
            while said.count(b"/ip4/127.0.0.1/tcp/") < 1 or not said.endswith(b"\n"):
                assert process.stdout is not None
                said += (piece := await process.stdout.receive_some())
                assert piece, f"go-libp2p's daemon ended before it listened: {log.read_text()}"
        address = next(line for line in said.decode().splitlines() if line.startswith("/ip4/127.0.0.1/tcp/"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_drain, process)
            named = f"{address}/p2p/{identity.peer_id}"
            yield GoPeer(peer=identity.peer_id, addresses=[named], control=control, log=log)
            nursery.cancel_scope.cancel()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def _drain(process: trio.Process) -> None:
    assert process.stdout is not None
    while await process.stdout.receive_some():
        pass


def _id(peer: PeerId) -> bytes:
    return ID.from_base58(peer).to_bytes()


def _field(number: int, value: bytes | int) -> bytes:
    """Return one field of a protobuf message: a varint, or bytes."""
    if isinstance(value, int):
        return uvarint(number << 3) + uvarint(value)
    return uvarint(number << 3 | 2) + uvarint(len(value)) + value


def _parse(data: bytes) -> Fields:
    """Return all fields of a message, by number."""
    found: Fields = {}
    at = 0

    def read_number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            octet = data[at]
            at, value, shift = at + 1, value | (octet & 0x7F) << shift, shift + 7
            if octet < 0x80:
                return value

    while at < len(data):
        key = read_number()
        value = read_number()
        if key & 7 == 2:
            found.setdefault(key >> 3, []).append(data[at : at + value])
            at += value
        else:
            found.setdefault(key >> 3, []).append(value)
    return found


def _bytes(value: bytes | int) -> bytes:
    assert isinstance(value, bytes)
    return value


async def _length(stream: trio.SocketStream) -> int:
    value = shift = 0
    while (octet := (await _exactly(stream, 1))[0]) >= 0x80:
        value, shift = value | (octet & 0x7F) << shift, shift + 7
    return value | octet << shift


async def _exactly(stream: trio.SocketStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        if not piece:
            raise GoError("the daemon hung up")
        data += piece
    return bytes(data)
