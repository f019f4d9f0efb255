"""Wait for many sockets together: each task is called in time, and none after its watch is over."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import trio

from swarm.libp2p.sockets.readiness import HAS_EPOLL, MAX_READY
from tests.support.running_readiness import running_readiness

pytestmark = [pytest.mark.trio, pytest.mark.skipif(not HAS_EPOLL, reason="no epoll here")]


@dataclass(eq=False)
class Owner:
    """Writes down how it was called, and reads what there is when told to."""

    near: socket.socket
    called: list[str] = field(default_factory=list)
    reads: bool = True

    def on_readable(self) -> None:
        self.called.append("readable")
        if self.reads:
            self.near.recv(1024)

    def on_writable(self) -> None:
        self.called.append("writable")

    def flush(self) -> None:
        self.called.append("flush")


@contextmanager
def pair() -> Iterator[tuple[Owner, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        yield Owner(near), far


async def turns() -> None:
    """Let everybody who has something to do, do it; a socket that stays ready is told of all the time."""
    for _ in range(50):
        await trio.lowlevel.checkpoint()


async def test_who_can_read_is_called_until_nothing_is_left() -> None:
    async with running_readiness() as readiness:
        with pair() as (owner, far), readiness.watch(owner.near.fileno(), owner):
            await turns()
            assert owner.called == []
            far.send(b"x")
            await turns()
            assert owner.called == ["readable"]
            owner.reads = False
            far.send(b"x")
            await trio.sleep(0)
            while len(owner.called) < 4:  # again and again, since it does not read
                await trio.sleep(0)


async def test_nobody_is_called_for_what_he_does_not_wait_for() -> None:
    async with running_readiness() as readiness:
        with pair() as (owner, far):
            with readiness.watch(owner.near.fileno(), owner) as watch:
                watch.want(reading=False, writing=False)
                far.send(b"x")
                far.close()
                await turns()
                assert owner.called == []
                watch.want(reading=False, writing=True)
                await turns()
                assert set(owner.called) == {"writable"}
                watch.want(reading=True, writing=False)
                owner.called.clear()
                await turns()
                assert "readable" in owner.called
                assert "writable" not in owner.called
            owner.called.clear()
            await turns()
            assert owner.called == []


async def test_whoever_asks_is_flushed_once_and_in_turn() -> None:
    async with running_readiness() as readiness:
        with pair() as (owner, _), readiness.watch(owner.near.fileno(), owner):
            for _ in range(3):
                readiness.flush_soon(owner)
            assert owner.called == []
            await turns()
            assert owner.called == ["flush"]
            readiness.flush_soon(owner)
            await turns()
            assert owner.called == ["flush", "flush"]


async def test_who_asks_while_others_are_called_is_flushed_in_the_same_turn() -> None:
    async with running_readiness() as readiness:
        with pair() as (owner, far):

            @dataclass(eq=False)
            class Asking(Owner):
                def on_readable(self) -> None:
                    super().on_readable()
                    readiness.flush_soon(self)

            asking = Asking(owner.near)
            with readiness.watch(owner.near.fileno(), asking):
                for _ in range(3):
                    far.send(b"x")
                    await turns()
                assert asking.called == ["readable", "flush"] * 3


async def test_what_was_asked_for_is_forgotten_with_the_watch() -> None:
    async with running_readiness() as readiness:
        with pair() as (owner, _):
            with readiness.watch(owner.near.fileno(), owner):
                readiness.flush_soon(owner)
            await turns()
            assert owner.called == []


async def test_more_sockets_than_are_served_in_one_turn_are_served_in_several() -> None:
    async with running_readiness() as readiness:
        pairs = [socket.socketpair() for _ in range(2 * MAX_READY + 1)]
        owners = [Owner(near) for near, _ in pairs]
        watches = [readiness.watch(owner.near.fileno(), owner) for owner in owners]
        for watch in watches:
            watch.__enter__()
        for _, far in pairs:
            far.send(b"x")
        await turns()
        assert [owner.called for owner in owners] == [["readable"]] * len(owners)
        for watch in watches:
            watch.__exit__(None, None, None)
        for near, far in pairs:
            near.close()
            far.close()
