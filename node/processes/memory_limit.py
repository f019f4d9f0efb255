"""Notice when a child holds more memory than it may, by measuring it from outside, which always works.

RLIMIT_AS limits addresses, and torch and CUDA reserve many times what they fill. RLIMIT_RSS does nothing on Linux. A
cgroup needs a delegation that few volunteers have. So the memory is measured every LOOK_S, and a child that holds too
much is ended; its node starts it again. Between two measurements it can take more, so the limit needs some slack below
the machine's memory. For that case the kernel learns which process to end first (`offer_first`).

Invariants:

- Only memory counts that the machine gets back by swapping or by ending the child, and what was already swapped out.
- Pages of mapped files, such as weights that are being read, do not count on Linux, because they can be dropped at any
  time. On other systems they count.
- Pages that several of the child's processes share are counted once.
- A measurement that fails, as when the child is ending, is no reason to end the child.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil
import trio

LOOK_S = 0.5
"""Seconds between measurements. A model is read from disk at one or two GB a second, so each adds about one GB of
slack."""

OFFERED = 500
"""Score out of 1000: above every program that did not ask for it, below those that asked for the most."""

QUICK = ("RssAnon", "RssShmem", "VmSwap")
"""Lines of /proc/PID/status: what a process holds, with shared pages counted in full."""

EXACT = ("Pss_Anon", "Pss_Shmem", "SwapPss")
"""Lines of /proc/PID/smaps_rollup: the same, with shared pages divided among their processes."""


def measure_memory(pid: int, limit_bytes: int) -> int:
    """Return the bytes that a process and all below it hold; an upper estimate if that is within the limit."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    quick = sum(_sum_of_lines(member, "status", QUICK) for member in family)
    # The exact figure walks all page tables, some 10 ms for each GB, so it is read only where it matters.
    return (
        quick
        if quick <= limit_bytes
        else min(quick, sum(_sum_of_lines(member, "smaps_rollup", EXACT) for member in family))
    )


def _sum_of_lines(process: psutil.Process, file: str, keys: Iterable[str]) -> int:
    """Return the sum of these lines of /proc/PID/`file`, in bytes; the resident set if there is no such file."""
    try:
        text = Path(f"/proc/{process.pid}/{file}").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        with suppress(psutil.Error):
            return int(process.memory_info().rss)
        return 0
    except OSError:  # the process has just ended
        return 0
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return sum(1024 * int(lines[key].split()[0]) for key in keys if key in lines)


async def wait_over(pid: int, limit_bytes: int) -> int:
    """Wait until the process and all below it hold more than `limit_bytes`, and return how much, in bytes."""
    while True:
        held = await trio.to_thread.run_sync(measure_memory, pid, limit_bytes)
        if held > limit_bytes:
            return held
        await trio.sleep(LOOK_S)


def offer_first(pid: int) -> None:
    """Let the kernel end this process before its owner's programs when the machine runs out of memory.

    Only Linux can do that; elsewhere nothing happens.
    """
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(OFFERED), encoding="ascii")
