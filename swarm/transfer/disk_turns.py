"""Decide where the disk is used: at once in the scheduler's thread for small chunks, in another thread for large ones.

A turn of a thread costs a quarter of a millisecond of processor time. That is more than hashing 128 KiB and writing
them into the system's memory takes. But a disk that makes writers wait would hold up everything else. So after one slow
job all jobs go to threads for a while.

Invariants:

- At most one job in PAUSE_S takes longer than SLOW_S in the scheduler's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import trio

from protocol.core.limits import KIB

T = TypeVar("T")

SMALL_BYTES = 256 * KIB
"""Size up to which a chunk is hashed and written in 0.3 ms; a larger one is better handled beside other work."""

SLOW_S = 0.02
"""Seconds for which one chunk may hold up everything else."""

PAUSE_S = 10.0
"""Seconds for which a disk that was slow is used only in threads."""


class DiskTurns:
    """Run jobs on the disk, each where it costs least."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slow_until = 0.0

    async def run(self, size: int, job: Callable[..., T], *arguments: object) -> T:
        """Return what `job` returns for `arguments`, which are `size` bytes; raise what it raises."""
        if not self.is_quick(size):
            return await trio.to_thread.run_sync(job, *arguments)
        await trio.lowlevel.checkpoint_if_cancelled()
        return self.run_here(job, *arguments)

    def is_quick(self, size: int) -> bool:
        """Return whether a job on `size` bytes may run in this turn."""
        return size <= SMALL_BYTES and self._clock() >= self._slow_until

    def run_here(self, job: Callable[..., T], *arguments: object) -> T:
        """Run the job in this turn, and note how long it takes."""
        began = self._clock()
        try:
            return job(*arguments)
        finally:
            ended = self._clock()
            if ended - began > SLOW_S:
                self._slow_until = ended + PAUSE_S
