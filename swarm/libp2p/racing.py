"""Several attempts at the same thing, each begun a little after the one before: the first that succeeds ends the rest.

"Happy eyeballs" (RFC 8305): an address that swallows everything costs the pause before the next one, not its patience.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import trio

Attempt = Callable[[], Awaitable[str]]
"""Returns "" when it succeeded, else why it did not. Only one that returned "" may leave anything behind."""

PAUSE_S = 0.25
"""Between the beginnings of two attempts (RFC 8305, section 8)."""


async def race(attempts: Sequence[Attempt], pause_s: float = PAUSE_S) -> list[str]:
    """Make the attempts until one succeeds; return why each failed that did, and nothing where one succeeded."""
    failures: list[str] = []
    succeeded = False
    async with trio.open_nursery() as nursery:

        async def make(attempt: Attempt, failed: trio.Event) -> None:
            nonlocal succeeded
            if why := await attempt():
                failures.append(why)
                failed.set()
            else:
                succeeded = True
                nursery.cancel_scope.cancel()

        for attempt in attempts:
            failed = trio.Event()
            nursery.start_soon(make, attempt, failed)
            with suppress(trio.TooSlowError), trio.fail_after(pause_s):
                await failed.wait()
    return [] if succeeded else failures
