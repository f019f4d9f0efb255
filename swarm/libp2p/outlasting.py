"""Something that goes on when nobody waits for it any more, once it has come so far that it must.

In TLS 1.3 a client takes a connection for made before its server does. Who knocks at a peer as the server, and is met
by another way meanwhile, must not drop a connection that the peer uses already.

Invariants:
- Before it has said that it must go on, it ends with whoever waits for it.
- It ends with its nursery at the latest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

MustGoOn = Callable[[], None]
"""Called once there is no way back."""


async def outlast(
    nursery: trio.Nursery, act: Callable[[MustGoOn], Awaitable[None]], expected: tuple[type[Exception], ...]
) -> None:
    """Run `act` in `nursery` and wait for it. Raises what it raises of `expected`; anything else ends the nursery."""
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
