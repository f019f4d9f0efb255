"""Connections that leave from the port that is listened on."""

from __future__ import annotations

import errno
import socket
from contextlib import closing

import pytest
import trio

from swarm.libp2p.sockets.port_reuse import Leaves, connect_from, listen_on

HERE = "127.0.0.1"


def port_of(listener: trio.SocketListener) -> int:
    return int(listener.socket.getsockname()[1])


async def test_a_connection_leaves_from_where_we_listen_and_the_next_to_the_same_place_from_elsewhere() -> None:
    [ours], [theirs] = await listen_on(HERE, 0), await listen_on(HERE, 0)
    async with ours, theirs:
        first = await connect_from([ours], HERE, port_of(theirs))
        second = await connect_from([ours], HERE, port_of(theirs))
        async with first, second:
            assert first.socket.getsockname()[1] == port_of(ours)
            assert second.socket.getsockname()[1] != port_of(ours)
            with pytest.raises(OSError, match=r"assign|in use"):
                await connect_from([ours], HERE, port_of(theirs), Leaves.WHERE_WE_LISTEN)


async def test_where_it_is_to_leave_anew_it_does() -> None:
    [ours], [theirs] = await listen_on(HERE, 0), await listen_on(HERE, 0)
    async with ours, theirs, await connect_from([ours], HERE, port_of(theirs), Leaves.ANEW) as stream:
        assert stream.socket.getsockname()[1] != port_of(ours)


async def test_who_listens_nowhere_connects_all_the_same_unless_it_must_not() -> None:
    [theirs] = await listen_on(HERE, 0)
    async with theirs:
        async with await connect_from([], HERE, port_of(theirs)):
            pass
        with pytest.raises(OSError, match="nothing listens here"):
            await connect_from([], HERE, port_of(theirs), Leaves.WHERE_WE_LISTEN)


async def test_what_listens_on_this_machine_alone_leads_nowhere_else() -> None:
    [ours] = await listen_on(HERE, 0)
    async with ours:
        with pytest.raises(OSError, match=r"leads to 192\.0\.2\.1"):
            await connect_from([ours], "192.0.2.1", 1, Leaves.WHERE_WE_LISTEN)


@pytest.mark.parametrize("shares", [False, True])
async def test_nobody_else_is_given_our_port_by_chance(shares: bool) -> None:
    """A second program of ours says nothing before it binds, and is told that the port is taken."""
    [ours] = await listen_on(HERE, 0)
    async with ours:
        with pytest.raises(OSError, match="in use"):
            await listen_on(HERE, port_of(ours))
        with closing(socket.socket()) as other:
            if shares:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError) as refused:  # noqa: PT011
                other.bind((HERE, port_of(ours)))
            assert refused.value.errno == errno.EADDRINUSE
