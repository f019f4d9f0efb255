"""Check that a transport keeps all promises: a list of checks, each an async function of a `Harness` that makes nodes.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_conformance(check):
        await check(my_harness)

A check that passes returns. One that fails raises AssertionError, or trio.TooSlowError if an operation was stuck. The
checks use only the interface of a transport, as does trio's `testing.check_two_way_stream`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Protocol

import trio
import trio.testing

from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.ids import PeerId
from protocol.core.limits import MAX_ANNOUNCEMENT_BYTES
from swarm.transport.interface import (
    Broadcast,
    DialFailed,
    PeerConnected,
    PeerDisconnected,
    Stream,
    StreamBroken,
    StreamRefused,
    Traffic,
    Transport,
)

HANG_S = 120.0
"""Seconds after which a check counts as stuck: far more than the slowest takes on a busy machine."""

ECHO = "/test/echo/1"
COUNT = "/test/count/1"
HOLD = "/test/hold/1"
READ_BYTES = 65_536
MIB = 1024 * 1024
PERIOD = bytes((i * 7 + (i >> 8) * 13) & 0xFF for i in range(65_521))


class Harness(Protocol):
    """Makes the nodes of one network."""

    def node(self, name: str, *, listens: bool = True) -> AbstractAsyncContextManager[Transport]:
        """Add a node while the scope lasts. Names are unique within a check."""

    def nowhere(self, peer: PeerId) -> str:
        """Return an address at which no node answers."""

    def misdirected(self, address: str, peer: PeerId) -> str:
        """Return `address` with `peer` as the peer that it names."""


Check = Callable[[Harness], Awaitable[None]]


async def read_all(stream: Stream) -> bytes:
    """Return everything up to the other side's end."""
    data = bytearray()
    while piece := await stream.receive_some(READ_BYTES):
        data += piece
    return bytes(data)


async def read_exactly(stream: Stream, size: int) -> bytes:
    """Return the next `size` bytes."""
    data = bytearray()
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        assert piece, f"the stream ended after {len(data)} of {size} bytes"
        data += piece
    return bytes(data)


def pattern(size: int, salt: int = 0) -> bytes:
    """Return `size` bytes that reveal a lost, doubled or swapped piece, because the period divides no frame size."""
    start = salt * 97 % len(PERIOD)
    return (PERIOD * (size // len(PERIOD) + 2))[start : start + size]


async def echo(stream: Stream) -> None:
    """Send back all bytes, until the end."""
    while data := await stream.receive_some(READ_BYTES):
        await stream.send_all(data)


async def count(stream: Stream) -> None:
    """Answer, at the end, with the number of received bytes."""
    await stream.send_all(str(len(await read_all(stream))).encode())


async def hold(stream: Stream) -> None:
    """Send one byte, then neither read nor write."""
    await stream.send_all(b"!")
    await trio.sleep_forever()


@asynccontextmanager
async def pair(harness: Harness) -> AsyncIterator[tuple[Transport, Transport]]:
    """Yield two connected nodes, (a, b), that both serve ECHO, COUNT and HOLD. b dialled, and does not listen."""
    async with harness.node("a") as a, harness.node("b", listens=False) as b:
        for node in (a, b):
            node.handle(ECHO, echo)
            node.handle(COUNT, count)
            node.handle(HOLD, hold)
        await connect(b, a)
        yield a, b


async def connect(dialler: Transport, listener: Transport) -> None:
    """Dial, and wait until both ends report the connection."""
    events = listener.events()
    assert await dialler.dial(listener.addresses()) == listener.peer_id
    async for event in events:
        if isinstance(event, PeerConnected) and event.peer == dialler.peer_id:
            break
    events.close()


async def check_bytes_arrive_in_order_both_ways(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        for opener, server in ((a, b), (b, a)):
            stream = await opener.open_stream(server.peer_id, ECHO)
            assert (stream.remote, stream.protocol) == (server.peer_id, ECHO)
            sent = pattern(300_001)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_send_pieces, stream, sent)
                assert await read_all(stream) == sent
            await stream.aclose()


async def _send_pieces(stream: Stream, data: bytes) -> None:
    for start in range(0, len(data), 7_919):
        await stream.send_all(data[start : start + 7_919])
    await stream.send_eof()


async def check_what_is_posted_arrives_in_order(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        stream = await b.open_stream(a.peer_id, ECHO)
        sent = b""
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                nonlocal sent
                for number in range(200):
                    piece = pattern(number + 1, number)
                    sent += piece
                    if not stream.post(piece):
                        await stream.send_all(piece)
                await stream.send_eof()

            nursery.start_soon(write)
            got = await read_all(stream)
        assert got == sent
        with raises(StreamBroken, ""):
            stream.post(b"after the end")


async def check_what_nobody_reads_is_posted_within_bounds(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        stream = await b.open_stream(a.peer_id, HOLD)
        posted = 0
        while stream.post(bytes(1000)):
            posted += 1000
            await trio.lowlevel.checkpoint()
            assert posted < 4 * MIB, "nothing bounds what is posted"
        assert posted, "a small message must be accepted at once"
        await _echo_once(b, a.peer_id, pattern(1000))


async def check_parts_are_one_message_and_progress_is_told(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        stream = await b.open_stream(a.peer_id, COUNT)
        told: list[int] = []
        parts: list[bytes | memoryview] = [b"", pattern(7), memoryview(pattern(2 * MIB)), b"", pattern(1)]
        await stream.send_all(*parts, note_progress=told.append)
        await stream.send_eof()
        assert await read_all(stream) == str(2 * MIB + 8).encode()
        assert 0 < sum(told) < 2 * MIB + 8
        assert min(told) > 0


async def check_arrivals_are_counted_before_they_are_read(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        stream = await b.open_stream(a.peer_id, ECHO)
        await stream.send_all(pattern(5000))
        while stream.num_arrived < 5000:
            await trio.lowlevel.checkpoint()
        assert await read_exactly(stream, 5000) == pattern(5000)
        assert stream.num_arrived == 5000


async def check_many_streams_at_once(harness: Harness) -> None:
    async with pair(harness) as (a, b), trio.open_nursery() as nursery:
        a.trust(b.peer_id)  # a stranger may open fewer streams
        for salt in range(50):
            nursery.start_soon(_echo_once, (a, b)[salt % 2], (b, a)[salt % 2].peer_id, pattern(10_000, salt))


async def _echo_once(opener: Transport, peer: PeerId, data: bytes) -> None:
    stream = await opener.open_stream(peer, ECHO)
    await stream.send_all(data)
    await stream.send_eof()
    assert await read_all(stream) == data
    await stream.aclose()


async def check_many_streams_one_after_another(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        a.trust(b.peer_id)  # a stranger would be slowed down
        for salt in range(300):
            await _echo_once(b, a.peer_id, pattern(100, salt))


async def check_large_message_is_answered(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        stream = await a.open_stream(b.peer_id, COUNT)
        await stream.send_all(pattern(4 * MIB))
        await stream.send_eof()
        assert await read_all(stream) == str(4 * MIB).encode()


async def check_large_message_while_the_other_side_answers(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        stream = await b.open_stream(a.peer_id, ECHO)
        sent = pattern(4 * MIB)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_whole, stream, sent)
            assert await read_all(stream) == sent


async def _send_whole(stream: Stream, data: bytes) -> None:
    await stream.send_all(data)
    await stream.send_eof()


async def check_bulk_both_ways_on_several_streams(harness: Harness) -> None:
    async with pair(harness) as (a, b), trio.open_nursery() as nursery:
        for opener, peer in ((a, b.peer_id), (b, a.peer_id)):
            for _ in range(2):
                nursery.start_soon(_count_once, opener, peer, 2 * MIB)


async def _count_once(opener: Transport, peer: PeerId, size: int) -> None:
    stream = await opener.open_stream(peer, COUNT)
    await _send_whole(stream, pattern(size))
    assert await read_all(stream) == str(size).encode()


async def check_both_ends_send_before_either_reads(harness: Harness) -> None:
    """There is no deadlock within a connection: other streams work while both directions of one are full."""
    async with pair(harness) as (a, b), trio.open_nursery() as nursery:
        for opener, peer in ((a, b.peer_id), (b, a.peer_id)):
            stream = await opener.open_stream(peer, HOLD)
            assert await read_exactly(stream, 1) == b"!"
            nursery.start_soon(_send_forever, stream)
        await trio.testing.wait_all_tasks_blocked()
        await _echo_once(a, b.peer_id, pattern(200_000))
        await _echo_once(b, a.peer_id, pattern(200_000))
        nursery.cancel_scope.cancel()


async def _send_forever(stream: Stream) -> None:
    while True:
        await stream.send_all(bytes(READ_BYTES))


async def check_send_waits_for_a_reader_that_pauses(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        proceed = trio.Event()

        async def pausing(stream: Stream) -> None:
            await proceed.wait()
            await count(stream)

        a.handle("/test/pausing/1", pausing)
        stream = await b.open_stream(a.peer_id, "/test/pausing/1")
        finished = trio.Event()

        async def send() -> None:
            await _send_whole(stream, pattern(8 * MIB))
            finished.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await _echo_once(b, a.peer_id, pattern(100_000))
            assert not finished.is_set(), "8 MiB were accepted though the other side did not read"
            proceed.set()
            assert await read_all(stream) == str(8 * MIB).encode()


async def check_send_eof_leaves_the_other_direction_open(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        stream = await a.open_stream(b.peer_id, ECHO)
        await stream.send_all(b"last words")
        await stream.send_eof()
        assert await read_all(stream) == b"last words"
        assert await stream.receive_some(1) == b"", "the end is not final"
        await expect_broken(stream.send_all(b"more"))
        await stream.aclose()
        await stream.aclose()


@contextmanager
def raises(kind: type[Exception], words: str = "") -> Iterator[None]:
    """Check that the body raises `kind`, with a message that contains `words`."""
    try:
        yield
    except kind as error:
        message = str(error)
    else:
        raise AssertionError(f"{kind.__name__} was not raised")
    assert message, f"{kind.__name__} does not say why"
    assert words in message, message


async def expect_broken(operation: Awaitable[object]) -> None:
    """Await `operation`, which must raise StreamBroken."""
    with raises(StreamBroken):
        await operation


async def check_what_is_expected_comes_whatever_it_is(harness: Harness) -> None:
    """The expected size is larger than any window, larger than the data, and smaller than the data."""
    async with pair(harness) as (a, b), trio.open_nursery() as nursery:
        stream = await b.open_stream(a.peer_id, ECHO)
        nursery.start_soon(_send_whole, stream, pattern(4 * MIB + 7))
        got = bytearray()
        while len(got) < 4 * MIB:
            stream.expect(4 * MIB - len(got))
            got += await stream.receive_some(4 * MIB - len(got))
        stream.expect(READ_BYTES)
        while piece := await stream.receive_some(READ_BYTES):
            got += piece
        assert got == pattern(4 * MIB + 7)
        stream = await b.open_stream(a.peer_id, ECHO)
        await stream.send_all(b"four")
        stream.expect(4)
        assert await read_exactly(stream, 3) == b"fou"
        stream.expect(1)
        assert await stream.receive_some(1) == b"r"


async def check_what_was_expected_is_forgotten_when_it_was_read(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        stream = await b.open_stream(a.peer_id, ECHO)
        await stream.send_all(pattern(1000))
        stream.expect(1000)
        assert await read_exactly(stream, 1000) == pattern(1000)
        await stream.send_all(b"x")
        assert await stream.receive_some(10) == b"x"


async def check_closing_delivers_what_was_sent(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        send, receive = trio.open_memory_channel[bytes](1)

        async def collect(stream: Stream) -> None:
            await send.send(await read_all(stream))

        a.handle("/test/collect/1", collect)
        stream = await b.open_stream(a.peer_id, "/test/collect/1")
        await stream.send_all(pattern(100_000))
        await stream.aclose()
        assert await receive.receive() == pattern(100_000)
        await expect_broken(stream.receive_some(1))


async def check_closing_early_does_not_hang_the_sender(harness: Harness) -> None:
    """If a handler answers and returns without reading everything, the answer arrives and the sender does not hang."""
    async with pair(harness) as (a, b):

        async def hurried(stream: Stream) -> None:
            assert await stream.receive_some(10)
            await stream.send_all(b"enough")

        a.handle("/test/impatient/1", hurried)
        stream = await b.open_stream(a.peer_id, "/test/impatient/1")
        await stream.send_all(bytes(1000))
        assert await read_all(stream) == b"enough"
        await stream.aclose()
        stream = await b.open_stream(a.peer_id, "/test/impatient/1")
        with suppress(StreamBroken):
            await stream.send_all(bytes(4 * MIB))
        await stream.abort()

        async def absent(stream: Stream) -> None:
            assert stream.remote == b.peer_id

        a.handle("/test/absent/1", absent)
        stream = await b.open_stream(a.peer_id, "/test/absent/1")
        with suppress(StreamBroken):
            await stream.send_all(bytes(4 * MIB))
        await stream.abort()


async def check_abort_breaks_the_other_side(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        send, receive = trio.open_memory_channel[str](1)

        async def wait(stream: Stream) -> None:
            await stream.send_all(b"!")
            try:
                await stream.receive_some(1)
            except StreamBroken as error:
                await send.send(str(error))
                raise

        a.handle("/test/wait/1", wait)
        stream = await b.open_stream(a.peer_id, "/test/wait/1")
        assert await read_exactly(stream, 1) == b"!"
        await stream.abort()
        assert await receive.receive()
        await expect_broken(stream.receive_some(1))
        await expect_broken(stream.send_all(b"x"))
        await stream.abort()
        await stream.aclose()
        await _echo_once(b, a.peer_id, b"still connected")


async def check_a_raising_handler_ends_only_its_stream(harness: Harness) -> None:
    async with pair(harness) as (a, b):

        async def accuse(stream: Stream) -> None:
            await stream.receive_some(1)
            raise PeerError(Fault.MALFORMED, "nonsense")

        a.handle("/test/accuse/1", accuse)
        bystander = await b.open_stream(a.peer_id, ECHO)
        stream = await b.open_stream(a.peer_id, "/test/accuse/1")
        await stream.send_all(b"x")
        await expect_broken(stream.receive_some(1))
        await bystander.send_all(b"unharmed")
        assert await read_exactly(bystander, 8) == b"unharmed"
        assert a.connected_peers() == {b.peer_id}


async def check_a_bug_in_a_handler_leaves_the_scope(harness: Harness) -> None:
    """A bug is our fault, not a peer's: it ends in a traceback."""
    bug = ZeroDivisionError("a bug")
    caught: list[BaseException] = []
    try:
        async with pair(harness) as (a, b):

            async def buggy(stream: Stream) -> None:
                raise bug

            a.handle("/test/buggy/1", buggy)
            await b.open_stream(a.peer_id, "/test/buggy/1")
            await trio.sleep_forever()
    except* ZeroDivisionError as group:
        caught.extend(group.exceptions)
    assert caught == [bug], "the bug was swallowed"


async def check_unknown_protocol_is_refused(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        for opener, peer in ((a, b.peer_id), (b, a.peer_id), (a, PeerId("12D3KooWNobody"))):
            with raises(StreamRefused, str(peer)):
                await opener.open_stream(peer, "/test/unknown/1" if peer in opener.connected_peers() else ECHO)
        await _echo_once(a, b.peer_id, b"still connected")


async def check_refused_streams_leave_nothing_behind(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        for _ in range(300):
            with raises(StreamRefused):
                await a.open_stream(b.peer_id, "/test/unknown/1")
        await _echo_once(a, b.peer_id, b"there is still room")


async def check_who_does_not_listen_is_a_full_member(harness: Harness) -> None:
    async with harness.node("a") as a, harness.node("b", listens=False) as b:
        assert a.addresses()
        assert b.addresses() == []
        b.handle(ECHO, echo)
        await connect(b, a)
        await _echo_once(a, b.peer_id, pattern(50_000))
        b.handle(COUNT, count)
        await _count_once(a, b.peer_id, 1000)


async def check_both_sides_see_connections_come_and_go(harness: Harness) -> None:
    async with harness.node("a") as a, harness.node("b", listens=False) as b:
        seen_by_a, seen_by_b = a.events(), b.events()
        await b.dial(a.addresses())
        await b.dial(a.addresses())
        match await seen_by_a.receive(), await seen_by_b.receive():
            case PeerConnected(dialled=False) as at_a, PeerConnected(dialled=True) as at_b:
                assert (at_a.peer, at_b.peer) == (b.peer_id, a.peer_id)
                assert at_a.remote_address
                assert at_b.remote_address
            case other:
                raise AssertionError(other)
        assert (a.connected_peers(), b.connected_peers()) == (frozenset({b.peer_id}), frozenset({a.peer_id}))
        await a.disconnect(b.peer_id)
        assert not a.connected_peers(), "disconnect returned before the peer was gone"
        assert await seen_by_a.receive() == PeerDisconnected(peer=b.peer_id)
        assert await seen_by_b.receive() == PeerDisconnected(peer=a.peer_id)
        assert not b.connected_peers()
        await a.disconnect(b.peer_id)
        await connect(b, a)
        assert isinstance(await seen_by_a.receive(), PeerConnected), "a peer must be able to come back"


async def check_events_start_with_who_is_connected(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        for node, other in ((a, b), (b, a)):
            first = await node.events().receive()
            assert isinstance(first, PeerConnected)
            assert first.peer == other.peer_id


async def check_crossing_dials_connect_once(harness: Harness) -> None:
    async with harness.node("a") as a, harness.node("b") as b:
        seen_by_a, seen_by_b = a.events(), b.events()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.dial, b.addresses())
            nursery.start_soon(b.dial, a.addresses())
        for node in (a, b):
            node.handle(ECHO, echo)
        assert isinstance(await seen_by_a.receive(), PeerConnected)
        assert isinstance(await seen_by_b.receive(), PeerConnected)
        await _echo_once(a, b.peer_id, b"hello")
        await _echo_once(b, a.peer_id, b"hello")
        await a.disconnect(b.peer_id)
        assert await seen_by_a.receive() == PeerDisconnected(peer=b.peer_id)
        assert await seen_by_b.receive() == PeerDisconnected(peer=a.peer_id)


async def check_a_peer_that_vanishes_breaks_what_waits(harness: Harness) -> None:
    async with harness.node("a") as a:
        events = a.events()
        b_is_up = trio.Event()
        leave = trio.Event()

        async def live_and_leave() -> None:
            async with harness.node("b", listens=False) as b:
                b.handle(HOLD, hold)
                await b.dial(a.addresses())
                b_is_up.set()
                await leave.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(live_and_leave)
            await b_is_up.wait()
            connected = await events.receive()
            reading = await a.open_stream(connected.peer, HOLD)
            writing = await a.open_stream(connected.peer, HOLD)
            assert await read_exactly(reading, 1) == b"!"
            nursery.start_soon(expect_broken, reading.receive_some(1))
            nursery.start_soon(expect_broken, _send_forever(writing))
            await trio.testing.wait_all_tasks_blocked()
            leave.set()
            assert await events.receive() == PeerDisconnected(peer=connected.peer)
        await expect_broken(reading.send_all(b"x"))
        with raises(StreamRefused, str(connected.peer)):
            await a.open_stream(connected.peer, HOLD)


async def check_a_cancelled_receive_loses_nothing(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        stream = await b.open_stream(a.peer_id, ECHO)
        for message in (b"one", b"two", b"three"):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stream.receive_some, 1)
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            await stream.send_all(message)
            assert await read_exactly(stream, len(message)) == message


async def check_a_cancelled_send_harms_no_other_stream(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        for _ in range(5):
            stream = await b.open_stream(a.peer_id, HOLD)
            assert await read_exactly(stream, 1) == b"!"
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_send_forever, stream)
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            await stream.abort()
            await _echo_once(b, a.peer_id, pattern(300_000))
            await _echo_once(a, b.peer_id, pattern(300_000))


async def check_leaving_the_scope_does_not_wait_for_streams(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        for _ in range(3):
            stream = await b.open_stream(a.peer_id, HOLD)
            assert await read_exactly(stream, 1) == b"!"


async def check_leaving_the_scope_delivers_what_was_sent(harness: Harness) -> None:
    async with harness.node("a") as a:
        send, receive = trio.open_memory_channel[bytes](1)

        async def collect(stream: Stream) -> None:
            await send.send(await read_all(stream))

        a.handle("/test/collect/1", collect)
        async with harness.node("b", listens=False) as b:
            await connect(b, a)
            stream = await b.open_stream(a.peer_id, "/test/collect/1")
            await stream.send_all(pattern(200_000))
            await stream.send_eof()
        assert await receive.receive() == pattern(200_000)


TOPIC = "test"


def accept_all(broadcast: Broadcast) -> bool:
    """Accept every broadcast."""
    return True


async def expect_broadcast(channel: trio.MemoryReceiveChannel[Broadcast], data: bytes) -> Broadcast:
    """Skip other broadcasts until one with `data` arrives, and return it."""
    while True:
        broadcast = await channel.receive()
        if broadcast.data == data:
            return broadcast


async def check_broadcast_reaches_neighbours_and_theirs(harness: Harness) -> None:
    async with harness.node("a") as a, harness.node("b") as b, harness.node("c", listens=False) as c:
        heard = {node.peer_id: await node.subscribe(TOPIC, accept_all) for node in (a, b, c)}
        await connect(a, b)
        await connect(c, b)
        await a.publish(TOPIC, b"first")
        assert (await expect_broadcast(heard[b.peer_id], b"first")).source == a.peer_id
        broadcast = await expect_broadcast(heard[c.peer_id], b"first")
        assert broadcast == Broadcast(source=b.peer_id, topic=TOPIC, data=b"first")
        await c.publish(TOPIC, b"back")
        await expect_broadcast(heard[a.peer_id], b"back")
        await b.publish("another topic", b"unheard")
        await b.publish(TOPIC, bytes(MAX_ANNOUNCEMENT_BYTES))
        for node in (a, c):
            await expect_broadcast(heard[node.peer_id], bytes(MAX_ANNOUNCEMENT_BYTES))


async def check_broadcast_reaches_late_joiners(harness: Harness) -> None:
    async with harness.node("a") as a, harness.node("b") as b:
        await b.subscribe(TOPIC, accept_all)
        await connect(a, b)
        await a.publish(TOPIC, b"state")
        async with harness.node("late", listens=False) as late:
            heard = await late.subscribe(TOPIC, accept_all)
            await connect(late, b)
            await a.publish(TOPIC, b"state")
            assert (await expect_broadcast(heard, b"state")).source == b.peer_id


async def check_invalid_broadcasts_go_no_further(harness: Harness) -> None:
    async with harness.node("a") as a, harness.node("b") as b, harness.node("c", listens=False) as c:
        at_b = await b.subscribe(TOPIC, lambda broadcast: not broadcast.data.startswith(b"bad"))
        at_c = await c.subscribe(TOPIC, accept_all)
        await connect(a, b)
        await connect(c, b)
        for data in (b"bad 1", b"good 1", b"bad 2", b"good 2"):
            await a.publish(TOPIC, data)
        for channel in (at_b, at_c):
            assert (await channel.receive()).data == b"good 1"
            assert (await channel.receive()).data == b"good 2"


async def check_a_burst_of_broadcasts_arrives(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        heard = await b.subscribe(TOPIC, accept_all)
        got: list[bytes] = []
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                for number in range(100):
                    await a.publish(TOPIC, number.to_bytes(2, "big") * 100)

            nursery.start_soon(publish)
            while len(got) < 100:
                got.append((await heard.receive()).data)
        assert len(set(got)) == 100


async def check_an_oversized_broadcast_is_our_mistake(harness: Harness) -> None:
    async with harness.node("a") as a:
        with raises(LocalProtocolError, str(MAX_ANNOUNCEMENT_BYTES)):
            await a.publish(TOPIC, bytes(MAX_ANNOUNCEMENT_BYTES + 1))


async def check_dialling_the_wrong_peer_fails(harness: Harness) -> None:
    async with harness.node("a") as a, harness.node("b") as b, harness.node("c", listens=False) as c:
        wrong = [harness.misdirected(address, b.peer_id) for address in a.addresses()]
        await expect_dial_failed(c, wrong, "answered instead")
        assert not c.connected_peers()
        assert not a.connected_peers()
        await c.dial([*wrong, *b.addresses()])
        assert c.connected_peers() == {b.peer_id}


async def expect_dial_failed(node: Transport, addresses: list[str], words: str) -> None:
    """Dial, which must raise DialFailed with `words` in its message."""
    with raises(DialFailed, words):
        await node.dial(addresses)


async def check_dialling_nobody_fails(harness: Harness) -> None:
    async with harness.node("a") as a, harness.node("b") as b:
        nowhere = harness.nowhere(b.peer_id)
        await expect_dial_failed(a, [nowhere], nowhere.partition("/p2p/")[0])
        await expect_dial_failed(a, [], "address")
        await expect_dial_failed(a, ["nonsense"], "nonsense")
        await expect_dial_failed(a, a.addresses(), "itself")
        await expect_dial_failed(a, [*a.addresses(), *b.addresses()], "peer")
        assert await a.dial([nowhere, *b.addresses()]) == b.peer_id, (
            "a failed dial must not stand in the way of the next"
        )


async def check_traffic_counts_payload(harness: Harness) -> None:
    async with pair(harness) as (a, b):
        stream = await b.open_stream(a.peer_id, COUNT)
        await _send_whole(stream, bytes(12_345))
        assert await read_all(stream) == b"12345"
        assert b.traffic()[a.peer_id] == Traffic(sent=12_345, received=5)
        assert a.traffic()[b.peer_id] == Traffic(sent=5, received=12_345)
        seen_by_a = a.events()
        await b.disconnect(a.peer_id)
        async for event in seen_by_a:
            if event == PeerDisconnected(peer=b.peer_id):
                break
        assert a.total_traffic() == Traffic(sent=5, received=12_345), "also of strangers that left"
        assert b.total_traffic() == Traffic(sent=12_345, received=5)


CHECKS: tuple[Check, ...] = tuple(value for name, value in list(globals().items()) if name.startswith("check_"))
"""All checks, in the order of this file."""


async def run_check(check: Check, harness: Harness) -> None:
    """Run one check. Raise trio.TooSlowError if it is stuck."""
    with trio.fail_after(HANG_S):
        await check(harness)
