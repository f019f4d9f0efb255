"""Whether a child holds more memory than it may: looked at from outside, since nothing else can be trusted to hold.

RLIMIT_AS bounds addresses, of which torch and CUDA reserve many times what they fill; RLIMIT_RSS does nothing on Linux;
a cgroup needs a delegation that few volunteers have. So we look, LOOK_S apart, and the child is ended when it holds too
much: its node starts it again. What it takes between two looks, it takes: the bound wants some slack below what the
machine has. For that case the kernel is told whom to end first (`offer_first`).

What always holds: counted is what the machine can only get back by swapping or by ending the child, and what was
swapped out already; pages of mapped files, as weights that are being read, can be dropped at any time and do not count
(on Linux: elsewhere they do). Pages that several of its processes share are counted once, and a look that cannot be had
(the child is ending) is no reason to end it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil
import trio

LOOK_S = 0.5
"""Between looks. A model is read from disk at one or two GB a second, so a look too late is about one too many."""

OFFERED = 500
"""Of 1000: above every program that did not ask for it, below those that did by all means."""

QUICK = ("RssAnon", "RssShmem", "VmSwap")
"""Of /proc/PID/status: what a process holds, shared pages whole."""

EXACT = ("Pss_Anon", "Pss_Shmem", "SwapPss")
"""Of /proc/PID/smaps_rollup: the same, shared pages in parts."""


def measure_memory(pid: int, limit_bytes: int) -> int:
    """What a process and all below it hold, in bytes; an upper estimate as long as that is within the limit."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    quick = sum(_told(member, "status", QUICK) for member in family)
    # The exact figure walks all page tables, some 10 ms for each GB: asked for only where it matters.
    return quick if quick <= limit_bytes else min(quick, sum(_told(member, "smaps_rollup", EXACT) for member in family))


def _told(process: psutil.Process, file: str, keys: Iterable[str]) -> int:
    """The sum of these lines of /proc/PID/`file`, in bytes; the resident set where there is no such file."""
    try:
        text = Path(f"/proc/{process.pid}/{file}").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        with suppress(psutil.Error):
            return int(process.memory_info().rss)
        return 0
    except OSError:  # it has just ended
        return 0
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return sum(1024 * int(lines[key].split()[0]) for key in keys if key in lines)


async def wait_over(pid: int, limit_bytes: int) -> int:
    """Wait until the process and all below it hold more than that, and return how much, in bytes."""
    while True:
        held = await trio.to_thread.run_sync(measure_memory, pid, limit_bytes)
        if held > limit_bytes:
            return held
        await trio.sleep(LOOK_S)


def offer_first(pid: int) -> None:
    """When the machine runs out of memory, let the kernel end this process before its owner's programs. Linux alone
    knows that; elsewhere nothing happens.
    """
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(OFFERED), encoding="ascii")
