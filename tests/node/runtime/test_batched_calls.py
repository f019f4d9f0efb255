"""Calls made together: each once, in order, with its own result, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.runtime.batched_calls import BatchedCalls


class Worker:
    """Doubles numbers, of `most` items at a time, and holds its first turn until it is let go."""

    def __init__(self, most: int = 100) -> None:
        self.turns: list[list[int]] = []
        self.most = most
        self.go = Event()

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.turns.append(list(items))
        self.go.wait(10)
        if 13 in items:
            raise ValueError("13 is not doubled")
        return [2 * item for item in items[: self.most]]


async def gather(calls: BatchedCalls[int, int], items: Sequence[int], worker: Worker) -> dict[int, int]:
    """What each of these items gave, all asked while the first was under way."""
    found: dict[int, int] = {}

    async def ask(item: int) -> None:
        found[item] = await calls(item)

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(ask, item)
            await wait_all_tasks_blocked()
        worker.go.set()
    return found


async def test_what_comes_meanwhile_is_done_together() -> None:
    worker = Worker()
    assert await gather(BatchedCalls(worker, most=3), range(6), worker) == {item: 2 * item for item in range(6)}
    assert worker.turns == [[0], [1, 2, 3], [4, 5]]


async def test_one_turn_may_leave_some_to_the_next() -> None:
    worker = Worker(most=2)
    assert await gather(BatchedCalls(worker, most=9), range(4), worker) == {item: 2 * item for item in range(4)}
    assert worker.turns == [[0], [1, 2, 3], [3]]


async def test_what_is_cancelled_while_it_waits_is_not_done() -> None:
    worker = Worker()
    calls = BatchedCalls(worker, most=9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(calls, 1)
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            nursery.start_soon(calls, 3)
            async with trio.open_nursery() as inner:
                inner.start_soon(calls, 2)
                await wait_all_tasks_blocked()
                scope.cancel()
        worker.go.set()
    assert worker.turns == [[1], [3]]


async def test_what_is_cancelled_while_it_is_done_keeps_nobody_from_theirs() -> None:
    worker = Worker()
    calls = BatchedCalls(worker, most=9)
    found = []
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            found.append(await calls(2))

        scope = trio.CancelScope()

        async def cancelled() -> None:
            with scope:
                await calls(1)

        nursery.start_soon(cancelled)
        await wait_all_tasks_blocked()
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        scope.cancel()
        worker.go.set()
    assert found == [4]
    assert await calls(5) == 10


async def test_whoever_it_fails_for_hears_of_it() -> None:
    worker = Worker()
    worker.go.set()
    calls = BatchedCalls(worker, most=9)
    with pytest.raises(ValueError, match="13"):
        await calls(13)
    assert await calls(4) == 8
