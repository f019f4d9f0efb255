"""Frames over streams that break, stop halfway, deliver in any pieces, and are cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.codec import encode
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.ids import PeerId
from protocol.versions.exchange import AskNewest, Question
from swarm.testing.memory_transport import WINDOW_BYTES, MemoryNetwork
from swarm.transport.framing import IN_A_ROW, PREFIX, FrameStream, open_frames
from swarm.transport.interface import Stream, StreamBroken
from tests.support.swarm_fixture import peer_of

ECHO = "/test/frames/1"
LIMIT = 1000
SOMEBODY = peer_of("somebody")


@dataclass
class Pieces:
    """A stream that delivers given pieces and then ends."""

    pieces: list[bytes]
    remote: PeerId = SOMEBODY
    protocol: str = ECHO
    read: int = 0
    expected: list[int] = field(default_factory=list)

    def expect(self, size: int) -> None:
        self.expected.append(size)

    async def receive_some(self, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self.pieces:
            return b""
        piece = self.pieces[0][:max_bytes]
        self.pieces[0] = self.pieces[0][max_bytes:]
        if not self.pieces[0]:
            self.pieces.pop(0)
        self.read += len(piece)
        return piece

    async def send_all(self, data: bytes) -> None: ...

    def retain(self, size: int) -> None: ...

    async def send_eof(self) -> None: ...

    async def aclose(self) -> None: ...

    async def abort(self) -> None: ...


def frame(body: bytes) -> bytes:
    return PREFIX.pack(len(body)) + body


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [piece for start, end in zip([0, *ends], ends, strict=False) if (piece := data[start:end])]


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(0, 10_000), max_size=10))
def test_messages_survive_any_cutting(bodies: list[bytes], places: list[int]) -> None:
    async def receive_all() -> list[bytes]:
        frames = FrameStream(Pieces(cut(b"".join(map(frame, bodies)), places)), LIMIT)
        received = []
        while (body := await frames.receive_bytes()) is not None:
            received.append(body)
        return received

    assert trio.run(receive_all) == bodies


@pytest.mark.parametrize("kept", range(1, PREFIX.size + 3))
async def test_a_stream_that_ends_inside_a_frame_is_broken(kept: int) -> None:
    frames = FrameStream(Pieces([frame(b"abc")[:kept]]), LIMIT)
    with pytest.raises(StreamBroken, match="inside a frame"):
        await frames.receive_bytes()


async def test_a_length_over_the_limit_is_refused_before_it_is_read() -> None:
    stream = Pieces([PREFIX.pack(LIMIT + 1), b"x" * 10 * LIMIT])
    with pytest.raises(PeerError) as caught:
        await FrameStream(stream, LIMIT).receive_bytes()
    assert caught.value.fault is Fault.OVERSIZED
    assert stream.read == PREFIX.size
    assert await FrameStream(Pieces([frame(b"x" * LIMIT)]), LIMIT).receive_bytes() == b"x" * LIMIT


async def test_what_is_no_such_message_is_malformed() -> None:
    frames = FrameStream(Pieces([frame(b"\xc1"), frame(encode(AskNewest()))]), LIMIT)
    with pytest.raises(PeerError) as caught:
        await frames.receive(Question)
    assert caught.value.fault is Fault.MALFORMED
    assert await frames.receive(Question) == AskNewest()


async def test_a_frame_that_does_not_fit_its_length_field_is_our_mistake() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 32

    with pytest.raises(LocalProtocolError):
        await FrameStream(Pieces([]), LIMIT).send_bytes(Huge())


async def test_a_stream_is_told_how_much_is_lacking() -> None:
    stream = Pieces([PREFIX.pack(10) + b"123", b"4567", b"890"])
    assert await FrameStream(stream, LIMIT).receive_bytes() == b"1234567890"
    assert stream.expected == [PREFIX.size, 7, 3]


async def test_receiving_gives_others_a_turn_even_when_all_is_here() -> None:
    frames = FrameStream(Pieces([frame(b"a") * 10 * IN_A_ROW]), LIMIT)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for _ in range(10 * IN_A_ROW):
            await frames.receive_bytes()
        nursery.cancel_scope.cancel()
    assert turns >= 10


@dataclass
class Ends:
    """Two ends of one stream."""

    near: Stream
    far: Stream
    over: trio.Event = field(default_factory=trio.Event)


@asynccontextmanager
async def two_ends() -> AsyncIterator[Ends]:
    network, arrived = MemoryNetwork(), trio.Event()
    async with network.node("a", peer_id=peer_of("a")) as a, network.node("b", peer_id=peer_of("b")) as b:
        far: list[Stream] = []
        over = trio.Event()

        async def keep(stream: Stream) -> None:
            far.append(stream)
            arrived.set()
            await over.wait()

        b.handle(ECHO, keep)
        await a.dial(b.addresses())
        near = await a.open_stream(b.peer_id, ECHO)
        await arrived.wait()
        yield Ends(near, far[0], over)
        over.set()


async def test_a_cancelled_send_aborts_the_stream_for_both_ends() -> None:
    async with two_ends() as ends:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(FrameStream(ends.near, LIMIT).send_bytes, bytes(2 * WINDOW_BYTES))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        with pytest.raises(StreamBroken):
            await FrameStream(ends.far, 4 * WINDOW_BYTES).receive_bytes()
        with pytest.raises(StreamBroken):
            await ends.near.send_all(b"more")


async def test_a_cancelled_receive_loses_nothing() -> None:
    async with two_ends() as ends:
        frames, whole = FrameStream(ends.far, LIMIT), frame(b"hello") + frame(b"world")
        for cut_at in range(len(whole)):
            await ends.near.send_all(whole[cut_at : cut_at + 1])
            if cut_at + 1 not in (9, 18):
                with trio.move_on_after(0) as time_limit:
                    await frames.receive_bytes()
                assert time_limit.cancelled_caught
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(frames.receive_bytes)
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.cancel_scope.cancel()
            else:
                assert await frames.receive_bytes() == (b"hello" if cut_at + 1 == 9 else b"world")


async def test_a_block_that_ends_well_closes_in_good_order() -> None:
    async with two_ends() as ends:
        async with open_frames(ends.near, LIMIT) as frames:
            await frames.send(AskNewest())
        far = FrameStream(ends.far, LIMIT)
        assert await far.receive(Question) == AskNewest()
        assert await far.receive(Question) is None


async def test_a_block_that_raises_tears_the_stream_down() -> None:
    async with two_ends() as ends:
        with pytest.raises(KeyError):
            async with open_frames(ends.near, LIMIT):
                raise KeyError("ours")
        with pytest.raises(StreamBroken):
            await FrameStream(ends.far, LIMIT).receive_bytes()


async def test_a_block_that_is_cancelled_tears_the_stream_down() -> None:
    async with two_ends() as ends:
        with trio.move_on_after(0):
            async with open_frames(ends.near, LIMIT) as frames:
                await frames.receive_bytes()
        with pytest.raises(StreamBroken):
            await FrameStream(ends.far, LIMIT).receive_bytes()
