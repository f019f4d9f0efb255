"""Caps at real sockets, in virtual time: what passes in a second is what the cap says, and waiting does no harm."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from libp2p.io.exceptions import ConnectionClosedError

from protocol.core.codec import encode
from protocol.core.ids import Cid, PeerId
from protocol.versions import exchange
from swarm.libp2p import open_libp2p
from swarm.libp2p.sockets.fair_rate_limit import PIECE_S, SMALL_BYTES
from swarm.libp2p.sockets.rate_limiter import Caps, PacedTcpConnection, Pacer
from swarm.libp2p.sockets.tcp import TcpConnection
from swarm.transfer import upload_queue as uploading
from swarm.transfer.upload_queue import Moved, Requested, Sent, UploadQueue
from swarm.transport.framing import FrameStream
from swarm.transport.interface import Stream

MBIT = 1e6
RATE = 8 * MBIT
"""A million bytes a second; a burst is 50,000."""

BURST_BYTES = 50_000


@pytest.fixture
def jumping_clock() -> trio.testing.MockClock:
    """One that jumps when nothing has happened for a moment: what is in a socket is on its way, in real time."""
    return trio.testing.MockClock(autojump_threshold=0.001)


@asynccontextmanager
async def pair(
    *, upload: Pacer | None = None, download: Pacer | None = None
) -> AsyncIterator[tuple[TcpConnection, trio.SocketStream]]:
    """A connection of ours with caps, and the other end, which the test plays."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        theirs = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        ours = Caps(upload=upload, download=download).connection(await listener.accept(), is_initiator=False)
        async with theirs:
            yield ours, theirs
            await ours.close()


@asynccontextmanager
async def running(pacer: Pacer) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pacer.run)
        yield nursery
        nursery.cancel_scope.cancel()


async def drain(stream: trio.SocketStream) -> None:
    while await stream.receive_some(1 << 20):
        pass


async def test_without_caps_nothing_is_held_back() -> None:
    async with pair() as (ours, theirs):
        assert not ours.is_paced
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.write, bytes(4 << 20))
            for _ in range(4 << 10):
                await theirs.receive_some(1 << 10)
            nursery.cancel_scope.cancel()


async def test_a_cap_that_comes_changes_and_goes_while_bulk_waits(jumping_clock: trio.testing.MockClock) -> None:
    caps = Caps()
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, trio.open_nursery() as nursery:
        theirs = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        ours = caps.connection(await listener.accept(), is_initiator=False)
        nursery.start_soon(drain, theirs)

        def limit(bits_per_s: float | None) -> None:
            caps.limit(nursery, upload_bits_per_s=bits_per_s, download_bits_per_s=None)

        async def taken_s(size: int) -> float:
            began = trio.current_time()
            await ours.write(bytes(size))
            return trio.current_time() - began

        assert await taken_s(4 << 20) < 0.1
        limit(RATE)
        assert await taken_s(1_000_000) == pytest.approx(1.0, abs=0.06)
        began = trio.current_time()
        async with trio.open_nursery() as writing:
            writing.start_soon(ours.write, bytes(2_000_000))
            await trio.sleep(1.0)
            limit(10 * RATE)  # a million is left, which waits now
        assert trio.current_time() - began == pytest.approx(1.1, abs=0.06)
        async with trio.open_nursery() as writing:
            began = trio.current_time()
            writing.start_soon(ours.write, bytes(11_000_000))
            await trio.sleep(1.0)
            limit(RATE)  # pieces of a tenth of that rate's from here on
        assert trio.current_time() - began == pytest.approx(2.0, abs=0.3)
        async with trio.open_nursery() as writing:
            began = trio.current_time()
            writing.start_soon(ours.write, bytes(30_000_000))
            await trio.sleep(1.0)
            limit(None)
        assert trio.current_time() - began == pytest.approx(1.0, abs=0.1)
        assert not ours.is_paced
        limit(RATE)
        assert await taken_s(1_000_000) == pytest.approx(1.0, abs=0.06)
        await ours.close()
        nursery.cancel_scope.cancel()


async def test_a_reader_that_waits_for_the_cap_goes_on_when_that_is_lifted(
    jumping_clock: trio.testing.MockClock,
) -> None:
    caps, sent = Caps(), bytes(range(256)) * 16 * 1024
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, trio.open_nursery() as nursery:
        theirs = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        ours = caps.connection(await listener.accept(), is_initiator=False)
        caps.limit(nursery, upload_bits_per_s=None, download_bits_per_s=RATE)
        nursery.start_soon(theirs.send_all, sent)
        began = trio.current_time()
        got: list[bytes] = []

        async def receive() -> None:
            got.append(await ours.read(len(sent)))

        async with trio.open_nursery() as reading:
            reading.start_soon(receive)
            await trio.sleep(1.0)
            assert not got
            caps.limit(nursery, upload_bits_per_s=None, download_bits_per_s=None)
        assert trio.current_time() - began == pytest.approx(1.0, abs=0.1)
        assert got == [sent]
        await ours.close()
        nursery.cancel_scope.cancel()


async def test_what_is_sent_keeps_to_the_cap(jumping_clock: trio.testing.MockClock) -> None:
    pacer = Pacer(RATE)
    async with pair(upload=pacer) as (ours, theirs), running(pacer) as nursery:
        nursery.start_soon(drain, theirs)
        began = trio.current_time()
        for _ in range(20):
            await ours.write(bytes(256 * 1024))
        taken_s = trio.current_time() - began
        assert (20 * 256 * 1024 - BURST_BYTES) / 1e6 <= taken_s <= 20 * 256 * 1024 / 1e6 * 1.01


async def test_what_is_received_keeps_to_the_cap_and_comes_whole(jumping_clock: trio.testing.MockClock) -> None:
    pacer, sent = Pacer(RATE), bytes(range(256)) * 16 * 1024
    async with pair(download=pacer) as (ours, theirs), running(pacer) as nursery:
        began = trio.current_time()
        nursery.start_soon(theirs.send_all, sent)
        ours.expect(len(sent))
        assert await ours.read(len(sent)) == sent
        taken_s = trio.current_time() - began
        assert (len(sent) - BURST_BYTES) / 1e6 <= taken_s <= len(sent) / 1e6 * 1.01


async def test_a_cap_one_way_leaves_the_other_alone(jumping_clock: trio.testing.MockClock) -> None:
    up, down = Pacer(RATE), Pacer(RATE)
    async with pair(upload=up) as (sends, one), pair(download=down) as (receives, other), running(up) as nursery:
        began = trio.current_time()
        nursery.start_soon(one.send_all, bytes(4 << 20))
        await sends.read(4 << 20)
        nursery.start_soon(drain, other)
        await receives.write(bytes(4 << 20))
        assert trio.current_time() - began < 0.1


async def test_connections_share_the_cap_equally(jumping_clock: trio.testing.MockClock) -> None:
    pacer, size = Pacer(RATE), 500_000
    done: list[float] = []

    async def send(ours: TcpConnection) -> None:
        await ours.write(bytes(size))
        done.append(trio.current_time())

    async with (
        pair(upload=pacer) as (first, one),
        pair(upload=pacer) as (second, two),
        pair(upload=pacer) as (third, three),
        running(pacer) as nursery,
    ):
        for theirs in (one, two, three):
            nursery.start_soon(drain, theirs)
        began = trio.current_time()
        async with trio.open_nursery() as senders:
            for ours in (first, second, third):
                senders.start_soon(send, ours)
    assert done[-1] - began == pytest.approx(3 * size / 1e6, rel=0.05)
    assert done[-1] - done[0] <= 3 * PIECE_S


async def test_a_small_message_does_not_wait_for_the_bulk_of_others(jumping_clock: trio.testing.MockClock) -> None:
    pacer = Pacer(RATE)
    async with pair(upload=pacer) as (bulk, one), pair(upload=pacer) as (control, two), running(pacer) as nursery:
        nursery.start_soon(drain, one)
        nursery.start_soon(bulk.write, bytes(2_000_000))
        await trio.sleep(0.5)
        began = trio.current_time()
        await control.write(b"have")
        assert await two.receive_some(10) == b"have"
        assert trio.current_time() - began <= PIECE_S


async def test_a_small_message_is_read_before_the_bulk_of_others(jumping_clock: trio.testing.MockClock) -> None:
    pacer = Pacer(RATE)
    async with pair(download=pacer) as (bulk, one), pair(download=pacer) as (control, two), running(pacer) as nursery:
        nursery.start_soon(one.send_all, bytes(4_000_000))
        nursery.start_soon(bulk.read, 4_000_000)
        await trio.sleep(0.5)
        began = trio.current_time()
        await two.send_all(bytes(SMALL_BYTES))
        await control.read(SMALL_BYTES)
        assert trio.current_time() - began <= PIECE_S


async def test_waiting_may_be_cancelled_and_others_go_on(jumping_clock: trio.testing.MockClock) -> None:
    pacer = Pacer(RATE)
    async with running(pacer):
        for _ in range(3):  # more than the bucket has
            await pacer.take(pacer.piece_bytes, flow=1, small=False)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(take_a_piece, pacer)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await take_a_piece(pacer)
        assert trio.current_time() - began <= 2 * PIECE_S, "a cancelled wait must take nothing"


async def test_a_read_that_is_cancelled_while_it_waits_for_the_cap_loses_nothing(
    jumping_clock: trio.testing.MockClock,
) -> None:
    pacer, sent = Pacer(RATE), bytes(range(250)) * 1000
    async with pair(download=pacer) as (ours, theirs), running(pacer) as nursery:
        nursery.start_soon(theirs.send_all, sent)
        got = bytearray()
        while len(got) < len(sent):
            with trio.move_on_after(PIECE_S / 3):
                got += await ours.read()
        assert got == sent


async def test_the_end_is_noticed(jumping_clock: trio.testing.MockClock) -> None:
    pacer = Pacer(RATE)
    async with pair(download=pacer) as (ours, theirs), running(pacer):
        await theirs.send_all(b"last")
        await theirs.send_eof()
        assert await ours.read() == b"last"
        with pytest.raises(ConnectionClosedError, match="hung up"):
            await ours.read()


async def test_nothing_is_nothing(jumping_clock: trio.testing.MockClock) -> None:
    pacer = Pacer(RATE)
    async with pair(upload=pacer) as (ours, _), running(pacer):
        assert isinstance(ours, PacedTcpConnection)
        await ours.write(b"")


async def test_nobody_is_woken_while_nobody_waits() -> None:
    pacer = Pacer(RATE)
    steps = Steps()
    async with running(pacer):
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(steps)
        try:
            await pacer.take(100, flow=1, small=True)
            await pacer.take(100, flow=1, small=False)
            await trio.testing.wait_all_tasks_blocked()
        finally:
            trio.lowlevel.remove_instrument(steps)
    assert steps.of["run"] == 0


class Steps(trio.abc.Instrument):
    """How often tasks of each name took a step."""

    def __init__(self) -> None:
        self.of = {"run": 0}

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name.endswith("Pacer.run"):
            self.of["run"] += 1


async def take_a_piece(pacer: Pacer) -> None:
    await pacer.take(pacer.piece_bytes, flow=1, small=False)


async def test_a_host_keeps_to_its_caps_and_who_serves_finds_its_uplink_as_fast_as_that(
    jumping_clock: trio.testing.MockClock,
) -> None:
    chunk, num_chunks = exchange.Chunk(cid=bytes(36), data=os.urandom(256 * 1024)), 16
    uploads, peer = UploadQueue(), PeerId("peer")

    def request(number: int) -> Requested:
        return Requested(peer=peer, cid=Cid(bytes([number]) * 36), size=len(chunk.data))

    def tell(event: uploading.Event) -> None:
        uploads.handle(event, trio.current_time())

    async def take(stream: Stream) -> None:
        while await stream.receive_some(1 << 20):
            pass
        await stream.send_all(b"all")

    async with (
        open_libp2p(bytes([1]) * 32, ["/ip4/127.0.0.1/tcp/0"]) as taker,
        open_libp2p(bytes([2]) * 32, [], upload_bits_per_s=RATE) as giver,
    ):
        taker.handle("/take/1", take)
        stream = await giver.open_stream(await giver.dial(taker.addresses()), "/take/1")
        began = trio.current_time()
        tell(request(0))
        for number in range(num_chunks):
            await FrameStream(stream, 1 << 20).send_bytes(
                encode(chunk), note_progress=lambda size: tell(Moved(peer=peer, size=size))
            )
            if number + 1 < num_chunks:  # without a break, as when more requests wait
                tell(request(number + 1))
            tell(Sent(peer=peer))
        await stream.send_eof()
        assert await stream.receive_some(3) == b"all"
        assert trio.current_time() - began == pytest.approx(num_chunks * len(chunk.data) / 1e6, rel=0.05)
    assert uploads._bytes_per_s == pytest.approx(1e6, rel=0.1)


@pytest.mark.parametrize("direction", ["upload", "download"])
async def test_caps_of_a_host_change_on_connections_that_are_open(
    jumping_clock: trio.testing.MockClock, direction: str
) -> None:
    """Each end's connection moves bytes without tasks until the first cap comes, and with tasks from then on."""
    sent, got = os.urandom(2_000_000), list[bytes]()

    async def take(stream: Stream) -> None:
        data = b""
        while piece := await stream.receive_some(1 << 20):
            data += piece
        got.append(data)
        await stream.send_all(b"all")

    async with (
        open_libp2p(bytes([1]) * 32, ["/ip4/127.0.0.1/tcp/0"]) as taker,
        open_libp2p(bytes([2]) * 32, []) as giver,
    ):
        taker.handle("/take/1", take)
        await giver.dial(taker.addresses())

        async def taken_s() -> float:
            began = trio.current_time()
            stream = await giver.open_stream(taker.peer_id, "/take/1")
            await stream.send_all(sent)
            await stream.send_eof()
            assert await stream.receive_some(3) == b"all"
            return trio.current_time() - began

        assert await taken_s() < 0.5
        for rate in (RATE, None, RATE):
            if direction == "upload":
                giver.limit_rates(upload_bits_per_s=rate, download_bits_per_s=None)
            else:
                taker.limit_rates(upload_bits_per_s=None, download_bits_per_s=rate)
            assert await taken_s() == pytest.approx(2.0 if rate else 0.1, abs=0.2)
        assert giver.connected_peers() == {taker.peer_id}
        assert got == [sent] * 4
