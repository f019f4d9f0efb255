"""Read and write connections when their sockets are ready: bulk both ways, pauses, and every way to end."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest
import trio
import trio.testing
from libp2p.io.exceptions import ConnectionClosedError

from protocol.core.errors import Fault, PeerError
from swarm.libp2p.sockets.link_rate import Pace
from swarm.libp2p.sockets.readiness import HAS_EPOLL, Readiness
from swarm.libp2p.yamux.connection import YamuxConnection
from swarm.libp2p.yamux.driving import READS_AT_ONCE, AtOnce, ConnectionLost
from swarm.libp2p.yamux.frames import HEADER, Flag, Frame, FrameParser, FrameType, encode_header
from swarm.libp2p.yamux.stream import YamuxStream
from swarm.transport.framing import FrameStream
from swarm.transport.interface import Stream, StreamBroken
from tests.support.running_readiness import running_readiness
from tests.support.swarm_fixture import peer_of

pytestmark = [pytest.mark.trio, pytest.mark.skipif(not HAS_EPOLL, reason="no epoll here")]

MIB = 1 << 20
PEER = peer_of("somebody")
SLOW_S = 120.0


@dataclass(eq=False)
class Plain:
    """A connection without encryption: what `AtOnce` and the muxer need of one. `piece` is what one read hands on, of
    up to 64 KiB that it takes from the socket, and holds."""

    socket: socket.socket
    piece: int = 65_536
    pace: Pace = field(default_factory=Pace)
    takes_nothing: bool = False
    is_paced: bool = False
    waited: int = 0
    held: bytes = b""
    rest: bytes = b""

    def fileno(self) -> int:
        return self.socket.fileno()

    def receive_now(self) -> bytes:
        if not self.held:
            try:
                self.held = self.socket.recv(65_536)
            except BlockingIOError:
                return b""
            except OSError as error:
                raise ConnectionClosedError(str(error)) from error
            if not self.held:
                raise ConnectionClosedError("the peer hung up")
        data, self.held = self.held[: self.piece], self.held[self.piece :]
        return data

    def await_more(self, plaintext: int) -> bool:
        return not self.held

    def send_now(self, data: bytes) -> bool:
        assert not self.rest
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise ConnectionClosedError(str(error)) from error
        self.rest = data[sent:]
        return not self.rest

    def send_rest(self) -> bool:
        rest, self.rest = self.rest, b""
        return self.send_now(rest)

    async def receive(self, expected: int) -> bytes:
        assert self.waited, "nobody waits without a cap"
        try:
            while not (data := self.receive_now()):
                await trio.lowlevel.wait_readable(self.socket)
        except ConnectionClosedError as error:
            raise ConnectionLost(str(error)) from error
        return data

    async def send(self, data: bytes) -> None:
        assert self.waited, "nobody waits without a cap"
        try:
            while not (self.send_now(data) if not self.rest else self.send_rest()):
                await trio.lowlevel.wait_writable(self.socket)
        except ConnectionClosedError as error:
            raise ConnectionLost(str(error)) from error

    def cap(self, *, holds: bool) -> None:
        self.is_paced = holds
        self.waited += holds

    def hurry(self) -> None: ...

    async def aclose(self) -> None:
        self.socket.close()


@dataclass
class Strict:
    """An account for which every small frame but the first costs a pause."""

    is_member: bool = True
    max_streams: int = 100
    pause_s: float = 0.02
    charged: list[float] = field(default_factory=list)

    def hold(self, delta: int) -> None: ...

    def charge(self, cost: float) -> float:
        self.charged.append(trio.current_time())
        return self.pause_s if len(self.charged) > 1 else 0.0


@dataclass
class End:
    """One end, and the streams that the other one opened."""

    muxer: YamuxConnection
    plain: Plain
    accepted: list[YamuxStream]


def end_on(near: socket.socket, readiness: Readiness, *, initiator: bool = False, **options: object) -> End:
    near.setblocking(False)
    plain, accepted = Plain(near), list[YamuxStream]()
    muxer = YamuxConnection(
        plain,
        initiator=initiator,
        accept=accepted.append,
        drive=lambda muxer: AtOnce(muxer, plain, plain, readiness, plain),
        **options,  # type: ignore[arg-type]
    )
    return End(muxer, plain, accepted)


@asynccontextmanager
async def one_end(**options: object) -> AsyncIterator[tuple[End, socket.socket]]:
    """An end of ours, and the other end's socket, which blocks."""
    near, far = socket.socketpair()
    async with running_readiness() as readiness, trio.open_nursery() as nursery:
        end = end_on(near, readiness, **options)
        nursery.start_soon(end.muxer.run)
        yield end, far
        nursery.cancel_scope.cancel()
    far.close()


@asynccontextmanager
async def both_ends() -> AsyncIterator[tuple[End, End]]:
    near, far = socket.socketpair()
    async with running_readiness() as readiness, trio.open_nursery() as nursery:
        ends = end_on(near, readiness, initiator=True), end_on(far, readiness)
        for end in ends:
            nursery.start_soon(end.muxer.run)
        with trio.fail_after(SLOW_S):
            yield ends
        nursery.cancel_scope.cancel()


async def read(stream: YamuxStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await stream.receive_some(size)
    return data


async def accepted_by(end: End, number: int = 1) -> YamuxStream:
    while len(end.accepted) < number:
        await trio.sleep(0.001)
    return end.accepted[number - 1]


def frames_from(far: socket.socket) -> list[Frame]:
    """Return the frames that our end has written, to its end."""
    far.settimeout(SLOW_S)
    data = b""
    while piece := far.recv(65_536):
        data += piece
    return list(FrameParser().feed(data))


@dataclass
class Bulk:
    """2 MiB each way on one stream, and what arrives of them."""

    one_way: bytes
    other_way: bytes
    got: dict[str, bytes] = field(default_factory=dict)

    async def go(self, stream: YamuxStream, other: YamuxStream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take, "there", other)
            nursery.start_soon(self._take, "back", stream)
            nursery.start_soon(stream.send_all, self.one_way)
            nursery.start_soon(other.send_all, self.other_way)

    async def _take(self, name: str, stream: YamuxStream) -> None:
        self.got[name] = await read(stream, 2 * MIB)


async def test_bulk_goes_both_ways_at_once() -> None:
    bulk = Bulk(bytes(range(256)) * 8192, bytes(reversed(range(256))) * 8192)
    async with both_ends() as (near, far):
        stream = near.muxer.open_stream()
        await stream.send_all(b"")
        await bulk.go(stream, await accepted_by(far))
    assert bulk.got == {"there": bulk.one_way, "back": bulk.other_way}


@pytest.mark.parametrize("seed", range(20))
async def test_a_cap_that_comes_and_goes_during_bulk_loses_nothing(seed: int) -> None:
    rng = random.Random(seed)
    bulk = Bulk(rng.randbytes(2 * MIB), rng.randbytes(2 * MIB))

    async def change(plain: Plain) -> None:
        for _ in range(rng.randrange(60)):
            await trio.sleep(0)
        for _ in range(rng.randrange(3)):
            plain.cap(holds=True)
            for _ in range(rng.randrange(3)):
                await trio.sleep(0)
            plain.cap(holds=False)
        plain.cap(holds=True)

    async with both_ends() as (near, far):
        stream = near.muxer.open_stream()
        await stream.send_all(b"")
        other = await accepted_by(far)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bulk.go, stream, other)
            for end in (near, far):
                nursery.start_soon(change, end.plain)
        for end, mine, theirs in ((near, stream, other), (far, other, stream)):
            await mine.send_all(b"capped")
            assert await read(theirs, 6) == b"capped"
            assert end.muxer._driver._successor is not None  # type: ignore[attr-defined]
    assert bulk.got == {"there": bulk.one_way, "back": bulk.other_way}


async def test_a_cap_that_is_lifted_before_it_took_effect_holds_up_nothing() -> None:
    async with both_ends() as (near, far):
        stream = near.muxer.open_stream()
        await stream.send_all(b"")
        other = await accepted_by(far)
        near.plain.cap(holds=True)
        near.muxer._driver.flush_now()
        assert stream.post(b"soon")
        near.plain.cap(holds=False)
        assert await read(other, 4) == b"soon"
        await other.send_all(b"back")
        assert await read(stream, 4) == b"back"


async def test_a_peer_that_must_pause_is_read_in_order_when_a_cap_comes() -> None:
    account = Strict()
    async with one_end(account=account) as (end, far):
        ping = encode_header(FrameType.PING, Flag.SYN, 0, 0)
        far.sendall(b"".join(ping[:-1] + bytes([number]) for number in range(5)))
        while len(account.charged) < 2:
            await trio.sleep(0.001)
        end.plain.cap(holds=True)
        while len(account.charged) < 5:
            await trio.sleep(0.001)
        far.sendall(encode_header(FrameType.GO_AWAY, Flag.NONE, 0, 0))
        answers = await trio.to_thread.run_sync(frames_from, far)
    assert [frame.length for frame in answers if frame.type is FrameType.PING] == list(range(5))


async def test_with_a_cap_what_breaks_the_protocol_and_a_peer_that_hangs_up_end_it_as_well() -> None:
    async with one_end() as (end, far):
        end.plain.cap(holds=True)
        far.sendall(bytes([9]) + bytes(11))
        frames = await trio.to_thread.run_sync(frames_from, far)
        assert frames[-1] == Frame(FrameType.GO_AWAY, 0, 0, 1)
        assert "yamux version 9" in end.muxer.end_reason
    async with one_end() as (end, far):
        end.plain.cap(holds=True)
        stream = end.muxer.open_stream()
        far.close()
        with pytest.raises(StreamBroken, match="connection was lost"):
            await stream.receive_some(1)


async def test_while_one_reader_pauses_all_else_goes_on() -> None:
    async with both_ends() as (near, far), trio.open_nursery() as nursery:
        stuck, moving = near.muxer.open_stream(), near.muxer.open_stream()
        nursery.start_soon(stuck.send_all, bytes(MIB))
        nursery.start_soon(moving.send_all, b"x" * MIB)
        assert await read(await accepted_by(far, 2), MIB) == b"x" * MIB
        assert await read(await accepted_by(far, 1), MIB) == bytes(MIB)


async def test_what_a_socket_does_not_take_goes_when_it_does() -> None:
    async with one_end(initiator=True) as (end, far):
        stream = end.muxer.open_stream()
        stream.on_window(100 * MIB)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, bytes(4 * MIB))
            nursery.start_soon(trio.to_thread.run_sync, drain, far, 4 * MIB)
        assert not end.plain.rest


def drain(far: socket.socket, payload: int) -> None:
    """Read until so much payload of DATA frames has come."""
    parser = FrameParser()
    far.settimeout(SLOW_S)
    while payload > 0:
        payload -= sum(frame.length for frame in parser.feed(far.recv(65_536)) if frame.type is FrameType.DATA)


async def test_what_breaks_the_protocol_is_answered_and_ends_it() -> None:
    async with one_end() as (end, far):
        far.sendall(bytes([9]) + bytes(11))
        frames = await trio.to_thread.run_sync(frames_from, far)
    assert frames[-1] == Frame(FrameType.GO_AWAY, 0, 0, 1)
    assert "yamux version 9" in end.muxer.end_reason


async def test_a_peer_that_hangs_up_ends_it() -> None:
    async with one_end() as (end, far):
        stream = end.muxer.open_stream()
        far.close()
        with pytest.raises(StreamBroken, match="connection was lost"):
            await stream.receive_some(1)


async def test_a_peer_that_hangs_up_while_we_write_ends_it() -> None:
    async with one_end(initiator=True) as (end, far):
        stream = end.muxer.open_stream()
        stream.on_window(100 * MIB)
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                with pytest.raises(StreamBroken, match="connection was lost"):
                    await stream.send_all(bytes(50 * MIB))

            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked(0.01)
            far.close()


async def test_our_good_bye_comes_last_and_theirs_ends_it() -> None:
    async with one_end(initiator=True) as (end, far):
        stream = end.muxer.open_stream()
        await stream.send_all(b"last words")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end.muxer.aclose)
            kinds = [frame.type for frame in await trio.to_thread.run_sync(frames_from, far)]
    assert kinds == [FrameType.WINDOW_UPDATE, FrameType.DATA, FrameType.GO_AWAY]
    async with one_end() as (end, far):
        far.sendall(encode_header(FrameType.GO_AWAY, Flag.NONE, 0, 0))
        await trio.to_thread.run_sync(frames_from, far)
    assert "the peer closed the connection" in end.muxer.end_reason


@pytest.mark.parametrize("piece", [1, 7, HEADER.size, 65_536])
async def test_a_peer_that_must_pause_is_read_later_and_in_order(piece: int) -> None:
    account = Strict()
    async with one_end(account=account) as (end, far):
        end.plain.piece = piece
        ping = encode_header(FrameType.PING, Flag.SYN, 0, 0)
        far.sendall(b"".join(ping[:-1] + bytes([number]) for number in range(5)))
        while len(account.charged) < 5:
            await trio.sleep(0.001)
        far.sendall(encode_header(FrameType.GO_AWAY, Flag.NONE, 0, 0))
        answers = await trio.to_thread.run_sync(frames_from, far)
    assert [frame.length for frame in answers if frame.type is FrameType.PING] == list(range(5))
    apart = [later - sooner for sooner, later in zip(account.charged[1:], account.charged[2:], strict=False)]
    assert min(apart) >= account.pause_s


async def test_a_connection_that_holds_much_lets_others_have_their_turn() -> None:
    """Single bytes, of which it holds thousands: the scheduler comes round more often than the bytes are few."""
    async with one_end() as (end, far):
        end.plain.piece = 1
        pings = 40 * READS_AT_ONCE
        far.sendall(encode_header(FrameType.PING, Flag.SYN, 0, 1) * pings)
        turns, seen = 0, b""
        far.setblocking(False)
        while seen.count(encode_header(FrameType.PING, Flag.ACK, 0, 1)) < pings:
            turns += 1
            await trio.sleep(0)
            try:
                seen += far.recv(65_536)
            except BlockingIOError:
                continue
        assert turns >= pings * HEADER.size // READS_AT_ONCE


def framed(stream: YamuxStream, limit: int = 2 * MIB) -> FrameStream:
    stream.remote, stream.protocol = PEER, "/frames/1"  # type: ignore[attr-defined]
    return FrameStream(cast("Stream", stream), limit)


BODIES = [b"", b"one", bytes(100), b"left", b"x" * 300_000, b"left", b"", b"left", b"y" * MIB, b"last"]


@pytest.mark.parametrize("piece", [37, 5000, 65_536])
async def test_frames_are_taken_as_they_come_and_what_is_left_is_handed_on(piece: int) -> None:
    taken: list[bytes] = []
    seen: list[bytes] = []

    def take(body: bytes) -> bool:
        if body == b"left":
            return False
        taken.append(body)
        seen.append(body)
        return True

    async with both_ends() as (near, far), trio.open_nursery() as nursery:
        far.plain.piece = max(piece, 1)
        stream = near.muxer.open_stream()
        await stream.send_all(b"")

        async def send() -> None:
            for body in BODIES:
                await framed_out.send_bytes(body)
            await stream.send_eof()

        framed_out = framed(stream)
        frames = framed(await accepted_by(far))
        nursery.start_soon(send)
        while (left := await frames.receive_each(take)) is not None:
            seen.append(left)
    assert seen == BODIES
    assert taken == [body for body in BODIES if body != b"left"]


async def test_who_takes_all_frames_is_not_woken() -> None:
    class Steps(trio.abc.Instrument):
        number = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.number += task is reader

    counted, steps, reader = 0, Steps(), trio.lowlevel.current_task()

    def take(body: bytes) -> bool:
        nonlocal counted
        counted += 1
        return True

    async with both_ends() as (near, far), trio.open_nursery() as nursery:
        stream = near.muxer.open_stream()
        await stream.send_all(b"")
        frames = framed(await accepted_by(far))

        async def send() -> None:
            for _ in range(50):
                await framed(stream).send_bytes(bytes(100_000))
            await stream.send_eof()

        trio.lowlevel.add_instrument(steps)
        nursery.start_soon(send)
        assert await frames.receive_each(take) is None
        trio.lowlevel.remove_instrument(steps)
    assert counted == 50
    assert steps.number < 10


@pytest.mark.parametrize("kind", ["raises", "too long"])
async def test_what_goes_wrong_with_a_frame_is_raised_where_it_is_waited_for(kind: str) -> None:
    def take(body: bytes) -> bool:
        if body == b"bad":
            raise PeerError(Fault.MALFORMED, "bad words")
        return True

    async with both_ends() as (near, far), trio.open_nursery() as nursery:
        stream = near.muxer.open_stream()
        await stream.send_all(b"")
        frames = framed(await accepted_by(far), 100)

        async def send() -> None:
            await framed(stream).send_bytes(b"good")
            await trio.testing.wait_all_tasks_blocked(0.01)
            await framed(stream).send_bytes(b"bad" if kind == "raises" else bytes(101))

        nursery.start_soon(send)
        with pytest.raises(PeerError, match="bad words" if kind == "raises" else "a frame of 101 bytes"):
            await frames.receive_each(take)


async def test_whoever_stops_waiting_loses_no_frame() -> None:
    got: list[bytes] = []

    def take(body: bytes) -> bool:
        got.append(body)
        return True

    async with both_ends() as (near, far):
        stream = near.muxer.open_stream()
        await stream.send_all(b"")
        frames = framed(await accepted_by(far))
        sent = [bytes([number]) * (1 + 37 * number) for number in range(60)]
        for number, body in enumerate(sent):
            raw = len(body).to_bytes(4, "big") + body
            await stream.send_all(raw[: len(raw) // 2])
            with trio.move_on_after(0.002 * (number % 2)):
                await frames.receive_each(take)
            await stream.send_all(raw[len(raw) // 2 :])
        await stream.send_eof()
        assert await frames.receive_each(take) is None
    assert got == sent


async def test_what_is_started_goes_without_a_task_and_says_when_it_is_gone() -> None:
    told: list[int] = []
    gone = trio.Event()
    async with both_ends() as (near, far):
        stream = near.muxer.open_stream()
        assert stream.start([b"head", bytes(3 * MIB)], told.append, gone.set)
        assert not stream.start([b"another"], told.append, gone.set), "one at a time"
        await read(await accepted_by(far), 3 * MIB + 4)
        await gone.wait()
        assert 0 < sum(told) < 3 * MIB + 4
        again = trio.Event()
        assert stream.start([b"another"], told.append, again.set)
        await again.wait()
        await stream.abort()
        with pytest.raises(StreamBroken):
            stream.start([b"more"], told.append, gone.set)


async def test_what_is_started_on_a_stream_that_breaks_is_never_gone() -> None:
    gone: list[str] = []
    async with both_ends() as (near, far):
        stream = near.muxer.open_stream()
        assert stream.start([bytes(3 * MIB)], lambda size: None, lambda: gone.append("gone"))
        await (await accepted_by(far)).abort()
        with pytest.raises(StreamBroken):
            await read(stream, 1)
        await trio.testing.wait_all_tasks_blocked()
    assert gone == []
