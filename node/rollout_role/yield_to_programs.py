"""Programs for which an owner wants the machine to himself: while one of them runs, nothing is generated.

What always holds: a name is that of a process as `ps -e` shows it, whole, upper or lower case being no matter; what the
node runs itself is never meant; a program that ended and comes back within GONE_S (a game's launcher, a render queue)
does not wake the engine in between.

What follows is elsewhere: `availability` stops what is generated, `worker` gives its leases back, and `serving_version`
frees the engine's memory when the pause is long.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import psutil
import trio

from node.rollout_role.availability import Availability

LOOK_S = 5.0
"""Between looks at the list of processes, which takes some 10 ms of a core: a five-hundredth of it."""

GONE_S = 60.0
"""So long after the last of them ended is the machine the owner's alone."""

HOLDER = "program"


ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
"""A process that has ended is a zombie until somebody asks for its exit code, and dead for the moment of that."""


def first_running(names: Sequence[str]) -> str:
    """The first of `names` that a process has which is not ours, empty if none has."""
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    running = {
        name.casefold()
        for process in psutil.process_iter(["name", "status"])
        if process.pid not in ours and process.info["status"] not in ENDED
        if (name := process.info["name"])
    }
    return next((name for name in names if name.casefold() in running), "")


async def make_room(names: Sequence[str], shift: Availability) -> None:
    """Hold the shift while one of them runs and for GONE_S after, until cancelled."""
    seen_s = 0.0
    while True:
        if found := await trio.to_thread.run_sync(first_running, names):
            seen_s = trio.current_time()
            shift.hold(HOLDER, f"paused while {found} runs")
        elif trio.current_time() - seen_s >= GONE_S:
            shift.release(HOLDER)
        await trio.sleep(LOOK_S)
