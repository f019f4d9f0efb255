"""When nothing happens any more but by the clock: no task can run, and no thread works for one."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked


async def settled() -> None:
    """Return once every other task waits for the clock or for another, whatever the machine's load.

    A task that waits for a thread counts as blocked, so tasks alone say nothing of what a thread is about to bring.
    """
    await wait_all_tasks_blocked()
    while trio.to_thread.current_default_thread_limiter().borrowed_tokens:
        await trio.to_thread.run_sync(int)
        await wait_all_tasks_blocked()
