"""Wait until only the clock can bring anything about: no task can run, and no thread works for one."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked


async def settled() -> None:
    """Return once every other task waits for the clock or for another, at any load of the machine.

    A task that waits for a thread counts as blocked, so the tasks alone do not show what a thread is about to do.
    """
    await wait_all_tasks_blocked()
    while trio.to_thread.current_default_thread_limiter().borrowed_tokens:
        await trio.to_thread.run_sync(int)
        await wait_all_tasks_blocked()
