"""Small chunks where they are, large ones in a thread, and all of them in threads while the disk is slow."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
import trio

from swarm.transfer.disk_turns import PAUSE_S, SLOW_S, SMALL_BYTES, DiskTurns

pytestmark = pytest.mark.trio


@dataclass
class Disk:
    """Where jobs ran. A job takes `takes_s` of its clock."""

    now: float = 100.0
    takes_s: float = 0.001

    def clock(self) -> float:
        return self.now

    def write(self, what: str) -> tuple[str, bool]:
        """Return `what`, and whether this is the scheduler's thread."""
        self.now += self.takes_s
        return what, threading.current_thread() is threading.main_thread()


async def test_small_jobs_are_done_here_and_large_ones_in_a_thread() -> None:
    disk = Disk()
    turns = DiskTurns(disk.clock)
    assert await turns.run(SMALL_BYTES, disk.write, "small") == ("small", True)
    assert await turns.run(SMALL_BYTES + 1, disk.write, "large") == ("large", False)


async def test_a_slow_disk_is_asked_in_threads_for_a_while() -> None:
    disk = Disk(takes_s=2 * SLOW_S)
    turns = DiskTurns(disk.clock)
    assert (await turns.run(1, disk.write, ""))[1]
    disk.takes_s = 0.0
    assert not (await turns.run(1, disk.write, ""))[1]
    disk.now += PAUSE_S
    assert (await turns.run(1, disk.write, ""))[1]


async def test_a_job_that_fails_slowly_is_slow_as_well() -> None:
    disk = Disk()

    def fail() -> None:
        disk.now += 2 * SLOW_S
        raise OSError("no such disk")

    turns = DiskTurns(disk.clock)
    with pytest.raises(OSError, match="no such disk"):
        await turns.run(1, fail)
    assert not (await turns.run(1, disk.write, ""))[1]


async def test_whoever_is_cancelled_does_nothing() -> None:
    disk = Disk()
    with trio.CancelScope() as scope:
        scope.cancel()
        await DiskTurns(disk.clock).run(1, disk.write, "")
    assert disk.now == 100.0
