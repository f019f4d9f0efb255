"""Shake hands and carry bytes with libp2p's TLS 1.3 transport, `/tls/1.0.0`, on OpenSSL in memory.

pyOpenSSL does the handshake and the cipher; this module carries bytes between it and a raw connection. Python's own
`ssl` would not do: it takes keys only from files, and cannot ask a client for a self-signed certificate.

This transport fits py-libp2p's `sec_opt`, and any other place that takes an `ISecureTransport`. A caller that passes
`muxers` must look at `TlsConnection.muxer` before it negotiates one.
Specifications: https://github.com/libp2p/specs/blob/master/tls/tls.md and
https://github.com/libp2p/specs/blob/master/connections/inlined-muxer-negotiation.md.

Invariants:

- Both sides have shown a certificate that `certificate.verify` accepts before any byte of either is passed on. The
  dialler has also found the peer that it wanted.
- TLS 1.3 and nothing older; no name is sent; no session is resumed.
- Keys stay in memory. Each transport makes a TLS key of its own, which its host key signs.
- Everything that a peer sends is bounded before it is understood: a record by TLS, a certificate by `verify`, and the
  bytes that wait for decryption by one read of the connection below.
- Reads are large: all that has arrived is decrypted together.
- A muxer that both sides know is agreed by ALPN, within the handshake, so nobody between them can change it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import trio
from cryptography.hazmat.primitives.asymmetric import ec
from libp2p.abc import IRawConnection, ISecureConn, ISecureTransport
from libp2p.connection_types import ConnectionType
from libp2p.crypto.ed25519 import Ed25519PublicKey
from libp2p.crypto.keys import KeyPair
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.security.base_session import BaseSession
from libp2p.security.exceptions import HandshakeFailure
from multiaddr import Multiaddr  # type: ignore[import-untyped]
from OpenSSL import SSL, crypto

from protocol.core.ids import PublicKey
from swarm.libp2p.sockets.tcp import TcpConnection
from swarm.libp2p.tls.certificate import CertificateRefused, issue, verify
from swarm.libp2p.tls.record_io import MAX_RECORDS, RECORD_BYTES, WRITE_BYTES, Scratch
from swarm.libp2p.tls.records import RecordTracker
from swarm.transport.receive_buffer import Arrivals

TLS_PROTOCOL = TProtocol("/tls/1.0.0")

ALPN = b"libp2p"
"""Means that the muxer is negotiated afterwards, for peers that cannot agree on it by ALPN. It comes after the muxers'
own names."""

CIPHERS = b"TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
"""All customary ones of TLS 1.3, the fastest first: AES-128 has two thirds of the rounds of AES-256."""

PARTIAL_WRITE = 0x1
"""OpenSSL's SSL_MODE_ENABLE_PARTIAL_WRITE, which pyOpenSSL sets without a name for it: one call for each record."""

MAX_OTHER_RECORDS = 1000
"""Records without data on one connection: the handshake's, and changes of keys. Honest peers change keys once in 2^24
records or never. OpenSSL answers each change, and the answer waits in memory until we write."""

CLIENT_HELLO = re.compile(rb"\x16....\x01", re.DOTALL)
"""A handshake record, its version and length, and the start of a client's first message."""

HEAD_BYTES = 6
"""Bytes that CLIENT_HELLO needs."""

CLOSE_S = 0.05
"""Seconds that closing waits for the good-bye to fit into the socket. It always fits, unless the peer reads nothing."""


Send = Callable[[bytes], Awaitable[None]]
"""Sends bytes to the peer."""


class TlsHandshakeFailed(HandshakeFailure):
    """The peer does not speak this TLS, showed no valid certificate, or is another peer. The message says which."""


class PeerIsClientToo(TlsHandshakeFailed):
    """Both ends dialled, their packets crossed, and TCP made one connection of both, which has no server."""


class TlsTransport(ISecureTransport):
    """Secure connections in the name of `key_pair`, an Ed25519 key, and agree on one of `muxers`, the best first."""

    def __init__(self, key_pair: KeyPair, muxers: Sequence[str] = ()) -> None:
        self._key_pair = key_pair
        self._above = [*(muxer.encode() for muxer in muxers), ALPN]
        self._context = _context(key_pair, self._above)
        self._scratch = Scratch()

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        """Shake hands with the peer that dialled us. Raises TlsHandshakeFailed, and what `conn` raises."""
        return await self._shake_hands(conn, None)

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID, begin: Send | None = None) -> ISecureConn:
        """Shake hands with `peer_id`, which we dialled. Raises TlsHandshakeFailed, and what `conn` and `begin` raise.

        `begin` sends our first message in place of `conn`, and returns when the answer to it can be read from `conn`.
        """
        return await self._shake_hands(conn, peer_id, begin)

    async def _shake_hands(self, conn: IRawConnection, wanted: ID | None, begin: Send | None = None) -> TlsConnection:
        tls = SSL.Connection(self._context, None)
        if wanted is None:
            tls.set_accept_state()
        else:
            tls.set_connect_state()
        records = RecordTracker()
        first = b""
        send = begin or conn.write
        while not await _step(tls, send):
            send = conn.write
            data = await _receive(conn)
            first += data[: HEAD_BYTES - len(first)]
            if wanted is not None and CLIENT_HELLO.match(first):
                raise PeerIsClientToo("the peer dialled us at the same moment")
            records.feed(data)
            tls.bio_write(data)
        remote = _remote_key(tls, is_initiator=wanted is not None)
        muxer = self._muxer(tls)
        found = ID.from_pubkey(remote)
        if wanted is not None and found != wanted:
            raise TlsHandshakeFailed(f"{found.to_base58()} answered instead of {wanted.to_base58()}")
        await _flush(tls, conn.write)
        return TlsConnection(
            conn,
            tls,
            records,
            scratch=self._scratch,
            key_pair=self._key_pair,
            remote=remote,
            is_initiator=wanted is not None,
            muxer=muxer,
        )

    def _muxer(self, tls: SSL.Connection) -> str:
        """Return the agreed muxer, "" if it is still to be negotiated. Raises TlsHandshakeFailed."""
        agreed = tls.get_alpn_proto_negotiated()
        if agreed not in self._above:
            raise TlsHandshakeFailed(f"the peer did not agree on {_either(self._above)} above TLS")
        return "" if agreed == ALPN else agreed.decode()


class TlsConnection(BaseSession):
    """An authenticated, encrypted connection. One task may write while another reads."""

    def __init__(
        self,
        conn: IRawConnection,
        tls: SSL.Connection,
        records: RecordTracker,
        *,
        scratch: Scratch,
        key_pair: KeyPair,
        remote: Ed25519PublicKey,
        is_initiator: bool,
        muxer: str = "",
    ) -> None:
        super().__init__(
            local_peer=ID.from_pubkey(key_pair.public_key),
            local_private_key=key_pair.private_key,
            remote_peer=ID.from_pubkey(remote),
            remote_permanent_pubkey=remote,
            is_initiator=is_initiator,
        )
        self.muxer = muxer
        """The muxer that the handshake agreed on; "" if it is still to be negotiated."""
        self.socket = conn if isinstance(conn, TcpConnection) and not conn.is_paced else None
        """The connection below, if these bytes may be read and written without waiting."""
        self._conn = conn
        self._tls = tls
        self._records = records
        self._scratch = scratch
        self._arrived = Arrivals()
        self._ended = ""
        self._num_taken = self._num_other = 0
        self._expected = 1
        self._hint: Callable[[int], None] = getattr(conn, "expect", lambda size: None)

    async def read(self, n: int | None = None) -> bytes:
        """Return exactly `n` bytes, or all that have arrived, at least one. Cancelling loses nothing.

        Raises ConnectionClosedError when the connection ends or its bytes do not decrypt.
        """
        while self._arrived.size < (1 if n is None else n):
            self._arrived.put(await self._more())
        return self._arrived.take(self._arrived.size if n is None else n)

    async def write(self, data: bytes) -> None:
        """Send all of `data`. Raises ConnectionClosedError. After a cancelled write the connection cannot be used."""
        view = memoryview(data)
        for start in range(0, len(view), WRITE_BYTES):
            await self._conn.write(bytes(self._encrypt(view[start : start + WRITE_BYTES])))

    # Without waiting, over a TCP connection of our own (`socket`).

    def receive_now(self) -> bytes:
        """Return what has arrived, b"" if that completes no record. Raises ConnectionClosedError."""
        if self._arrived.size:
            return self._arrived.take(self._arrived.size)
        if not self._ended and self._num_taken == self._records.num_complete:
            assert self.socket is not None
            scratch = self._scratch
            size = self.socket.read_into(scratch.secret)
            if not size:
                return b""
            self._records.feed(scratch.secret[:size])
            scratch.take_in(self._tls, size)
            if self._num_taken == self._records.num_complete:
                return b""
        return self._decrypt()

    def await_more(self, plaintext: int) -> bool:
        """Make the socket ready once so much more plaintext may be read, or a part; False if there is some already."""
        if self._ended or self._num_taken < self._records.num_complete or self._arrived.size:
            return False
        assert self.socket is not None
        self.socket.await_more(self._records.before(plaintext))
        return True

    def send_now(self, data: bytes) -> bool:
        """Send `data`; return False if some of it waits for room. Raises ConnectionClosedError."""
        assert self.socket is not None
        if len(data) <= WRITE_BYTES:
            return self.socket.write_now(self._encrypt(data))
        view = memoryview(data)
        pieces = [bytes(self._encrypt(view[at : at + WRITE_BYTES])) for at in range(0, len(view), WRITE_BYTES)]
        return self.socket.write_now(memoryview(b"".join(pieces)))

    def send_rest(self) -> bool:
        """Go on sending when there is room; False while something still waits. Raises ConnectionClosedError."""
        assert self.socket is not None
        return self.socket.write_rest()

    def _encrypt(self, data: bytes | memoryview) -> memoryview:
        try:
            return self._scratch.encrypt(self._tls, data)
        except SSL.Error as error:
            raise ConnectionClosedError(_reason(error), transport="tls") from error

    async def close(self) -> None:
        """Say good-bye if there is room and the peer still listens, and close."""
        try:
            with suppress(SSL.Error, BaseLibp2pError, OSError), trio.move_on_after(CLOSE_S):
                self._tls.shutdown()
                await _flush(self._tls, self._conn.write)
        finally:
            await self._conn.close()

    def expect(self, size: int) -> None:
        """Note that `size` more bytes are on their way, so that the next read need not wake for every piece of them.

        If the connection below has no `expect`, this has no effect.
        """
        self._expected = size

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._conn.get_remote_address()

    def get_transport_addresses(self) -> list[Multiaddr]:
        return self._conn.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        return self._conn.get_connection_type()

    async def _more(self) -> bytes:
        """Wait for plaintext."""
        plaintext = self._decrypt() if self._ended or self._num_taken < self._records.num_complete else b""
        while not plaintext:
            self._hint(self._records.before(self._expected))
            data = await _receive(self._conn)
            self._records.feed(data)
            self._tls.bio_write(data)
            plaintext = self._decrypt()
        self._expected = 1
        return plaintext

    def _decrypt(self) -> bytes:
        """Return the plaintext of at most MAX_RECORDS complete records, also if a bad record follows them."""
        if self._ended:
            raise ConnectionClosedError(self._ended, transport="tls")
        num_complete = self._records.num_complete - self._num_taken
        num_wanted = min(num_complete, MAX_RECORDS)
        plaintext, num_read = self._scratch.read_records(self._tls, num_wanted)
        num_taken = num_read
        if num_read < max(num_wanted, 1):
            try:
                plaintext += self._tls.recv(RECORD_BYTES)
            except SSL.WantReadError:
                num_taken = num_complete  # OpenSSL has been through all of them
            except SSL.Error as error:
                self._ended = _reason(error)
        self._num_taken += num_taken
        self._num_other += num_taken - num_read
        if self._num_other > MAX_OTHER_RECORDS:
            self._ended = "the peer sends records without data"
        if self._ended and not plaintext:
            raise ConnectionClosedError(self._ended, transport="tls")
        return plaintext


def _context(key_pair: KeyPair, above: Sequence[bytes]) -> SSL.Context:
    key = ec.generate_private_key(ec.SECP256R1())
    host = PublicKey(key_pair.public_key.to_bytes())
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_tls13_ciphersuites(CIPHERS)
    context.set_options(SSL.OP_NO_TICKET)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.clear_mode(PARTIAL_WRITE)
    context.use_certificate(issue(key, host, key_pair.private_key.sign))
    context.use_privatekey(key)
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, _judge)
    context.set_alpn_protos(list(above))
    context.set_alpn_select_callback(partial(_select, above))
    return context


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """A certificate that passed `verify`, and the host key that it names."""

    certificate: bytes
    host: PublicKey


def _judge(tls: SSL.Connection, certificate: crypto.X509, _error: int, _depth: int, _ok: int) -> bool:
    """Answer OpenSSL about a certificate. CertificateRefused leaves through `do_handshake`; the peer gets an alert."""
    shown = crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate)
    judged: _Judged | None = tls.get_app_data()
    if judged is None or judged.certificate != shown:  # it asks twice, and each answer takes half a millisecond
        tls.set_app_data(_Judged(certificate=shown, host=verify(shown, datetime.now(UTC))))
    return True


def _select(above: Sequence[bytes], _tls: SSL.Connection, offered: Sequence[bytes]) -> bytes:
    """Return the first of the client's offers that we speak. Raises TlsHandshakeFailed if there is none."""
    chosen = next((one for one in offered if one in above), None)
    if chosen is None:
        raise TlsHandshakeFailed(f"the peer speaks {b', '.join(offered)!r} above TLS, not {_either(above)}")
    return chosen


def _either(above: Sequence[bytes]) -> str:
    return " or ".join(map(repr, above))


async def _step(tls: SSL.Connection, send: Send) -> bool:
    """Continue the handshake as far as the received bytes allow; return whether it is done.

    The last flight is not sent.
    """
    try:
        tls.do_handshake()
    except SSL.WantReadError:
        await _flush(tls, send)
        return False
    except (SSL.Error, CertificateRefused, TlsHandshakeFailed) as error:
        await _flush(tls, send)  # the alert
        raise TlsHandshakeFailed(_reason(error)) from error
    return True


def _remote_key(tls: SSL.Connection, *, is_initiator: bool) -> Ed25519PublicKey:
    """Return the host key that the handshake proved. Raises TlsHandshakeFailed."""
    num_others = len(tls.get_peer_cert_chain() or []) - is_initiator  # OpenSSL leaves the first one out for a server
    if num_others:
        raise TlsHandshakeFailed(f"the peer showed {num_others + 1} certificates, not one")
    judged: _Judged | None = tls.get_app_data()
    if judged is None:
        raise TlsHandshakeFailed("the peer showed no certificate")
    return Ed25519PublicKey.from_bytes(judged.host)


async def _receive(conn: IRawConnection) -> bytes:
    data = await conn.read(None)
    if not data:
        raise ConnectionClosedError("the peer hung up", transport="tls")
    return data


async def _flush(tls: SSL.Connection, send: Send) -> None:
    """Send what OpenSSL has ready: parts of a handshake, or an alert."""
    while True:
        try:
            data = tls.bio_read(RECORD_BYTES)
        except SSL.WantReadError:
            return
        await send(data)


def _reason(error: Exception) -> str:
    """Return OpenSSL's words for an error: it raises lists of (library, function, reason)."""
    match error:
        case SSL.ZeroReturnError():
            return "the peer closed the connection"
        case SSL.Error(args=([*reasons],)) if reasons:
            return "TLS: " + ", ".join(str(reason[-1]) for reason in reasons)
        case _:
            return str(error) or type(error).__name__
