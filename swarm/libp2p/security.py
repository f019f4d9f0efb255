"""Turn a TCP connection, or a circuit, into a secure one: a libp2p security transport below, bytes for the muxer above.

TLS comes first because it is faster; noise is for peers that speak nothing else. A peer that fails in TLS is not asked
again in noise: it failed because it is not the peer that it should be.

TLS is proposed together with its first message, and agrees on the muxer as well: one round trip in place of three. That
first message is public, and reveals nothing about us. Rust's multistream-select calls this "V1Lazy". A peer that speaks
only noise must be connected to once more (`haste`).

Invariants:

- Security is chosen from an explicit table: our TLS, then noise, never plaintext or secio. Any `ISecureTransport` may
  take a place in it.
- The dialler checks that the peer is the one that it wanted.
- Every error that a peer causes in the handshake or the cipher leaves here as `HandshakeFailed` or `ConnectionLost`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from libp2p.abc import ISecureConn, ISecureTransport
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.security.noise.transport import Transport as NoiseTransport

from protocol.core.ids import PeerId
from swarm.libp2p.circuit import CircuitConnection
from swarm.libp2p.multistream import NegotiationFailed, PeerProposes, answer, propose, propose_at_once
from swarm.libp2p.sockets.tcp import TcpConnection
from swarm.libp2p.tls.transport import TLS_PROTOCOL, PeerIsClientToo, TlsConnection, TlsTransport
from swarm.libp2p.yamux.connection import YAMUX_PROTOCOL
from swarm.libp2p.yamux.driving import ConnectionLost

TLS, NOISE = str(TLS_PROTOCOL), str(NOISE_PROTOCOL)

SecurityTable = Mapping[TProtocol, ISecureTransport]
"""Security protocols that we speak, the preferred one first."""

RawConnection = TcpConnection | CircuitConnection
"""The connection below a secure one."""

Errors = tuple[type[Exception], ...]

OURS: Errors = (BaseLibp2pError, NegotiationFailed, OSError)
"""All that a peer can make our own handshake, cipher and socket raise. Anything else is our bug, and is raised on."""

FOREIGN: Errors = (Exception,)
"""All that a peer can make noise raise: libp2p, noise and cryptography have their own errors, and all mean the same."""

logging.getLogger("libp2p").setLevel(logging.CRITICAL + 1)


class HandshakeFailed(Exception):
    """The peer could not be authenticated, or was not the wanted one. The message says which."""


class BothDialled(HandshakeFailed):
    """The peer dialled us from the port that we dialled, and TCP made one connection of both (simultaneous open).

    So both ends act as clients. libp2p has an extension that decides who is the server, but it costs each connection a
    message, for a case that hardly ever happens. The caller dials again from another port, where dials cannot cross.
    """


class NotTakenAtOnce(HandshakeFailed):
    """The peer did not accept our preferred protocol at once. To find out what it speaks, connect to it again."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One node's key, and the peer id that follows from it."""

    key_pair: KeyPair
    peer_id: PeerId

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Return the identity of an Ed25519 private key, 32 bytes."""
        key_pair = create_new_key_pair(seed)
        return cls(key_pair=key_pair, peer_id=PeerId(ID.from_pubkey(key_pair.public_key).to_base58()))


def security_table(identity: Identity, protocols: Sequence[str] = (TLS, NOISE)) -> SecurityTable:
    """Return `protocols` with fresh keys, in their order."""
    make: dict[str, Callable[[], ISecureTransport]] = {
        TLS: lambda: TlsTransport(identity.key_pair, [YAMUX_PROTOCOL]),
        NOISE: lambda: NoiseTransport(identity.key_pair, noise_privkey=create_new_x25519_key_pair().private_key),
    }
    return {TProtocol(protocol): make[protocol]() for protocol in protocols}


class SecureChannel:
    """Carry bytes, authenticated and encrypted, to and from `remote`."""

    def __init__(self, connection: ISecureConn, raw: RawConnection, errors: Errors = OURS) -> None:
        self.hurry = raw.hurry
        self.aclose = connection.close
        self.read, self.write = connection.read, connection.write  # for negotiation
        self.remote = PeerId(connection.get_remote_peer().to_base58())
        self.muxer: str = getattr(connection, "muxer", "")
        """The muxer that is already agreed; "" if it is still to be negotiated."""
        self.at_once = connection if isinstance(connection, TlsConnection) and connection.socket is not None else None
        """The secure connection, if it can be read and written without waiting; else None."""
        self._connection = connection
        self._errors = errors
        self._expect: Callable[[int], None] = getattr(connection, "expect", lambda size: None)

    async def receive(self, expected: int) -> bytes:
        """Wait for at least one byte. Raises ConnectionLost."""
        self._expect(expected)
        try:
            return await self._connection.read(None)
        except self._errors as error:
            raise ConnectionLost(_reason(error)) from error

    async def send(self, data: bytes) -> None:
        """Send all of `data`. Raises ConnectionLost. After a cancelled send the connection cannot be used."""
        try:
            await self._connection.write(data)
        except self._errors as error:
            raise ConnectionLost(_reason(error)) from error


async def secure_outbound(
    raw: RawConnection, table: SecurityTable, wanted: PeerId, muxer: str, *, at_once: bool = True
) -> SecureChannel:
    """Secure a connection that we dialled and agree on `muxer`. Raises HandshakeFailed, or its subclass BothDialled.

    With `at_once` it raises NotTakenAtOnce where the attempt might succeed without.
    """
    errors = OURS
    try:
        best = next(iter(table))
        transport = table[best]
        if at_once and isinstance(transport, TlsTransport):
            begin = partial(_begin, raw, best)
            connection = await transport.secure_outbound(raw, ID.from_base58(wanted), begin)
        else:
            chosen = await propose(raw, list(table))
            errors = _errors_of(chosen)
            connection = await table[TProtocol(chosen)].secure_outbound(raw, ID.from_base58(wanted))
        channel = SecureChannel(connection, raw, errors)
        if channel.remote != wanted:
            raise HandshakeFailed(f"{channel.remote} answered instead of {wanted}")
        if channel.muxer != muxer:
            await propose(channel, [muxer])
    except (PeerProposes, PeerIsClientToo) as error:
        raise BothDialled(_reason(error)) from error
    except PeerIDMismatchesPubkey as error:
        raise HandshakeFailed(f"another peer answered instead of {wanted}: {error}") from error
    except HandshakeFailed:
        raise
    except errors as error:
        raise HandshakeFailed(_reason(error)) from error
    return channel


async def secure_inbound(
    raw: RawConnection, table: SecurityTable, muxer: str, note_progress: Callable[[], None] = lambda: None
) -> SecureChannel:
    """Secure a connection that we accepted, agree on `muxer`, and call `note_progress` at each step.

    Raises HandshakeFailed.
    """
    errors = OURS
    try:
        chosen = await answer(raw, lambda name: name in table)
        note_progress()
        errors = _errors_of(chosen)
        channel = SecureChannel(await table[TProtocol(chosen)].secure_inbound(raw), raw, errors)
        note_progress()
        if channel.muxer != muxer:
            await answer(channel, lambda name: name == muxer)
    except errors as error:
        raise HandshakeFailed(_reason(error)) from error
    return channel


async def _begin(raw: RawConnection, protocol: str, first: bytes) -> None:
    """Propose `protocol` at once. Raises PeerProposes, NotTakenAtOnce."""
    try:
        await propose_at_once(raw, protocol, first)
    except PeerProposes:
        raise
    except (NegotiationFailed, ConnectionClosedError) as error:  # a circuit that ends may lose the peer's "na"
        raise NotTakenAtOnce(_reason(error)) from error


def _errors_of(protocol: str) -> Errors:
    return OURS if protocol == TLS else FOREIGN


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
