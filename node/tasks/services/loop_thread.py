"""Asyncio for whoever is not on it: one loop of this process, on a thread of its own.

What always holds: all that is waited for here shares the loop, so clients and what they remember last as long as the
process; whatever is raised there is raised here, and ends no loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import cache
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def wait_for(awaitable: Awaitable[T]) -> T:
    """What it gives or raises. Waits as long as it takes; never called from that loop itself."""
    found, error = asyncio.run_coroutine_threadsafe(_captured(awaitable), _loop()).result()
    if error is not None:
        raise error
    [value] = found
    return value


async def _captured(awaitable: Awaitable[T]) -> tuple[list[T], BaseException | None]:
    """SystemExit would end the loop, and a cancellation of an author's own would look like ours."""
    try:
        return [await awaitable], None
    except BaseException as error:
        return [], error


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="rewards", daemon=True).start()
    return loop
