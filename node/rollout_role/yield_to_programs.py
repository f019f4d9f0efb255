"""Pause the node while one of the owner's programs runs, so that it has the machine to itself.

This module only sets a hold. `availability` then cancels the generation, `worker` returns its leases, and
`serving_version` frees the engine's memory if the pause is long.

Invariants:

- A name is the whole name of a process, as `ps -e` shows it, in upper or lower case.
- The node's own processes never count.
- A program that ends and starts again within GONE_S (a game's launcher, a render queue) does not wake the engine in
  between.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import psutil
import trio

from node.rollout_role.availability import Availability

LOOK_S = 5.0
"""Seconds between two looks at the list of processes. A look takes some 10 ms of a core, so a five-hundredth of it."""

GONE_S = 60.0
"""Seconds for which the pause goes on after the last of the programs has ended."""

HOLDER = "program"


ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
"""States of a process that has ended: a zombie until its parent reads its exit code, and dead at that moment."""


def first_running(names: Sequence[str]) -> str:
    """Return the first of `names` that a process has which is not ours; empty if there is none."""
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    running = {
        name.casefold()
        for process in psutil.process_iter(["name", "status"])
        if process.pid not in ours and process.info["status"] not in ENDED
        if (name := process.info["name"])
    }
    return next((name for name in names if name.casefold() in running), "")


async def make_room(names: Sequence[str], shift: Availability) -> None:
    """Hold the shift while one of the programs runs, and for GONE_S after it. Runs until cancelled."""
    seen_s = 0.0
    while True:
        if found := await trio.to_thread.run_sync(first_running, names):
            seen_s = trio.current_time()
            shift.hold(HOLDER, f"paused while {found} runs")
        elif trio.current_time() - seen_s >= GONE_S:
            shift.release(HOLDER)
        await trio.sleep(LOOK_S)
