"""A TCP connection reads exactly, waits only for a while, and notices a peer that reads nothing."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from libp2p.io.exceptions import ConnectionClosedError

from swarm.libp2p.sockets.tcp import (
    MAX_EXPECTED_BYTES,
    NOT_SENT_BYTES,
    RECEIVE_BYTES,
    RETRY_MS,
    TCP_RTO_MAX_MS,
    WRITE_DEADLINE_S,
    TcpConnection,
)


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[TcpConnection, trio.SocketStream]]:
    """A connection of ours and the other end, which the test plays."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        theirs = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        ours = TcpConnection(await listener.accept(), is_initiator=False)
        async with theirs:
            yield ours, theirs
            await ours.close()


async def test_reads_exactly_what_is_asked_for() -> None:
    async with pair() as (ours, theirs):
        await theirs.send_all(b"hello ")
        assert await ours.read(2) == b"he"
        await theirs.send_all(b"there")
        assert await ours.read(9) == b"llo there"
        await theirs.send_all(b"!")
        assert await ours.read() == b"!"
        await theirs.send_eof()
        with pytest.raises(ConnectionClosedError, match="hung up"):
            await ours.read()


async def test_a_read_that_is_cancelled_loses_nothing() -> None:
    async with pair() as (ours, theirs):
        await theirs.send_all(b"abc")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.read, 10)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await theirs.send_all(b"def")
        assert await ours.read(6) == b"abcdef"


async def test_what_is_expected_comes_in_one_read() -> None:
    async with pair() as (ours, theirs), trio.open_nursery() as nursery:
        got: list[bytes] = []

        async def read() -> None:
            got.append(await ours.read())

        ours.expect(20_000)
        nursery.start_soon(read)
        for _ in range(20):
            assert not got
            await theirs.send_all(bytes(1000))
            await trio.testing.wait_all_tasks_blocked(0.001)
        while not got:
            await trio.testing.wait_all_tasks_blocked(0.001)
        assert got == [bytes(20_000)]


async def test_what_is_expected_and_does_not_come_is_waited_for_until_somebody_is_in_a_hurry() -> None:
    async with pair() as (ours, theirs), trio.open_nursery() as nursery:
        got: list[bytes] = []

        async def read() -> None:
            got.append(await ours.read())

        await theirs.send_all(b"all there is")
        ours.expect(MAX_EXPECTED_BYTES)
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not got
        ours.hurry()
        while not got:
            await trio.testing.wait_all_tasks_blocked(0.001)
        assert got == [b"all there is"]
        await theirs.send_all(b"next")  # nothing is expected now
        assert await ours.read() == b"next"


async def test_nobody_waits_for_more_than_a_socket_holds() -> None:
    async with pair() as (ours, theirs), trio.open_nursery() as nursery:
        nursery.start_soon(theirs.send_all, bytes(8 * RECEIVE_BYTES))
        ours.expect(1 << 40)
        assert len(await ours.read()) >= MAX_EXPECTED_BYTES
        nursery.cancel_scope.cancel()


async def test_an_expectation_that_was_cancelled_is_forgotten() -> None:
    async with pair() as (ours, theirs):
        ours.expect(MAX_EXPECTED_BYTES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.read)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await theirs.send_all(b"small")
        assert await ours.read() == b"small"


async def test_who_hangs_up_is_noticed_while_more_is_expected() -> None:
    async with pair() as (ours, theirs):
        await theirs.send_all(b"last")
        await theirs.send_eof()
        ours.expect(MAX_EXPECTED_BYTES)
        assert await ours.read() == b"last"
        ours.expect(MAX_EXPECTED_BYTES)
        with pytest.raises(ConnectionClosedError):
            await ours.read()


async def test_who_takes_nothing_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with pair() as (ours, _):
        began = trio.current_time()
        with pytest.raises(ConnectionClosedError, match="took nothing"):
            await ours.write(bytes(64 * 1024 * 1024))
        assert trio.current_time() - began == pytest.approx(WRITE_DEADLINE_S, abs=1)


async def test_who_takes_little_is_not_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with pair() as (ours, theirs), trio.open_nursery() as nursery:
        size = 16 * 1024 * 1024
        nursery.start_soon(ours.write, bytes(size))
        while size:
            await trio.sleep(WRITE_DEADLINE_S * 0.9)
            size -= len(await theirs.receive_some(4 * 1024 * 1024))


async def test_small_messages_leave_at_once_and_little_waits_in_the_kernel() -> None:
    async with pair() as (ours, _):
        options = ours._stream
        assert options.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            not_sent = options.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
            assert not_sent == NOT_SENT_BYTES


async def test_on_a_slow_line_less_waits_in_the_kernel(mock_clock: trio.testing.MockClock) -> None:
    async with pair() as (ours, theirs), trio.open_nursery() as nursery:
        if not hasattr(socket, "TCP_NOTSENT_LOWAT"):
            pytest.skip("this system has no such option")

        async def send_all() -> None:
            while True:
                await ours.write(bytes(64 * 1024))

        nursery.start_soon(send_all)
        for _ in range(400):  # 16 KiB every 50 ms: 2.6 Mbit/s
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(0.05)
            await theirs.receive_some(16 * 1024)
        assert ours._stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) < NOT_SENT_BYTES / 2
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="an option of Linux")
async def test_lost_bytes_are_sent_again_every_second() -> None:
    async with pair() as (ours, theirs):
        try:
            longest = theirs.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)
        except OSError:
            pytest.skip("an option of Linux since 6.15")
        assert longest > RETRY_MS
        assert ours._stream.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS) == RETRY_MS
