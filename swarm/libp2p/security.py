"""From a TCP connection to a secure one: exact reads below, a libp2p security transport in the middle, bytes above.

What always holds: security is chosen from an explicit table (noise and nothing else, never plaintext or secio), whoever
dials checks that the peer is the one it wanted, and whatever the handshake or the cipher raises leaves here as
`HandshakeFailed` or `ConnectionLost`. Any `ISecureTransport` may take noise's place in the table.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import trio
from libp2p.abc import IRawConnection, ISecureConn, ISecureTransport
from libp2p.connection_types import ConnectionType
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
from libp2p.custom_types import TProtocol
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.security.noise.transport import Transport as NoiseTransport
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.ids import PeerId
from swarm.libp2p.addresses import from_socket
from swarm.libp2p.multistream import answer, propose
from swarm.libp2p.yamux import ConnectionLost

RECEIVE_BYTES = 256 * 1024
"""Asked of the socket in one read: four noise messages, and few system calls."""

WRITE_DEADLINE_S = 30.0
"""For one noise message, 64 KiB at most. A connection slower than 2 KiB/s is as good as dead."""

SecurityTable = Mapping[TProtocol, ISecureTransport]
"""Security protocols we speak, the preferred one first."""

logging.getLogger("libp2p").setLevel(logging.CRITICAL + 1)


class HandshakeFailed(Exception):
    """The peer could not be authenticated, or was not the one wanted. The message says which."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One node's key and the name that follows from it."""

    key_pair: KeyPair
    peer_id: PeerId

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Return the identity of an Ed25519 private key, 32 bytes."""
        key_pair = create_new_key_pair(seed)
        return cls(key_pair=key_pair, peer_id=PeerId(ID.from_pubkey(key_pair.public_key).to_base58()))


def noise_only(identity: Identity) -> SecurityTable:
    """Return the default table: noise, with a fresh static key."""
    static_key = create_new_x25519_key_pair().private_key
    return {NOISE_PROTOCOL: NoiseTransport(identity.key_pair, noise_privkey=static_key)}


class RawConnection(IRawConnection):
    """A TCP connection as libp2p's security transports want it; `read(n)` returns exactly `n` bytes."""

    def __init__(self, stream: trio.SocketStream, *, is_initiator: bool) -> None:
        self.is_initiator = is_initiator
        self.remote = from_socket(stream.socket.getpeername())
        self._stream = stream
        self._buffer = bytearray()

    async def read(self, n: int | None = None) -> bytes:
        while len(self._buffer) < (1 if n is None else n):
            try:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ConnectionClosedError("the connection was reset", transport="tcp") from error
            if not data:
                raise ConnectionClosedError("the peer hung up", transport="tcp")
            self._buffer += data
        taken = bytes(self._buffer[:n])
        del self._buffer[:n]
        return taken

    async def write(self, data: bytes) -> None:
        try:
            with trio.fail_after(WRITE_DEADLINE_S):
                await self._stream.send_all(data)
        except trio.TooSlowError as error:
            reason = f"the peer took nothing for {WRITE_DEADLINE_S:.0f} s"
            raise ConnectionClosedError(reason, transport="tcp") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError("the connection was reset", transport="tcp") from error

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)

    def get_remote_address(self) -> tuple[str, int]:
        return self.remote.host, self.remote.port

    def get_transport_addresses(self) -> list[Multiaddr]:
        return [Multiaddr(str(self.remote))]

    def get_connection_type(self) -> ConnectionType:
        return ConnectionType.DIRECT


class SecureChannel:
    """An authenticated, encrypted byte channel to `remote`."""

    def __init__(self, connection: ISecureConn) -> None:
        self.remote = PeerId(connection.get_remote_peer().to_base58())
        self._connection = connection

    async def receive(self) -> bytes:
        """Wait for at least one byte. Raises ConnectionLost."""
        try:
            return await self._connection.read(None)
        except Exception as error:  # libp2p, noise and cryptography each have their own; all mean the same
            raise ConnectionLost(_reason(error)) from error

    async def send(self, data: bytes) -> None:
        """Send all of `data`. Raises ConnectionLost. Cancelling it ends the connection's use."""
        try:
            await self._connection.write(data)
        except Exception as error:
            raise ConnectionLost(_reason(error)) from error

    async def aclose(self) -> None:
        """Close at once."""
        await self._connection.close()

    async def read(self, n: int) -> bytes:
        """Return exactly `n` bytes; for negotiation."""
        return await self._connection.read(n)

    async def write(self, data: bytes) -> None:
        """Send all of `data`; for negotiation."""
        await self._connection.write(data)


async def secure_outbound(raw: RawConnection, table: SecurityTable, wanted: PeerId, muxer: str) -> SecureChannel:
    """Secure a connection we dialled and agree on `muxer`. Raises HandshakeFailed."""
    try:
        chosen = await propose(raw, list(table))
        channel = SecureChannel(await table[TProtocol(chosen)].secure_outbound(raw, ID.from_base58(wanted)))
        if channel.remote != wanted:
            raise HandshakeFailed(f"{channel.remote} answered instead of {wanted}")
        await propose(channel, [muxer])
    except PeerIDMismatchesPubkey as error:
        raise HandshakeFailed(f"another peer answered instead of {wanted}: {error}") from error
    except HandshakeFailed:
        raise
    except Exception as error:  # whatever a hostile or confused peer makes the handshake raise
        raise HandshakeFailed(_reason(error)) from error
    return channel


async def secure_inbound(raw: RawConnection, table: SecurityTable, muxer: str) -> SecureChannel:
    """Secure a connection we accepted and agree on `muxer`. Raises HandshakeFailed."""
    try:
        chosen = await answer(raw, lambda name: name in table)
        channel = SecureChannel(await table[TProtocol(chosen)].secure_inbound(raw))
        await answer(channel, lambda name: name == muxer)
    except Exception as error:  # whatever a hostile or confused peer makes the handshake raise
        raise HandshakeFailed(_reason(error)) from error
    return channel


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
