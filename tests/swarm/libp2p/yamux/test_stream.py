"""Handle what may happen within one read or write of a connection: broken streams, leaving readers, chained sends.

The test drives the muxer, frame by frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import pytest
import trio
import trio.testing

from swarm.libp2p.yamux.connection import FRAME_PAYLOAD, MIN_WRITE_BYTES, YamuxConnection
from swarm.libp2p.yamux.frames import Frame, FrameParser, FrameType
from swarm.libp2p.yamux.stream import POSTED_BYTES, Meter, YamuxStream
from swarm.transport.framing import PREFIX, TAKEN_AT_ONCE, FrameStream
from swarm.transport.interface import Stream, StreamBroken
from tests.support.swarm_fixture import peer_of

pytestmark = pytest.mark.trio

PEER = peer_of("somebody")
WINDOW = 1 << 30


class Nowhere:
    """A connection over which nothing comes or goes."""

    async def receive(self, expected: int) -> bytes:
        await trio.sleep_forever()

    async def send(self, data: bytes) -> None:
        await trio.sleep_forever()

    def hurry(self) -> None: ...

    async def aclose(self) -> None: ...


@dataclass
class Account:
    """Counts what is held; beyond `limit` it breaks its connection off at once, as the host does."""

    limit: float = float("inf")
    held: int = 0
    break_off: Callable[[str], None] = lambda reason: None
    is_member: bool = True
    max_streams: int = 100

    def hold(self, delta: int) -> None:
        self.held += delta
        if self.held > self.limit:
            self.limit = float("inf")
            self.break_off("over its budget")

    def charge(self, cost: float) -> float:
        return 0.0


def muxer_of(account: Account | None = None) -> YamuxConnection:
    muxer = YamuxConnection(Nowhere(), initiator=True, accept=lambda stream: None, account=account)
    if account is not None:
        account.break_off = muxer.break_off
    return muxer


def framed(stream: YamuxStream, limit: int = 1 << 21) -> FrameStream:
    stream.remote, stream.protocol = PEER, "/frames/1"  # type: ignore[attr-defined]
    return FrameStream(cast("Stream", stream), limit)


def comes(muxer: YamuxConnection, *frames: tuple[YamuxStream, bytes]) -> None:
    """All of these frames of bulk come in one read."""
    pieces = [Frame(FrameType.DATA, 0, stream.id, len(payload), payload) for stream, payload in frames]
    assert muxer.take(iter(pieces)) is None


def written(muxer: YamuxConnection) -> list[int]:
    """The payloads of the frames of the next write."""
    return [frame.length for frame in FrameParser().feed(muxer.next_write()) if frame.type is FrameType.DATA]


async def test_a_connection_that_is_broken_off_in_the_middle_of_a_read_breaks_its_readers_and_nothing_else() -> None:
    account = Account(limit=200_000)
    muxer = muxer_of(account)
    greedy, waiting = muxer.open_stream(), muxer.open_stream()
    frames = framed(waiting)

    async def wait() -> None:
        with pytest.raises(StreamBroken, match="over its budget"):
            await frames.receive_each(lambda body: True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        comes(muxer, (greedy, bytes(250_000)), (waiting, bytes(2000)), (greedy, bytes(5000)))
    assert account.held == 0


@pytest.mark.parametrize("beyond", [-1, 0, 1, 60, 5000])
async def test_a_frame_is_taken_whole_however_much_of_it_comes_at_once(beyond: int) -> None:
    """Also when it is more than is asked for between two frames."""
    body, taken = bytes(262_144 - PREFIX.size + beyond), list[bytes]()
    muxer = muxer_of()
    stream = muxer.open_stream()
    stream._receive_window = WINDOW
    frames = framed(stream)

    def take(body: bytes) -> bool:
        taken.append(body)
        return True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(frames.receive_each, take)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            comes(muxer, (stream, PREFIX.pack(len(body)) + body))
        assert taken == [body] * 3
        nursery.cancel_scope.cancel()


async def test_many_small_frames_are_not_taken_in_one_turn_and_none_is_lost() -> None:
    taken, turns = list[bytes](), list[int]()
    muxer = muxer_of()
    stream = muxer.open_stream()
    frames = framed(stream)
    sent = [bytes([number % 256]) * 3 for number in range(10 * TAKEN_AT_ONCE)]

    def take(body: bytes) -> bool:
        taken.append(body)
        return True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(frames.receive_each, take)
        await trio.testing.wait_all_tasks_blocked()
        comes(muxer, (stream, b"".join(PREFIX.pack(3) + body for body in sent)))
        assert len(taken) == TAKEN_AT_ONCE
        while len(taken) < len(sent):
            turns.append(len(taken))
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert taken == sent
    assert len(turns) > 10


async def test_a_reader_that_leaves_when_a_frame_is_left_for_it_takes_nothing_for_the_end() -> None:
    muxer = muxer_of()
    stream = muxer.open_stream()
    frames = framed(stream)
    scope = trio.CancelScope()

    async def wait() -> None:
        with scope:
            await frames.receive_each(lambda body: False)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        comes(muxer, (stream, PREFIX.pack(2000) + b"x" * 2000))
    assert await frames.receive_bytes() == b"x" * 2000
    with trio.move_on_after(0.01) as time_limit:
        await frames.receive_bytes()
    assert time_limit.cancelled_caught, "it waits for more"


async def test_what_is_held_is_what_waits_however_long_something_waits() -> None:
    account = Account()
    muxer = muxer_of(account)
    muxer._write_bytes = MIN_WRITE_BYTES
    stream = muxer.open_stream()
    stream.on_window(WINDOW)
    for _ in range(500):
        while stream.post(bytes(300)):
            pass
        muxer.next_write()
        assert stream._unsent <= account.held <= POSTED_BYTES
    while muxer.next_write():
        pass
    assert account.held == 0


async def test_who_sends_does_not_wait_for_what_others_post_behind_it() -> None:
    muxer = muxer_of()
    stream = muxer.open_stream()
    stream.on_window(WINDOW)
    done = trio.Event()

    async def send() -> None:
        await stream.send_all(bytes(100_000))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        while not done.is_set():
            stream.post(bytes(100))
            muxer.next_write()
            stream.post(bytes(100))
            await trio.testing.wait_all_tasks_blocked()
            assert stream._unsent, "something always waits"


def start_again_and_again(stream: YamuxStream, size: int) -> list[int]:
    """Start a send whenever the one before is gone; return what progress was told."""
    told: list[int] = []

    def again() -> None:
        assert stream.start([bytes(size)], told.append, again)

    again()
    return told


async def test_sends_that_follow_each_other_are_as_long_as_the_first() -> None:
    muxer = muxer_of()
    muxer._write_bytes = 4 * (FRAME_PAYLOAD + 12)
    stream = muxer.open_stream()
    stream.on_window(WINDOW)
    start_again_and_again(stream, 131_072)
    lengths = [length for _ in range(20) for length in written(muxer)]
    assert set(lengths) == {131_072}


async def test_sends_that_follow_each_other_leave_others_their_turns() -> None:
    muxer = muxer_of()
    muxer._write_bytes = FRAME_PAYLOAD + 12
    one, other = muxer.open_stream(), muxer.open_stream()
    for stream in (one, other):
        stream.on_window(WINDOW)
    start_again_and_again(one, 60_000)
    assert other.start([bytes(20_000_000)], lambda size: None, lambda: None)
    sizes: dict[int, int] = {one.id: 0, other.id: 0}
    for _ in range(200):
        for frame in FrameParser().feed(muxer.next_write()):
            if frame.type is FrameType.DATA:
                sizes[frame.stream_id] += frame.length
    assert 0.8 < sizes[one.id] / sizes[other.id] < 1.25


async def test_progress_is_told_of_all_but_the_last_of_a_send() -> None:
    muxer = muxer_of()
    stream = muxer.open_stream()
    stream.on_window(WINDOW)
    told, gone = list[int](), list[str]()
    assert stream.start([bytes(500_000)], told.append, lambda: gone.append("gone"))
    while not gone:
        assert muxer.next_write()
    assert 0 < sum(told) < 500_000


async def test_what_was_counted_as_sent_is_never_taken_back() -> None:
    """A stream that breaks with bytes before it in line: only what the connection took of them had counted."""
    muxer = muxer_of()
    stream = muxer.open_stream()
    stream._send_window = WINDOW
    assert stream.start((bytes(3 * FRAME_PAYLOAD),), lambda size: None, lambda: None)
    sizes = written(muxer)
    assert 0 < stream.meter.sent == sum(sizes) < 3 * FRAME_PAYLOAD
    stream.break_("gone", keep_received=False)
    assert stream.meter.sent == sum(sizes)


async def test_a_meter_counts_what_is_sent_after_it_was_attached() -> None:
    """As after the negotiation of a protocol, whose last words may still wait for the writer."""
    muxer = muxer_of()
    stream = muxer.open_stream()
    assert stream.post(bytes(35))
    stream.count_on(meter := Meter())
    assert stream.post(bytes(5))
    assert sum(written(muxer)) == 40
    assert meter.sent == 5
