"""Sessions with servers that speak otherwise than OpenEnv's own do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from node.tasks.adapters.openenv.messages import Observed, ServerFault, ServerFull
from node.tasks.adapters.openenv.session import (
    Address,
    Session,
    action_schema,
    begin_episode,
    open_session,
    read_address,
)
from node.tasks.api.interface import TaskError

websockets: Any = pytest.importorskip("websockets.asyncio.server", reason="make test-adapters has it")

HELLO = json.dumps({"type": "observation", "data": {"observation": {"text": "hi"}, "reward": None, "done": False}})
STATE = json.dumps({"type": "state", "data": {"episode_id": "one"}})
FULL = json.dumps({"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "full", "max_sessions": 1}})

Behave = Callable[[Any], Awaitable[None]]


@asynccontextmanager
async def serving(behave: Behave) -> AsyncIterator[Address]:
    async with websockets.serve(behave, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield read_address(f"ws://127.0.0.1:{port}")


async def well(socket: Any) -> None:
    """As it should be."""
    async for request in socket:
        kind = json.loads(request)["type"]
        if kind == "close":
            return
        await socket.send(STATE if kind == "state" else HELLO)


async def twice(socket: Any) -> None:
    """Answers each step twice."""
    async for request in socket:
        kind = json.loads(request)["type"]
        await socket.send(STATE if kind == "state" else HELLO)
        if kind == "step":
            await socket.send(HELLO)


async def full(socket: Any) -> None:
    """Says that it is full before it is asked, and closes, as OpenEnv does."""
    await socket.send(FULL)


async def mumbling(socket: Any) -> None:
    async for request in socket:
        await socket.send(STATE if json.loads(request)["type"] == "state" else b"\x00\xff")


async def leaving(socket: Any) -> None:
    await socket.recv()
    await socket.close(1011, "out of memory")


async def silent(socket: Any) -> None:
    await socket.wait_closed()


def with_server(behave: Behave, work: Callable[[Address], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving(behave) as address:
            await work(address)

    asyncio.run(run())


def test_an_episode() -> None:
    async def work(address: Address) -> None:
        async with open_session(address, 5.0) as session:
            seen = Observed(fields={"text": "hi"}, reward=None, done=False)
            assert await session.reset(3) == seen
            assert await session.step({"message": "hello"}) == seen
            await session.require_same_episode()

    with_server(well, work)


def test_a_reply_that_nobody_asked_is_never_taken_for_the_next() -> None:
    async def work(address: Address) -> None:
        async with open_session(address, 5.0) as session:
            await session.reset(3)
            await session.step({"message": "first"})
            while True:  # the second reply may still be on its way
                try:
                    await session.step({"message": "second"})
                except ServerFault as fault:
                    assert "that was not requested" in str(fault) or "instead of 'observation'" in str(fault)  # noqa: PT017
                    break

    with_server(twice, work)


@pytest.mark.parametrize(
    ("behave", "said"),
    [
        (mumbling, "not JSON"),
        (leaving, "closed the connection: out of memory"),
        (silent, r"did not answer within 0\.5 s"),
    ],
    ids=["mumbling", "leaving", "silent"],
)
def test_what_is_no_server_of_openenv(behave: Behave, said: str) -> None:
    async def work(address: Address) -> None:
        async with open_session(address, 0.5) as session:
            with pytest.raises(ServerFault, match=said):
                await session.reset(3)
            with pytest.raises(ServerFault, match="failed earlier"):
                await session.step({})

    with_server(behave, work)


def test_a_server_that_stays_full_is_given_up_in_time() -> None:
    async def work(address: Address) -> None:
        with pytest.raises(ServerFull, match="limit of sessions, 1,"):
            await begin_episode(address, 1.0, 3)

    with_server(full, work)


def test_a_caller_that_gives_up_breaks_the_session() -> None:
    async def work(address: Address) -> None:
        async with open_session(address, 60.0) as session:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await session.reset(3)
            with pytest.raises(ServerFault, match="failed earlier"):
                await session.reset(3)

    with_server(silent, work)


def test_a_farewell_to_a_silent_server_is_bounded() -> None:
    async def work(address: Address) -> None:
        session = await Session.connect(address, 1.0)
        async with asyncio.timeout(30):
            await session.close()

    with_server(silent, work)


def test_no_schema_is_none() -> None:
    assert action_schema(read_address("http://127.0.0.1:1"), 1.0) is None


@pytest.mark.parametrize(
    "text",
    ["ftp://host", "http://", "http://host:99999", "http://host/?a=b", "http://host#a", "host:80", "http://host:0"],
)
def test_no_address(text: str) -> None:
    with pytest.raises(TaskError, match=r"^task 'openenv'"):
        read_address(text)
