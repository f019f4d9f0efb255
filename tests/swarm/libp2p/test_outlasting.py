"""Some work goes on when no task waits for it any more, and other work ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import pytest
import trio
import trio.testing

from swarm.libp2p import open_libp2p
from swarm.libp2p.host import Host
from swarm.libp2p.outlasting import MustGoOn, outlast
from swarm.libp2p.security import Identity, NotTakenAtOnce, secure_outbound, security_table
from swarm.libp2p.sockets.addresses import from_socket
from swarm.libp2p.sockets.tcp import TcpConnection
from swarm.libp2p.yamux.connection import YAMUX_PROTOCOL
from tests.support.learner_fixture import until


class Act:
    """It commits after one second and is done after two, or fails then."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.ended = "not yet"

    async def __call__(self, must_go_on: MustGoOn) -> None:
        try:
            await trio.sleep(1)
            must_go_on()
            await trio.sleep(1)
            if self.error is not None:
                raise self.error
        except BaseException as error:
            self.ended = type(error).__name__
            raise
        self.ended = "done"


async def wait(nursery: trio.Nursery, act: Callable[[MustGoOn], Awaitable[None]]) -> None:
    await outlast(nursery, act, (OSError,))


async def test_it_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    act = Act()
    async with trio.open_nursery() as nursery:
        await wait(nursery, act)
        assert act.ended == "done"


async def test_what_is_expected_of_it_is_raised_to_whoever_waits(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        with pytest.raises(OSError, match="gone"):
            await wait(nursery, Act(OSError("gone")))


async def test_what_is_not_expected_is_a_bug_and_travels(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(ExceptionGroup):
        async with trio.open_nursery() as nursery:
            await wait(nursery, Act(ZeroDivisionError("a bug")))


@pytest.mark.parametrize(("after_s", "ended"), [(0.5, "Cancelled"), (1.5, "done")])
@pytest.mark.parametrize("error", [None, OSError("gone")])
async def test_when_nobody_waits_any_more(
    after_s: float, ended: str, error: OSError | None, autojump_clock: trio.testing.MockClock
) -> None:
    act = Act(error)
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(after_s):
            await wait(nursery, act)
    assert act.ended == ("OSError" if ended == "done" and error is not None else ended)


async def test_it_ends_with_its_nursery(autojump_clock: trio.testing.MockClock) -> None:
    act = Act()
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1.5):
            await wait(nursery, act)
        nursery.cancel_scope.cancel()
    assert act.ended == "Cancelled"


# A node that connects to a peer and is its server.

PEER = Identity.from_seed(b"p" * 32)


class Client(TcpConnection):
    """A peer's end, which does something right before it writes for the `at`-th time."""

    def __init__(self, stream: trio.SocketStream, at: int, act: Callable[[], None]) -> None:
        super().__init__(stream, is_initiator=True)
        self.left, self.act = at, act

    async def write(self, data: bytes | memoryview) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()
            await trio.testing.wait_all_tasks_blocked()
        await super().write(data)


@pytest.mark.parametrize(("at", "goes_on"), [(1, False), (2, True)], ids=["before its answer", "after its answer"])
async def test_a_knock_that_nobody_waits_for_any_more(at: int, goes_on: bool) -> None:
    """The second time a client writes, it takes itself for connected."""
    async with open_libp2p(b"h" * 32, []) as transport, trio.open_nursery() as nursery:
        host = cast(Host, transport)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        scope = trio.CancelScope()

        async def knock() -> None:
            with scope:
                at_peer = from_socket(listeners[0].socket.getsockname())
                await host.connect(PEER.peer_id, at_peer, is_initiator=False)

        nursery.start_soon(knock)
        stream = await listeners[0].accept()
        raw = Client(stream, at, scope.cancel)
        try:
            channel = await secure_outbound(raw, security_table(PEER), host.peer_id, YAMUX_PROTOCOL)
        except NotTakenAtOnce:
            assert not goes_on
            assert not host.connections()
        else:
            assert goes_on
            await until(lambda: [one.peer for one in host.connections()] == [PEER.peer_id])
            await channel.aclose()
        await stream.aclose()
        await listeners[0].aclose()
