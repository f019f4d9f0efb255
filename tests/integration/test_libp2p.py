"""Test what only the libp2p transport has: frames, flow control, hostile peers, other implementations."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import base58
import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.ids import PeerId
from protocol.core.limits import MAX_ADDRESSES
from swarm.libp2p import open_libp2p
from swarm.libp2p.multistream import NegotiationFailed, encode_message, read_message
from swarm.libp2p.security import NOISE, TLS, Identity, secure_outbound, security_table
from swarm.libp2p.sockets.addresses import BadAddress, list_advertised, parse_address, parse_dialable, why_undialable
from swarm.libp2p.sockets.tcp import TcpConnection
from swarm.libp2p.yamux.connection import (
    FRAME_PAYLOAD,
    KEEPALIVE_S,
    MAX_CONTROL_FRAMES,
    MAX_INBOUND_STREAMS,
    MAX_WRITE_BYTES,
    MIN_WRITE_BYTES,
    TIMEOUT_S,
    WRITE_S,
    YamuxConnection,
)
from swarm.libp2p.yamux.driving import ConnectionLost
from swarm.libp2p.yamux.frames import (
    HEADER,
    INITIAL_WINDOW,
    Flag,
    Frame,
    FrameError,
    FrameParser,
    FrameType,
    encode_header,
)
from swarm.libp2p.yamux.stream import YamuxStream
from swarm.testing.transport_conformance import ECHO, echo, read_exactly
from swarm.transport.interface import (
    DialFailed,
    ListenFailed,
    PeerConnected,
    PeerDisconnected,
    StreamBroken,
    Transport,
)

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
SEED_A, SEED_B = b"a" * 32, b"b" * 32

# Frames.


def test_golden_frame() -> None:
    # version 0, type 1 (window update), flags 0x0001 (SYN), stream 3, length 256 KiB
    golden = bytes.fromhex("00 01 0001 00000003 00040000")
    assert encode_header(FrameType.WINDOW_UPDATE, Flag.SYN, 3, 256 * 1024) == golden
    expected = Frame(type=FrameType.WINDOW_UPDATE, flags=Flag.SYN, stream_id=3, length=256 * 1024)
    assert list(FrameParser().feed(golden)) == [expected]


frames = st.one_of(
    st.tuples(st.just(FrameType.DATA), st.integers(1, 2**32 - 1), st.binary(max_size=50)),
    st.tuples(st.just(FrameType.WINDOW_UPDATE), st.integers(1, 2**32 - 1), st.just(b"")),
    st.tuples(st.sampled_from([FrameType.PING, FrameType.GO_AWAY]), st.just(0), st.just(b"")),
)


@given(st.lists(st.tuples(frames, st.integers(0, 15)), max_size=8), st.data())
def test_frames_survive_any_cutting(sent: list[tuple[tuple[FrameType, int, bytes], int]], data: st.DataObject) -> None:
    wire = b"".join(
        encode_header(kind, Flag(flags), stream_id, len(payload)) + payload
        for (kind, stream_id, payload), flags in sent
    )
    parser = FrameParser()
    received: list[tuple[FrameType, int, bytes, int]] = []
    while wire:
        cut = data.draw(st.integers(1, len(wire)))
        for frame in parser.feed(wire[:cut]):
            assert frame.length == len(frame.payload) or frame.type is not FrameType.DATA
            received.append((frame.type, frame.stream_id, frame.payload, int(frame.flags)))
        wire = wire[cut:]
    for (kind, stream_id, payload), flags in sent:
        taken, seen_flags = b"", 0
        while True:
            got_kind, got_id, piece, got_flags = received.pop(0)
            assert (got_kind, got_id) == (kind, stream_id)
            taken, seen_flags = taken + piece, seen_flags | got_flags
            if len(taken) == len(payload):
                break
        assert (taken, seen_flags) == (payload, flags)
    assert not received


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_an_error(data: bytes) -> None:
    total = 0
    with suppress(FrameError):
        for frame in FrameParser().feed(data):
            total += len(frame.payload) if frame.type is FrameType.DATA else HEADER.size
    assert total <= len(data)


# A muxer whose other end is played by the test.


class Wire:
    """A secure connection whose peer is the test."""

    def __init__(self) -> None:
        self.to_muxer, self._incoming = trio.open_memory_channel[bytes](float("inf"))
        self._outgoing, self.from_muxer = trio.open_memory_channel[bytes](0)
        self.parser = FrameParser()
        self.closed = False
        self.hurried = 0

    async def receive(self, expected: int) -> bytes:
        try:
            return await self._incoming.receive()
        except trio.EndOfChannel:
            raise ConnectionLost("the test hung up") from None

    async def send(self, data: bytes) -> None:
        await self._outgoing.send(data)

    def hurry(self) -> None:
        self.hurried += 1

    async def aclose(self) -> None:
        self.closed = True
        self._outgoing.close()

    def feed(self, kind: FrameType, flags: Flag, stream_id: int, length: int, payload: bytes = b"") -> None:
        self.to_muxer.send_nowait(encode_header(kind, flags, stream_id, length) + payload)

    async def frames(self, *, ignore: FrameType | None = FrameType.PING) -> list[Frame]:
        """Return the frames of the muxer's next write."""
        data = await self.from_muxer.receive()
        return [frame for frame in self.parser.feed(data) if frame.type is not ignore]


@asynccontextmanager
async def muxer(*, initiator: bool = False) -> AsyncIterator[tuple[YamuxConnection, Wire, list[YamuxStream]]]:
    """Yield a muxer, dialled (its own ids are even) unless it is the `initiator`; its wire, and the
    streams it accepts.
    """
    wire, accepted = Wire(), list[YamuxStream]()
    connection = YamuxConnection(wire, initiator=initiator, accept=accepted.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        yield connection, wire, accepted
        nursery.cancel_scope.cancel()


async def last_frame(wire: Wire) -> Frame:
    """Read until the muxer hangs up; return the last frame it wrote."""
    last: Frame | None = None
    async for data in wire.from_muxer:
        for frame in wire.parser.feed(data):
            last = frame
    assert last is not None
    return last


HOSTILE = {
    "version": [bytes([9]) + bytes(11)],
    "type": [HEADER.pack(0, 7, 0, 0, 0)],
    "flags": [HEADER.pack(0, 0, 0x40, 1, 0)],
    "ping on a stream": [HEADER.pack(0, FrameType.PING, 0, 1, 0)],
    "data on no stream": [HEADER.pack(0, FrameType.DATA, 0, 0, 4) + b"data"],
    "our own id": [encode_header(FrameType.WINDOW_UPDATE, Flag.SYN, 2, 0)],
    "opened twice": [encode_header(FrameType.WINDOW_UPDATE, Flag.SYN, 1, 0)] * 2,
    "over the window": [
        encode_header(FrameType.DATA, Flag.SYN, 1, INITIAL_WINDOW + 1) + bytes(INITIAL_WINDOW + 1),
    ],
    "data after the end": [
        encode_header(FrameType.DATA, Flag.SYN | Flag.FIN, 1, 1) + b"x",
        encode_header(FrameType.DATA, Flag.NONE, 1, 1) + b"x",
    ],
    "too much credit": [
        encode_header(FrameType.WINDOW_UPDATE, Flag.SYN, 1, 0xFFFFFFFF),
        encode_header(FrameType.WINDOW_UPDATE, Flag.NONE, 1, 0xFFFFFFFF),
    ],
    "questions without reading answers": [
        encode_header(FrameType.PING, Flag.SYN, 0, 1) * (MAX_CONTROL_FRAMES + 2),
    ],
}


@pytest.mark.trio
@pytest.mark.parametrize("attack", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_frames_end_the_connection_with_a_reason(
    attack: list[bytes], autojump_clock: trio.testing.MockClock
) -> None:
    async with muxer() as (connection, wire, _):
        for data in attack:
            wire.to_muxer.send_nowait(data)
        farewell = await last_frame(wire)
        assert (farewell.type, farewell.length) == (FrameType.GO_AWAY, 1)
        assert "broke the protocol" in connection.end_reason
        assert wire.closed


def wild_frame(kind: int, flags: int, stream_id: int, length: int, payload: bytes) -> bytes:
    return HEADER.pack(0, kind, flags, stream_id, len(payload) if kind == FrameType.DATA else length) + payload


LENGTHS = st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1))
WILD = st.one_of(
    st.builds(
        wild_frame, st.sampled_from([0, 0, 0, 1, 2]), st.integers(0, 15), st.integers(0, 9), LENGTHS, st.just(b"")
    ),
    st.builds(
        wild_frame,
        st.just(0),
        st.sampled_from([0, 1, 4]),
        st.integers(1, 9),
        st.just(0),
        st.integers(1, 99_999).map(bytes),
    ),
    st.binary(max_size=20),
)


@settings(deadline=None)
@given(st.lists(WILD, max_size=30))
def test_any_frames_are_borne_within_bounds_or_end_the_connection_with_a_reason(attack: list[bytes]) -> None:
    async def bear() -> None:
        async with muxer() as (connection, wire, accepted), trio.open_nursery() as nursery:
            said: list[Frame] = []

            async def listen() -> None:
                async for data in wire.from_muxer:
                    said.extend(wire.parser.feed(data))

            nursery.start_soon(listen)
            for data in attack:
                wire.to_muxer.send_nowait(data)
            await trio.testing.wait_all_tasks_blocked()
            assert all(stream._buffer.size <= INITIAL_WINDOW for stream in accepted)
            if connection.is_open:
                wire.to_muxer.send_nowait(bytes(70_000) + encode_header(FrameType.PING, Flag.SYN, 0, 77))
                await trio.testing.wait_all_tasks_blocked()
            if not connection.is_open:
                assert said[-1].type is FrameType.GO_AWAY or "the peer closed" in connection.end_reason
                assert connection.end_reason != "the connection was closed"
            nursery.cancel_scope.cancel()

    trio.run(bear, clock=trio.testing.MockClock())


@pytest.mark.trio
async def test_never_sends_over_the_granted_window() -> None:
    async with muxer() as (connection, wire, _), trio.open_nursery() as nursery:
        stream = connection.open_stream()
        nursery.start_soon(stream.send_all, bytes(INITIAL_WINDOW + 1000))
        taken = 0
        while taken < INITIAL_WINDOW:
            taken += sum(frame.length for frame in await wire.frames() if frame.type is FrameType.DATA)
        assert taken == INITIAL_WINDOW
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.WouldBlock):
            wire.from_muxer.receive_nowait()
        wire.feed(FrameType.WINDOW_UPDATE, Flag.NONE, stream.id, 600)
        assert [frame.length for frame in await wire.frames()] == [600]
        wire.feed(FrameType.WINDOW_UPDATE, Flag.NONE, stream.id, 600)
        assert [frame.length for frame in await wire.frames()] == [400]


def senders(frames: list[Frame]) -> list[int]:
    """Return the streams of the DATA frames, in order."""
    return [frame.stream_id for frame in frames if frame.type is FrameType.DATA]


@pytest.mark.trio
async def test_control_goes_ahead_of_bulk_and_streams_take_turns(mock_clock: trio.testing.MockClock) -> None:
    async with muxer() as (connection, wire, _), trio.open_nursery() as nursery:
        streams = [connection.open_stream() for _ in range(2)]
        for stream in streams:
            nursery.start_soon(stream.send_all, bytes(INITIAL_WINDOW))
        await trio.testing.wait_all_tasks_blocked()
        opening = await wire.frames()
        assert [frame.flags for frame in opening[:2]] == [Flag.SYN, Flag.SYN]
        await trio.testing.wait_all_tasks_blocked()  # the second write is assembled now, and waits for the test
        wire.feed(FrameType.PING, Flag.SYN, 0, 77)
        await trio.testing.wait_all_tasks_blocked()
        second, third = await wire.frames(), await wire.frames(ignore=None)
        assert (third[0].type, third[0].flags, third[0].length) == (FrameType.PING, Flag.ACK, 77)
        turns = senders(opening + second + third)
        assert len(turns) >= 3
        assert all({one, other} == {2, 4} for one, other in pairwise(turns))
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_small_message_goes_before_streams_that_have_been_sending(mock_clock: trio.testing.MockClock) -> None:
    async with muxer() as (connection, wire, _), trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(connection.open_stream().send_all, bytes(INITIAL_WINDOW))
        small = connection.open_stream()
        while len(senders(await wire.frames())) < 2:  # writes grow to several frames
            pass
        await trio.testing.wait_all_tasks_blocked()  # the next write is assembled
        nursery.start_soon(small.send_all, b"have")
        await trio.testing.wait_all_tasks_blocked()
        assert small.id not in senders(await wire.frames())
        assert senders(await wire.frames())[0] == small.id
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_who_sends_again_and_again_is_not_new_each_time(mock_clock: trio.testing.MockClock) -> None:
    async with muxer() as (connection, wire, _), trio.open_nursery() as nursery:
        whole, pieces = connection.open_stream(), connection.open_stream()

        async def send_pieces() -> None:
            while True:
                await pieces.send_all(bytes(MIN_WRITE_BYTES - HEADER.size))

        pieces.on_window(1 << 30)
        nursery.start_soon(whole.send_all, bytes(INITIAL_WINDOW))
        nursery.start_soon(send_pieces)
        turns: list[int] = []
        while turns.count(whole.id) < 4:
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(2 * WRITE_S)  # so slow that a write is one frame
            turns += senders(await wire.frames())
            assert turns.count(pieces.id) <= turns.count(whole.id) + 3
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_stream_that_is_alone_sends_longer_frames(mock_clock: trio.testing.MockClock) -> None:
    async with muxer() as (connection, wire, _), trio.open_nursery() as nursery:

        async def longest_after(num_writes: int) -> int:
            for _ in range(num_writes):
                await trio.testing.wait_all_tasks_blocked()
                frames = await wire.frames()
            return max(frame.length for frame in frames if frame.type is FrameType.DATA)

        one, other = connection.open_stream(), connection.open_stream()
        for stream in (one, other):
            stream.on_window(100_000_000)
        nursery.start_soon(one.send_all, bytes(50_000_000))
        most = MAX_WRITE_BYTES - HEADER.size
        assert most * 0.99 < await longest_after(8) <= most
        nursery.start_soon(other.send_all, bytes(50_000_000))
        assert FRAME_PAYLOAD * 0.99 < await longest_after(8) <= FRAME_PAYLOAD
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_slow_connection_is_given_less_at_once(mock_clock: trio.testing.MockClock) -> None:
    async with muxer() as (connection, wire, _), trio.open_nursery() as nursery:
        stream = connection.open_stream()
        stream.on_window(10_000_000)
        nursery.start_soon(stream.send_all, bytes(10_000_000))

        async def next_size(after_s: float) -> int:
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(after_s)
            return sum(HEADER.size + frame.length for frame in await wire.frames() if frame.type is FrameType.DATA)

        fast = [await next_size(0) for _ in range(8)]
        slow = [await next_size(2 * WRITE_S) for _ in range(8)]
        assert MAX_WRITE_BYTES * 0.99 < fast[-1] <= MAX_WRITE_BYTES
        assert MIN_WRITE_BYTES * 0.99 < slow[-1] <= MIN_WRITE_BYTES
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_what_has_arrived_is_taken_without_waiting() -> None:
    async with muxer() as (connection, wire, _):
        stream = connection.open_stream()
        assert stream.take_arrived(10) == b""
        wire.feed(FrameType.DATA, Flag.NONE, stream.id, 5, b"hello")
        await trio.testing.wait_all_tasks_blocked()
        assert (stream.take_arrived(3), stream.take_arrived(10), stream.take_arrived(10)) == (b"hel", b"lo", b"")
        wire.feed(FrameType.DATA, Flag.RST, stream.id, 0)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(StreamBroken):
            stream.take_arrived(1)


@pytest.mark.trio
async def test_a_reader_sleeps_until_what_it_expects_is_here_or_the_end() -> None:
    async with muxer() as (_, wire, accepted), trio.open_nursery() as nursery:
        wire.feed(FrameType.DATA, Flag.SYN, 1, 10, bytes(10))
        await wire.frames()
        got: list[int] = []

        async def read() -> None:
            for expected in (30, 30):
                accepted[0].expect(expected)
                got.append(len(await accepted[0].receive_some(1000)))

        nursery.start_soon(read)
        for size in (10, 10, 5, 5):
            await trio.testing.wait_all_tasks_blocked()
            assert got == ([30] if sum(got) else [])
            wire.feed(FrameType.DATA, Flag.NONE, 1, size, bytes(size))
        wire.feed(FrameType.DATA, Flag.FIN, 1, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert got == [30, 10]


@pytest.mark.trio
async def test_answers_pings() -> None:
    async with muxer() as (_, wire, _accepted):
        wire.feed(FrameType.PING, Flag.SYN, 0, 77)
        expected = Frame(type=FrameType.PING, flags=Flag.ACK, stream_id=0, length=77)
        assert await wire.frames(ignore=None) == [expected]


@pytest.mark.trio
async def test_refuses_more_streams_than_the_bound() -> None:
    async with muxer() as (_, wire, accepted):
        for number in range(MAX_INBOUND_STREAMS + 1):
            wire.feed(FrameType.WINDOW_UPDATE, Flag.SYN, 2 * number + 1, 0)
        answers: list[Frame] = []
        while len(answers) <= MAX_INBOUND_STREAMS:
            answers += await wire.frames()
        assert [answer.flags for answer in answers] == [Flag.ACK] * MAX_INBOUND_STREAMS + [Flag.RST]
        assert len(accepted) == MAX_INBOUND_STREAMS
        await accepted[0].abort()
        await wire.frames()
        wire.feed(FrameType.WINDOW_UPDATE, Flag.SYN, 9999, 0)
        assert [answer.flags for answer in await wire.frames()] == [Flag.ACK]


@pytest.mark.trio
async def test_a_silent_peer_is_asked_and_then_gone(autojump_clock: trio.testing.MockClock) -> None:
    async with muxer() as (connection, wire, _):
        stream = connection.open_stream()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(last_frame, wire)
            with pytest.raises(StreamBroken, match="nothing was heard"):
                await stream.receive_some(1)
        assert wire.hurried >= 2
        assert TIMEOUT_S <= trio.current_time() <= 2 * TIMEOUT_S


@pytest.mark.trio
async def test_on_an_idle_connection_one_end_asks_for_both(autojump_clock: trio.testing.MockClock) -> None:
    asked: Counter[str] = Counter()

    async def carry(name: str, source: Wire, target: Wire) -> None:
        async for data in source.from_muxer:
            await trio.sleep(0.05)  # on its way
            frames = source.parser.feed(data)
            asked[name] += sum(frame.type is FrameType.PING and frame.flags == Flag.SYN for frame in frames)
            target.to_muxer.send_nowait(data)

    async with muxer(initiator=True) as (_, one, _), muxer() as (_, other, _), trio.open_nursery() as nursery:
        nursery.start_soon(carry, "initiator", one, other)
        nursery.start_soon(carry, "other", other, one)
        await trio.sleep(20 * KEEPALIVE_S)
        nursery.cancel_scope.cancel()
    assert asked["other"] == 0
    assert 10 <= asked["initiator"] <= 20


@pytest.mark.trio
async def test_a_stream_that_the_peer_never_closes_is_reset(autojump_clock: trio.testing.MockClock) -> None:
    async with muxer() as (_, wire, accepted):
        wire.feed(FrameType.WINDOW_UPDATE, Flag.SYN, 1, 0)
        await wire.frames()
        await accepted[0].aclose()
        assert [frame.flags for frame in await wire.frames()] == [Flag.FIN]
        while not (got := await wire.frames()):
            wire.feed(FrameType.PING, Flag.ACK, 0, 0)
        assert [frame.flags for frame in got] == [Flag.RST]


@pytest.mark.trio
async def test_what_arrived_complete_survives_the_connection() -> None:
    async with muxer() as (_, wire, accepted):
        wire.feed(FrameType.DATA, Flag.SYN | Flag.FIN, 1, 5, b"whole")
        wire.feed(FrameType.DATA, Flag.SYN, 3, 4, b"part")
        await wire.frames()
        wire.to_muxer.close()
        await trio.testing.wait_all_tasks_blocked()
        whole, part = accepted
        assert [await whole.receive_some(10), await whole.receive_some(10)] == [b"whole", b""]
        with pytest.raises(StreamBroken, match="the test hung up"):
            await part.receive_some(10)


# Negotiation and addresses.


class Bytes:
    """A multistream wire that holds these bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def read(self, n: int) -> bytes:
        taken, self.data = self.data[:n], self.data[n:]
        if len(taken) < n:
            raise EOFError
        return taken

    async def write(self, data: bytes) -> None:
        raise AssertionError(data)


@given(st.text(max_size=200))
def test_negotiation_messages_survive(text: str) -> None:
    wire = Bytes(encode_message(text) + b"next")
    assert trio.run(read_message, wire) == text
    assert wire.data == b"next"


@given(st.binary(max_size=40))
def test_any_bytes_are_a_negotiation_message_or_an_error(data: bytes) -> None:
    try:
        text = trio.run(read_message, Bytes(data))
    except (NegotiationFailed, EOFError):
        return
    assert data[1:].lstrip(b"\x00").startswith(text.encode() + b"\n") or data[2:].startswith(text.encode() + b"\n")


@pytest.mark.parametrize(
    "text",
    ["/ip4/127.0.0.1/tcp/4001", "/ip6/::1/tcp/0/p2p/12D3KooWx", "/dns/learner.example/tcp/65535/p2p/12D3KooWx"],
)
def test_addresses_survive(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not /ip4"),
        ("127.0.0.1:4001", "not /ip4"),
        ("/ip4/127.0.0.1/udp/4001", "not /ip4"),
        ("/ip4/300.0.0.1/tcp/1", "300"),
        ("/ip4/::1/tcp/1", "::1"),
        ("/ip6/127.0.0.1/tcp/1", "127.0.0.1"),
        ("/ip4/127.0.0.1/tcp/65536", "65536"),
        ("/ip4/127.0.0.1/tcp/x", "'x'"),
        ("/ip4/127.0.0.1/tcp/1/p2p/", "not /ip4"),
        ("/dns//tcp/1", "no host"),
        ("/unix/a/tcp/1", "unix"),
        ("/ip6/fe80::1%eth0/tcp/1", "eth0 is an interface, which other machines do not have"),
        ("/dns/exa mple/tcp/1", "'exa mple' is not a valid host name"),
        ("/dns/exam..ple/tcp/1", "not a valid host name"),
        ("/dns/-a/tcp/1", "not a valid host name"),
        ("/dns4/a_b!/tcp/1", "not a valid host name"),
        (f"/dns/{'a' * 64}/tcp/1", "not a valid host name"),
        (f"/dns/{'a.' * 127}a/tcp/1", "not a valid host name"),
        ("/dns/a\u2028b/tcp/1", "not a valid host name"),
    ],
)
def test_bad_addresses_say_why(text: str, words: str) -> None:
    with pytest.raises(BadAddress, match=words):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/ip4/0.0.0.0/tcp/4001", "every interface"),
        ("/ip6/::/tcp/4001", "every interface"),
        ("/ip4/192.0.2.1/tcp/0", "port 0"),
        ("/dns/learner.example/tcp/0", "port 0"),
        ("/ip4/224.0.0.1/tcp/1", "multicast"),
        ("/ip6/ff02::1/tcp/1", "multicast"),
        ("/ip4/255.255.255.255/tcp/1", "broadcast"),
        ("/ip6/fe80::1/tcp/1", "link-local"),
    ],
)
def test_addresses_that_nobody_can_dial_say_why(text: str, words: str) -> None:
    assert words in why_undialable(parse_address(text))


@pytest.mark.parametrize(
    "text",
    [
        "/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip4/169.254.0.1/tcp/1", "/ip6/2001:db8::1/tcp/1",
        "/ip6/fd00::1/tcp/1", "/dns/learner.example/tcp/1", "/dns/b\u00fccher.example./tcp/1", "/dns/a_b/tcp/1",
        "/dns/localhost/tcp/1",
    ],
)  # fmt: skip
def test_addresses_that_somebody_may_dial(text: str) -> None:
    assert why_undialable(parse_address(text)) == ""


def test_a_machine_of_many_interfaces_tells_as_many_addresses_as_a_message_holds() -> None:
    bound = [parse_address(f"/ip4/10.0.0.{number % 20 + 1}/tcp/1") for number in range(40)]
    told = list_advertised(bound, [], PeerId("12D3KooWx"))
    assert len(told) == MAX_ADDRESSES == len(set(told))
    assert told[0] == "/ip4/10.0.0.1/tcp/1/p2p/12D3KooWx"


def test_addresses_without_a_peer_cannot_be_dialled() -> None:
    with pytest.raises(BadAddress, match="/p2p/"):
        parse_dialable([LOOPBACK])


# Hosts.


@pytest.mark.trio
async def test_the_peer_id_is_the_key() -> None:
    public = Ed25519PrivateKey.from_private_bytes(SEED_A).public_key().public_bytes_raw()
    # identity multihash (0x00) of 36 bytes (0x24): protobuf {1: key type 1 (Ed25519), 2: 32 bytes}
    multihash = bytes.fromhex("0024 0801 1220") + public
    async with open_libp2p(SEED_A, []) as host:
        assert host.peer_id == base58.b58encode(multihash).decode()
        assert host.addresses() == []


@pytest.mark.trio
async def test_a_port_in_use_is_named() -> None:
    async with open_libp2p(SEED_A, [LOOPBACK]) as host:
        taken = host.addresses()[0].partition("/p2p/")[0]
        with pytest.raises(ListenFailed, match=taken):
            async with open_libp2p(SEED_B, ["/ip4/127.0.0.1/tcp/0", taken]):
                pass


@pytest.mark.trio
@pytest.mark.parametrize("listen", ["nonsense", "/ip4/203.0.113.1/tcp/0"])
async def test_an_address_that_cannot_be_bound_is_named(listen: str) -> None:
    with pytest.raises(ListenFailed, match=listen):
        async with open_libp2p(SEED_A, [listen]):
            pass


@pytest.mark.trio
async def test_announced_addresses_replace_bound_ones() -> None:
    async with open_libp2p(SEED_A, [LOOPBACK], ["/dns/learner.example/tcp/4001"]) as host:
        assert host.addresses() == [f"/dns/learner.example/tcp/4001/p2p/{host.peer_id}"]


@pytest.mark.trio
async def test_a_wildcard_becomes_addresses_that_can_be_dialled() -> None:
    async with open_libp2p(SEED_A, ["/ip4/0.0.0.0/tcp/0"]) as host, open_libp2p(SEED_B, []) as other:
        assert host.addresses()
        assert not any("0.0.0.0" in address for address in host.addresses())
        await other.dial([address for address in host.addresses() if "/127.0.0.1/" in address])


@pytest.mark.trio
@pytest.mark.parametrize("name", ["\u2603.net", "xn--.net", "a" * 60 + "\u00fc.example"])
async def test_a_name_that_no_resolver_takes_is_a_dial_that_failed(name: str) -> None:
    """A peer names its own addresses: one such name must not end the other dials."""
    async with open_libp2p(SEED_A, []) as host:
        with pytest.raises(DialFailed, match="/tcp/1"):
            await host.dial([f"/dns/{name}/tcp/1/p2p/12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"])


@pytest.mark.trio
async def test_addresses_that_fail_alike_are_told_together(closed_ports: Sequence[int]) -> None:
    one, other = closed_ports
    peer = "12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"
    async with open_libp2p(SEED_A, []) as host:
        with pytest.raises(DialFailed) as caught:
            await host.dial([f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}" for port in (one, other)])
    assert str(caught.value) == f"/ip4/127.0.0.1/tcp/{one}, /ip4/127.0.0.1/tcp/{other}: Connection refused"


@pytest.fixture
def closed_ports() -> Sequence[int]:
    """Two ports on which nobody listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.mark.trio
async def test_a_listener_that_never_answers_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with open_libp2p(SEED_A, []) as host:
        with pytest.raises(DialFailed, match=f"{port}.*no answer"):
            await host.dial([f"/ip4/127.0.0.1/tcp/{port}/p2p/12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"])
    await listeners[0].aclose()


@pytest.mark.trio
@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 2000,
        encode_message("/multistream/1.0.0"),
        encode_message("/multistream/1.0.0") + encode_message("/tls/1.0.0") + b"\x16\x03\x01\x40\x00" + b"\xff" * 16384,
        encode_message("/multistream/1.0.0") + encode_message("/noise") + b"\xff" * 70_000,
    ],
    ids=["http", "ff", "multistream", "tls", "noise"],
)
async def test_strangers_who_send_garbage_harm_nobody(garbage: bytes) -> None:
    async with open_libp2p(SEED_A, [LOOPBACK]) as host, open_libp2p(SEED_B, []) as other:
        port = parse_address(host.addresses()[0]).port
        stranger = await trio.open_tcp_stream("127.0.0.1", port)
        await stranger.send_all(garbage)
        await stranger.send_eof()
        while await stranger.receive_some():
            pass
        await other.dial(host.addresses())
        await stranger.aclose()


@pytest.mark.trio
@pytest.mark.parametrize("security", [TLS, NOISE])
@pytest.mark.parametrize("seed", range(3))
async def test_a_peer_that_sends_garbage_is_cut_off_and_harms_nobody(security: str, seed: int) -> None:
    """It shakes hands like an honest one; what follows are random bytes."""
    async with open_libp2p(SEED_A, [LOOPBACK]) as host, open_libp2p(SEED_B, []) as other:
        await other.dial(host.addresses())
        host.handle(ECHO, echo)
        events = host.events()
        raw = TcpConnection(
            await trio.open_tcp_stream("127.0.0.1", parse_address(host.addresses()[0]).port), is_initiator=True
        )
        table = security_table(Identity.from_seed(b"c" * 32), [security])
        channel = await secure_outbound(raw, table, host.peer_id, "/yamux/1.0.0")
        await channel.send(b"\x07" + random.Random(seed).randbytes(100_000))
        parser, said = FrameParser(), list[Frame]()
        with suppress(ConnectionLost):
            while True:
                said.extend(parser.feed(await channel.receive(1)))
        assert (said[-1].type, said[-1].length) == (FrameType.GO_AWAY, 1)
        while not isinstance(await events.receive(), PeerDisconnected):
            pass
        assert host.connected_peers() == {other.peer_id}
        stream = await other.open_stream(host.peer_id, ECHO)
        await stream.send_all(b"unharmed")
        assert await read_exactly(stream, 8) == b"unharmed"


@pytest.mark.trio
@pytest.mark.parametrize(("offers", "chosen"), [([TLS, NOISE], TLS), ([NOISE, TLS], NOISE), ([NOISE], NOISE)])
async def test_tls_comes_first_and_noise_is_for_those_who_speak_nothing_else(offers: list[str], chosen: str) -> None:
    async with open_libp2p(SEED_A, [LOOPBACK]) as host, open_libp2p(SEED_B, [], security=offers) as dialler:
        await dialler.dial(host.addresses())
        assert await said_to(host, offers) == encode_message("/multistream/1.0.0") + encode_message(chosen)
    async with open_libp2p(SEED_A, [LOOPBACK], security=offers) as host, open_libp2p(SEED_B, []) as dialler:
        assert await dialler.dial(host.addresses()) == host.peer_id


async def said_to(host: Transport, offers: list[str]) -> bytes:
    """Return the answer of `host` to the first of `offers`."""
    async with await trio.open_tcp_stream("127.0.0.1", parse_address(host.addresses()[0]).port) as stream:
        await stream.send_all(encode_message("/multistream/1.0.0") + encode_message(offers[0]))
        await stream.send_eof()
        return b"".join([data async for data in stream])


@pytest.mark.trio
async def test_plaintext_is_not_offered() -> None:
    async with open_libp2p(SEED_A, [LOOPBACK]) as host:
        stream = await trio.open_tcp_stream("127.0.0.1", parse_address(host.addresses()[0]).port)
        async with stream:
            offers = ["/multistream/1.0.0", "/plaintext/2.0.0", "/secio/1.0.0"]
            await stream.send_all(b"".join(map(encode_message, offers)))
            await stream.send_eof()
            said = b"".join([data async for data in stream])
        assert said == encode_message("/multistream/1.0.0") + 2 * encode_message("na")


def test_libp2p_is_silent() -> None:
    assert not logging.getLogger("libp2p.network.swarm").isEnabledFor(logging.CRITICAL)


# Processes.

CHILD = """
import sys, trio
from swarm.libp2p import open_libp2p
from swarm.testing.transport_conformance import HOLD, hold

async def main():
    async with open_libp2p(b"b" * 32, []) as host:
        host.handle(HOLD, hold)
        await host.dial([sys.argv[1]])
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.trio
async def test_a_killed_process_is_noticed_at_once() -> None:
    async with open_libp2p(SEED_A, [LOOPBACK]) as host:
        events = host.events()
        child = subprocess.Popen([sys.executable, "-c", CHILD, host.addresses()[0]], cwd=os.getcwd())
        try:
            with trio.fail_after(120):
                connected = await events.receive()
                assert isinstance(connected, PeerConnected)
                stream = await host.open_stream(connected.peer, "/test/hold/1")
                assert await read_exactly(stream, 1) == b"!"
            child.send_signal(signal.SIGKILL)
            with trio.fail_after(15):  # before the timers of the muxer would notice
                with pytest.raises(StreamBroken):
                    await stream.receive_some(1)
                assert await events.receive() == PeerDisconnected(peer=connected.peer)
        finally:
            child.kill()
            child.wait()


@pytest.mark.trio
async def test_leaving_does_not_wait_for_a_frozen_peer() -> None:
    with trio.fail_after(120):
        async with open_libp2p(SEED_A, [LOOPBACK]) as host, trio.open_nursery() as nursery:
            events = host.events()
            child = subprocess.Popen([sys.executable, "-c", CHILD, host.addresses()[0]], cwd=os.getcwd())
            try:
                connected = await events.receive()
                stream = await host.open_stream(connected.peer, "/test/hold/1")
                assert await read_exactly(stream, 1) == b"!"
                child.send_signal(signal.SIGSTOP)
                nursery.start_soon(stream.send_all, bytes(1_000_000))
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await host.disconnect(connected.peer)
                assert not host.connected_peers()
            finally:
                child.kill()
                child.wait()


AUDITED = """
import json, sys
contacted = []
EVENTS = {"socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"}
sys.addaudithook(lambda event, args: contacted.append(repr(args)) if event in EVENTS else None)
import trio
from swarm.libp2p import open_libp2p

async def main():
    async with open_libp2p(b"b" * 32, ["/ip4/127.0.0.1/tcp/0"]) as host:
        await host.dial([sys.argv[1]])
        await host.publish("topic", b"data")

trio.run(main)
print(json.dumps(contacted))
"""


@pytest.mark.trio
async def test_nobody_is_contacted_but_who_was_dialled() -> None:
    async with open_libp2p(SEED_A, [LOOPBACK]) as host:
        child = [sys.executable, "-c", AUDITED, host.addresses()[0]]
        done = await trio.run_process(child, capture_stdout=True, cwd=os.getcwd())
        contacted = json.loads(done.stdout)
        port = parse_address(host.addresses()[0]).port
        own_listener = [one for one in contacted if "127.0.0.1" in one and str(port) not in one]
        dialled = [one for one in contacted if "127.0.0.1" in one and str(port) in one]
        assert dialled
        assert len(dialled) + len(own_listener) == len(contacted), contacted


@pytest.mark.trio
async def test_what_is_raised_in_a_hosts_scope_leaves_it_as_it_is() -> None:
    with pytest.raises(DialFailed):
        async with open_libp2p(bytes(32), []) as host:
            await host.dial([f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.from_seed(bytes([1]) * 32).peer_id}"])
