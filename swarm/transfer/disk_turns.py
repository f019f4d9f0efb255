"""Where the disk is asked: small chunks in the turn in which they come, large ones in a thread.

A turn of a thread costs a quarter of a millisecond of processor time, which is more than hashing and writing 128 KiB
into the system's memory. A disk that makes writers wait would hold up everything else, so one job that was slow sends
all of them to threads for a while.

What always holds: at most one job in PAUSE_S takes longer than SLOW_S in the scheduler's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import trio

from protocol.core.limits import KIB

T = TypeVar("T")

SMALL_BYTES = 256 * KIB
"""Of the size up to which chunks are hashed and written in 0.3 ms; a larger one is better done beside other work."""

SLOW_S = 0.02
"""So long everything else may wait for one chunk."""

PAUSE_S = 10.0
"""For so long a disk that was slow is asked in threads."""


class DiskTurns:
    """See the module's paragraph."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slow_until = 0.0

    async def run(self, size: int, job: Callable[..., T], *arguments: object) -> T:
        """Return what `job` does with `arguments`, which are `size` bytes; raise what it raises."""
        if not self.is_quick(size):
            return await trio.to_thread.run_sync(job, *arguments)
        await trio.lowlevel.checkpoint_if_cancelled()
        return self.run_here(job, *arguments)

    def is_quick(self, size: int) -> bool:
        """Whether a job on `size` bytes may be done in this turn."""
        return size <= SMALL_BYTES and self._clock() >= self._slow_until

    def run_here(self, job: Callable[..., T], *arguments: object) -> T:
        """Do it in this turn, and see how long it takes."""
        began = self._clock()
        try:
            return job(*arguments)
        finally:
            ended = self._clock()
            if ended - began > SLOW_S:
                self._slow_until = ended + PAUSE_S
