"""Run asyncio code for callers without a loop, on one loop of this process with a thread of its own.

Invariants:

- All calls share the loop, so clients and their caches last as long as the process.
- An exception in the awaited code is raised in the caller, and does not end the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import cache
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def wait_for(awaitable: Awaitable[T]) -> T:
    """Return or raise what the awaitable does. Waits without a timeout. Must not be called on that loop itself."""
    found, error = asyncio.run_coroutine_threadsafe(_captured(awaitable), _loop()).result()
    if error is not None:
        raise error
    [value] = found
    return value


async def _captured(awaitable: Awaitable[T]) -> tuple[list[T], BaseException | None]:
    """Return (result, error). SystemExit would end the loop, and a cancellation by an author would look like ours."""
    try:
        return [await awaitable], None
    except BaseException as error:
        return [], error


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="rewards", daemon=True).start()
    return loop
