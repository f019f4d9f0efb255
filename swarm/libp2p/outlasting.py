"""Run something that continues after its caller has stopped waiting, once it can no longer be undone.

In TLS 1.3 a client considers a connection established before its server does. So a node that acts as the server, and
is meanwhile connected to the peer in another way, must not drop a connection that the peer already uses.

Invariants:

- Until it says that it must go on, it is cancelled together with its caller.
- It ends with its nursery at the latest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

MustGoOn = Callable[[], None]
"""Called once it can no longer be undone."""


async def outlast(
    nursery: trio.Nursery, act: Callable[[MustGoOn], Awaitable[None]], expected: tuple[type[Exception], ...]
) -> None:
    """Run `act` in `nursery` and wait for it. Raises its exception if `expected`; any other one ends the nursery."""
    scope, ended = trio.CancelScope(), trio.Event()
    failures: list[Exception] = []
    must_go_on = False

    def commit() -> None:
        nonlocal must_go_on
        must_go_on = True

    async def run() -> None:
        try:
            with scope:
                await act(commit)
        except expected as error:
            failures.append(error)
        finally:
            ended.set()

    nursery.start_soon(run)
    try:
        await ended.wait()
    except trio.Cancelled:
        if not must_go_on:
            scope.cancel()
        raise
    if failures:
        raise failures[0]
