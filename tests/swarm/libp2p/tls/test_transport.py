"""The TLS transport: who is believed, what is refused and why, bytes both ways, hostile bytes, the stock transport."""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given, settings
from hypothesis import strategies as st
from libp2p.abc import IRawConnection, ISecureConn
from libp2p.connection_types import ConnectionType
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.rsa import create_new_key_pair as create_rsa_key_pair
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.security.tls import transport as stock
from multiaddr import Multiaddr  # type: ignore[import-untyped]
from OpenSSL import SSL

from protocol.core.identity import Keypair
from swarm.libp2p.tls.certificate import issue
from swarm.libp2p.tls.transport import (
    ALPN,
    MAX_OTHER_RECORDS,
    MAX_RECORDS,
    RECORD_BYTES,
    TlsConnection,
    TlsHandshakeFailed,
    TlsTransport,
)
from swarm.testing.transport_conformance import pattern
from tests.support.examples import examples

KEYS_A, KEYS_B, KEYS_C = (create_new_key_pair(name * 32) for name in (b"a", b"b", b"c"))
ID_A, ID_B = (ID.from_pubkey(keys.public_key) for keys in (KEYS_A, KEYS_B))
A, B = TlsTransport(KEYS_A), TlsTransport(KEYS_B)
HOST = Keypair(b"h" * 32)
TLS_KEY = ec.generate_private_key(ec.SECP256R1())
GOOD = issue(TLS_KEY, HOST.public, HOST.sign)


@dataclass
class End(IRawConnection):
    """One end of a connection in memory; `on_write` may change what goes to the other."""

    is_initiator: bool
    inbox: list[bytes] = field(default_factory=list)
    peer: End | None = None
    on_write: Callable[[bytes], bytes] = bytes
    closed: bool = False
    changed: trio.Event = field(default_factory=trio.Event)

    async def read(self, n: int | None = None) -> bytes:
        """Up to `n` bytes, as py-libp2p's own connections do it; b"" at the end."""
        await trio.lowlevel.checkpoint()
        while not self.inbox:
            assert self.peer is not None
            if self.peer.closed:
                return b""
            self.changed = trio.Event()
            await self.changed.wait()
        data = self.inbox.pop(0)
        if n is not None and len(data) > n:
            self.inbox.insert(0, data[n:])
        return data[:n]

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        assert self.peer is not None
        if sent := self.on_write(bytes(data)):
            self.peer.inbox.append(sent)
            self.peer.changed.set()

    async def close(self) -> None:
        self.closed = True
        assert self.peer is not None
        self.peer.changed.set()

    def get_remote_address(self) -> tuple[str, int]:
        return "127.0.0.1", 4001

    def get_transport_addresses(self) -> list[Multiaddr]:
        return []

    def get_connection_type(self) -> ConnectionType:
        return ConnectionType.DIRECT


def wire() -> tuple[End, End]:
    """The two ends of a connection, the dialler's first."""
    one, other = End(is_initiator=True), End(is_initiator=False)
    one.peer, other.peer = other, one
    return one, other


Outcome = ISecureConn | Exception


async def outcome(end: End, handshake: Awaitable[ISecureConn]) -> Outcome:
    """What became of one side; a failed one hangs up."""
    try:
        return await handshake
    except Exception as error:
        await end.close()
        return error


async def shake(
    dialler: TlsTransport | stock.TLSTransport = A,
    listener: TlsTransport | stock.TLSTransport = B,
    wanted: ID = ID_B,
    ends: tuple[End, End] | None = None,
) -> tuple[Outcome, Outcome]:
    """Both sides' outcomes, the dialler's first."""
    one, other = ends or wire()
    outcomes: dict[str, Outcome] = {}

    async def run(side: str, end: End, handshake: Awaitable[ISecureConn]) -> None:
        outcomes[side] = await outcome(end, handshake)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "dialler", one, dialler.secure_outbound(one, wanted))
            nursery.start_soon(run, "listener", other, listener.secure_inbound(other))
    return outcomes["dialler"], outcomes["listener"]


async def connected(ends: tuple[End, End] | None = None) -> tuple[TlsConnection, TlsConnection]:
    dialler, listener = await shake(ends=ends)
    assert isinstance(dialler, TlsConnection), dialler
    assert isinstance(listener, TlsConnection), listener
    return dialler, listener


# Who is who.


async def test_both_sides_know_who_the_other_is() -> None:
    dialler, listener = await connected()
    assert (dialler.get_remote_peer(), listener.get_remote_peer()) == (ID_B, ID_A)
    assert dialler.get_remote_public_key() == KEYS_B.public_key
    assert listener.get_remote_public_key() == KEYS_A.public_key
    assert (dialler.get_local_peer(), dialler.is_initiator, listener.is_initiator) == (ID_A, True, False)
    assert listener.get_remote_address() == ("127.0.0.1", 4001)


async def test_another_peer_than_the_wanted_one_is_named_and_never_learns_who_called() -> None:
    dialler, listener = await shake(wanted=ID_A)
    assert isinstance(dialler, TlsHandshakeFailed)
    assert f"{ID_B} answered instead of {ID_A}" in str(dialler)
    assert isinstance(listener, ConnectionClosedError)


async def test_no_key_ever_lies_in_a_file() -> None:
    opened: list[object] = []
    watching = True
    sys.addaudithook(lambda event, args: opened.append(args[0]) if watching and event == "open" else None)
    assert await connected(None)
    TlsTransport(KEYS_C)
    watching = False
    assert opened == []


# Bytes.


async def test_bytes_arrive_both_ways() -> None:
    dialler, listener = await connected()
    for writer, reader in ((dialler, listener), (listener, dialler)):
        sent = pattern(3_000_001)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.write, sent)
            got = b""
            while len(got) < len(sent):
                got += await reader.read()
        assert got == sent


async def test_reads_exactly_what_is_asked_for() -> None:
    dialler, listener = await connected()
    await dialler.write(b"hello there")
    assert [await listener.read(2), await listener.read(3), await listener.read()] == [b"he", b"llo", b" there"]
    await dialler.write(b"a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dialler.write, b"bc")
        assert await listener.read(3) == b"abc"


async def test_a_read_that_is_cancelled_loses_nothing() -> None:
    dialler, listener = await connected()
    await dialler.write(b"abc")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.read, 6)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await dialler.write(b"def")
    assert await listener.read(6) == b"abcdef"


async def test_closing_is_said() -> None:
    dialler, listener = await connected()
    await dialler.write(b"last words")
    await dialler.close()
    assert await listener.read() == b"last words"
    with pytest.raises(ConnectionClosedError, match="the peer closed the connection"):
        await listener.read()
    await listener.close()


async def test_hanging_up_without_a_word_is_told_apart() -> None:
    ends = wire()
    _, listener = await connected(ends)
    await ends[0].close()
    with pytest.raises(ConnectionClosedError, match="the peer hung up"):
        await listener.read()


async def test_what_is_on_its_way_is_asked_for_below() -> None:
    ends = wire()
    hints: list[int] = []
    ends[1].expect = hints.append  # type: ignore[attr-defined]
    dialler, listener = await connected(ends)
    await dialler.write(bytes(100_000))
    (encrypted,) = ends[1].inbox
    ends[1].inbox[:] = [encrypted[:1000]]
    listener.expect(100_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.read, 100_000)
        await trio.testing.wait_all_tasks_blocked()
        assert hints[-1] == (RECORD_BYTES + 22 - 1000) + (100_000 - RECORD_BYTES)
        ends[1].inbox.append(encrypted[1000:])
        ends[1].changed.set()


async def test_more_records_than_are_decrypted_at_once_arrive_in_order() -> None:
    ends = wire()
    dialler, listener = await connected(ends)
    sent = bytes(index % 251 for index in range(3 * MAX_RECORDS + 1))
    for byte in sent:
        await dialler.write(bytes([byte]))
    ends[1].inbox[:] = [b"".join(ends[1].inbox)]
    read = [await listener.read()]
    assert len(read[0]) == MAX_RECORDS
    while sum(map(len, read)) < len(sent):
        read.append(await listener.read())
    assert b"".join(read) == sent


# Strangers, played with OpenSSL.


def stranger(
    *certificates: x509.Certificate,
    key: ec.EllipticCurvePrivateKey = TLS_KEY,
    alpn: tuple[bytes, ...] = (ALPN,),
    insists: bytes | None = None,
    highest: int = SSL.TLS1_3_VERSION,
) -> SSL.Context:
    """A TLS context that does as it likes."""
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_max_proto_version(highest)
    context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
    if certificates:
        context.use_certificate(certificates[0])
        context.use_privatekey(key)
        for more in certificates[1:]:
            context.add_extra_chain_cert(more)
    if insists is not None:
        context.set_alpn_select_callback(lambda *_: insists)
    elif alpn:
        context.set_alpn_protos(list(alpn))
        context.set_alpn_select_callback(
            lambda _, offered: alpn[0] if alpn[0] in offered else SSL.NO_OVERLAPPING_PROTOCOLS
        )
    return context


async def play(context: SSL.Context, end: End) -> str:
    """Shake hands as a stranger, then wait for a byte; return what OpenSSL says in the end."""
    tls = SSL.Connection(context, None)
    (tls.set_connect_state if end.is_initiator else tls.set_accept_state)()
    step: Callable[[], object] = tls.do_handshake
    end_of_it = ""
    while not end_of_it:
        try:
            step()
            step = partial(tls.recv, 1)
        except SSL.WantReadError:
            pass
        except SSL.Error as error:
            end_of_it = str(error)
        with suppress(SSL.WantReadError):
            await end.write(tls.bio_read(1 << 20))
        if end_of_it:
            break
        if data := await end.read():
            tls.bio_write(data)
        else:
            end_of_it = "hung up"
    await end.close()
    return end_of_it


async def meet(context: SSL.Context, *, stranger_dials: bool) -> tuple[str, Outcome]:
    """What a stranger hears, and what came of it here."""
    one, other = wire()
    theirs, ours = (one, other) if stranger_dials else (other, one)
    heard: list[str] = []

    async def stand_in() -> None:
        heard.append(await play(context, theirs))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stand_in)
            handshake = B.secure_inbound(ours) if stranger_dials else B.secure_outbound(ours, ID_A)
            result = await outcome(ours, handshake)
            await ours.close()
    return heard[0], result


UNSIGNED = issue(TLS_KEY, HOST.public, lambda data: bytes(64))
THEY_DIAL, WE_DIAL = True, False
CERTIFICATE_WRONG = {
    "none": ((), THEY_DIAL, "certificate", "certificate"),
    "host did not sign, they dial": ((UNSIGNED,), THEY_DIAL, "the host key did not sign", "alert"),
    "host did not sign, we dial": ((UNSIGNED,), WE_DIAL, "the host key did not sign", "alert"),
    "two, they dial": ((GOOD, GOOD), THEY_DIAL, "2 certificates, not one", "hung up"),
    "two, we dial": ((GOOD, GOOD), WE_DIAL, "2 certificates, not one", "hung up"),
}


@pytest.mark.parametrize(
    ("certificates", "stranger_dials", "words", "heard"), CERTIFICATE_WRONG.values(), ids=CERTIFICATE_WRONG.keys()
)
async def test_whose_certificate_is_wrong_is_refused_with_a_reason(
    certificates: tuple[x509.Certificate, ...], stranger_dials: bool, words: str, heard: str
) -> None:
    told, result = await meet(stranger(*certificates), stranger_dials=stranger_dials)
    assert isinstance(result, TlsHandshakeFailed)
    assert words in str(result)
    assert heard in told


@pytest.mark.parametrize("stranger_dials", [True, False], ids=["they dial", "we dial"])
async def test_older_tls_is_refused(stranger_dials: bool) -> None:
    _, result = await meet(stranger(GOOD, highest=SSL.TLS1_2_VERSION), stranger_dials=stranger_dials)
    assert isinstance(result, TlsHandshakeFailed)
    assert "version" in str(result) or "protocol" in str(result)


@pytest.mark.parametrize("alpn", [(), (b"/yamux/1.0.0",)], ids=["none", "another"])
@pytest.mark.parametrize("stranger_dials", [True, False], ids=["they dial", "we dial"])
async def test_who_would_not_negotiate_the_muxer_is_refused(alpn: tuple[bytes, ...], stranger_dials: bool) -> None:
    _, result = await meet(stranger(GOOD, alpn=alpn), stranger_dials=stranger_dials)
    assert isinstance(result, TlsHandshakeFailed)
    assert "above TLS" in str(result)


async def test_who_prefers_another_muxer_negotiation_but_takes_ours_is_served() -> None:
    """As stock py-libp2p offers it."""
    offers = stranger(GOOD, alpn=(b"/yamux/1.0.0", ALPN))
    one, other = wire()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(play, offers, one)
            connection = await B.secure_inbound(other)
            nursery.cancel_scope.cancel()
    assert str(connection.get_remote_peer()) == HOST.peer_id


YAMUX, MPLEX = "/yamux/1.0.0", "/mplex/6.7.0"


@pytest.mark.parametrize(
    ("dialler", "listener", "muxer"),
    [
        ([YAMUX], [YAMUX], YAMUX),
        ([MPLEX, YAMUX], [YAMUX, MPLEX], MPLEX),
        ([MPLEX, YAMUX], [YAMUX], YAMUX),
        ([MPLEX], [YAMUX], ""),
        ([YAMUX], [], ""),
        ([], [YAMUX], ""),
        ([], [], ""),
    ],
)
async def test_the_muxer_is_what_the_dialler_likes_best_of_what_both_speak(
    dialler: list[str], listener: list[str], muxer: str
) -> None:
    outcomes = await shake(TlsTransport(KEYS_A, dialler), TlsTransport(KEYS_B, listener))
    for outcome in outcomes:
        assert isinstance(outcome, TlsConnection), outcome
        assert outcome.muxer == muxer


async def test_a_listener_that_chooses_what_was_not_offered_is_refused() -> None:
    """OpenSSL sees to it."""
    told, result = await meet(stranger(GOOD, insists=b"/mplex/6.7.0"), stranger_dials=False)
    assert isinstance(result, TlsHandshakeFailed)
    assert told


# Hostile bytes.


def authenticated(data: bytes) -> list[int]:
    """Places in whole records but for those that TLS has ignored: each record's legacy version (RFC 8446, 5.1) and
    records of type change_cipher_spec (20).
    """
    places, start = [], 0
    while start < len(data):
        end = start + 5 + int.from_bytes(data[start + 3 : start + 5])
        if data[start] != 20:
            places += [start, *range(start + 3, end)]
        start = end
    return places


def damage(seed: int, at_write: int) -> Callable[[bytes], bytes]:
    """Damage the `at_write`-th write: flip, cut, insert or replace some of its bytes."""
    rng = random.Random(seed)
    writes = 0

    def on_write(data: bytes) -> bytes:
        nonlocal writes
        writes += 1
        if writes != at_write:
            return data
        at = rng.choice(authenticated(data))
        match rng.randrange(4):
            case 0:
                return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
            case 1:
                return data[:at] + data[min(len(data), at + 1 + rng.randrange(8)) :]
            case 2:
                return data[:at] + bytes([data[at] ^ 0xFF]) + data[at:]
            case _:
                return data[:at] + rng.randbytes(len(data) - at)

    return on_write


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 2), st.booleans())
def test_a_damaged_handshake_fails_with_a_reason(seed: int, at_write: int, by_dialler: bool) -> None:
    async def attempt() -> None:
        ends = wire()
        ends[0 if by_dialler else 1].on_write = damage(seed, at_write)
        results: list[Outcome] = []

        async def both() -> None:
            results.extend(await shake(ends=ends))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(both)
            await trio.testing.wait_all_tasks_blocked()
            for end in ends:  # whoever waits for what was cut out
                await end.close()
        for result in results:
            if not isinstance(result, TlsConnection):
                assert isinstance(result, TlsHandshakeFailed | ConnectionClosedError)
                assert str(result)
        reached = [result for result in results if isinstance(result, TlsConnection)]
        assert len(reached) < 2 or (at_write == 2 and not by_dialler)

    trio.run(attempt)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 40_000))
def test_damaged_bytes_end_the_connection_and_are_never_read(seed: int, size: int) -> None:
    async def attempt() -> None:
        ends = wire()
        dialler, listener = await connected(ends)
        ends[0].on_write = damage(seed, 1)
        sent = random.Random(seed).randbytes(size)
        await dialler.write(sent)
        await ends[0].close()
        got, reason = b"", ""
        while not reason:
            try:
                got += await listener.read()
            except ConnectionClosedError as error:
                reason = str(error)
        assert sent.startswith(got)

    trio.run(attempt)


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(min_size=1, max_size=500), st.booleans())
def test_any_bytes_instead_of_a_handshake_fail_with_a_reason(data: bytes, we_dial: bool) -> None:
    async def attempt() -> None:
        one, other = wire()
        ours, theirs = (one, other) if we_dial else (other, one)
        await theirs.write(data)
        await theirs.close()
        result = await outcome(ours, B.secure_outbound(ours, ID_A) if we_dial else B.secure_inbound(ours))
        assert isinstance(result, TlsHandshakeFailed | ConnectionClosedError)
        assert str(result)

    trio.run(attempt)


class KeyChanger:
    """One direction of TLS 1.3 with AES-128-GCM from its traffic secret, RFC 8446, sections 5.2, 7.2 and 7.3."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self.sent = 0

    def derive(self, label: bytes, size: int) -> bytes:
        full = b"tls13 " + label
        info = size.to_bytes(2, "big") + bytes([len(full)]) + full + b"\x00"
        return HKDFExpand(hashes.SHA256(), size, info).derive(self.secret)

    def record(self, kind: int, content: bytes) -> bytes:
        header = b"\x17\x03\x03" + (len(content) + 17).to_bytes(2, "big")
        nonce = int.from_bytes(self.derive(b"iv", 12), "big") ^ self.sent
        self.sent += 1
        sealed = AESGCM(self.derive(b"key", 16)).encrypt(nonce.to_bytes(12, "big"), content + bytes([kind]), header)
        return header + sealed

    def update(self) -> bytes:
        """A KeyUpdate that asks for one in return."""
        record = self.record(22, b"\x18\x00\x00\x01\x01")
        self.secret, self.sent = self.derive(b"traffic upd", 32), 0
        return record


@pytest.mark.parametrize("with_data", [False, True])
async def test_a_peer_that_changes_its_keys_for_ever_is_cut_off(with_data: bool) -> None:
    """OpenSSL answers each change, into memory; we write only what the muxer sends."""
    secrets: dict[bytes, bytes] = {}
    context = stranger(GOOD)
    context.set_tls13_ciphersuites(b"TLS_AES_128_GCM_SHA256")
    context.set_keylog_callback(lambda _, line: secrets.update([line.split()[::2]]))
    one, other = wire()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(play, context, one)
            connection = await B.secure_inbound(other)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        keys = KeyChanger(bytes.fromhex(secrets[b"CLIENT_TRAFFIC_SECRET_0"].decode()))
        await one.write(keys.record(23, b"hello"))
        assert await connection.read() == b"hello"
        for _ in range(2 * MAX_OTHER_RECORDS // 100):
            await one.write(b"".join(keys.update() for _ in range(100)))
            if with_data:
                await one.write(keys.record(23, b"x"))
        with pytest.raises(ConnectionClosedError, match="records without data"):
            await connection.read(MAX_OTHER_RECORDS)
    assert len(other.inbox) >= 0.9 * MAX_OTHER_RECORDS / 100, "it was read on and on"


async def test_a_handshake_that_never_ends_is_not_kept_in_memory() -> None:
    """A record of handshake after another, each the beginning of a message that is said to be enormous."""
    one, other = wire()
    hello = b"\x01\xff\xff\xff" + bytes(16_000)
    record = b"\x16\x03\x01" + len(hello).to_bytes(2, "big") + hello
    for _ in range(20):
        await one.write(record)
    result = await outcome(other, B.secure_inbound(other))
    assert isinstance(result, TlsHandshakeFailed)
    assert len(other.inbox) > 15, "it was read on and on"


# The stock implementation.


def stock_transport(keys: object) -> stock.TLSTransport:
    return stock.TLSTransport(keys, muxers=["/yamux/1.0.0"])  # type: ignore[arg-type]


@pytest.mark.parametrize("ours_dials", [True, False])
async def test_the_stock_transport_and_ours_understand_each_other(ours_dials: bool) -> None:
    sides = (A, stock_transport(KEYS_B)) if ours_dials else (stock_transport(KEYS_A), B)
    dialler, listener = await shake(*sides)
    assert not isinstance(dialler, Exception), dialler
    assert not isinstance(listener, Exception), listener
    assert (dialler.get_remote_peer(), listener.get_remote_peer()) == (ID_B, ID_A)
    for writer, reader in ((dialler, listener), (listener, dialler)):
        sent = pattern(100_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.write, sent)
            assert await reader.read(len(sent)) == sent


async def test_a_stock_peer_with_an_rsa_key_is_told_why_it_is_refused() -> None:
    dialler, listener = await shake(stock_transport(create_rsa_key_pair()), B)
    assert isinstance(listener, TlsHandshakeFailed)
    assert "an RSA host key; only Ed25519" in str(listener)
    assert not isinstance(dialler, TlsConnection)
