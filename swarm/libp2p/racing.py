"""Start several attempts at the same thing, each a little after the one before; the first success ends the rest.

This is "happy eyeballs" (RFC 8305): an address that never answers costs the pause before the next one, not its timeout.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import trio

Attempt = Callable[[], Awaitable[str]]
"""Returns "" when it succeeded, else why it failed. Only an attempt that returned "" may leave anything behind."""

PAUSE_S = 0.25
"""Seconds between the starts of two attempts (RFC 8305, section 8)."""


async def race(attempts: Sequence[Attempt], pause_s: float = PAUSE_S) -> list[str]:
    """Make the attempts until one succeeds; return the reasons of the failed ones, and none if one succeeded."""
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
