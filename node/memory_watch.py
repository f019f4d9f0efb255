"""Whether a child holds more memory than it may: looked at from outside, since nothing else can be trusted to hold.

RLIMIT_AS bounds addresses, of which torch and CUDA reserve many times what they fill; RLIMIT_RSS does nothing on Linux;
a cgroup needs a delegation that few volunteers have. So we look, LOOK_S apart, and the child is ended when it holds too
much: its node starts it again. What it takes between two looks, it takes: the bound wants some slack below what the
machine has. For that case the kernel is told whom to end first (`offer_first`).

What always holds: pages that several of its processes share are counted once, and a look that cannot be had (the child
is ending) is no reason to end it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
import trio

from node.processes import family_pss_bytes

LOOK_S = 0.5
"""Between looks. A model is read from disk at one or two GB a second, so a look too late is about one too many."""

OFFERED = 500
"""Of 1000: above every program that did not ask for it, below those that did by all means."""


def family_rss_bytes(pid: int) -> int:
    """Resident set of a process and all below it, in bytes, shared pages counted for each: cheap, and never less than
    what they hold together.
    """
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for member in family:
        with suppress(psutil.Error):
            total += member.memory_info().rss
    return total


def held_bytes(pid: int, limit_bytes: int) -> int:
    """What a process and all below it hold, in bytes; an upper estimate as long as that is within the limit."""
    rss = family_rss_bytes(pid)
    # Proportional sizes walk all page tables, some 10 ms for each GB: asked for only where it matters.
    return rss if rss <= limit_bytes else min(rss, family_pss_bytes(pid))


async def wait_over(pid: int, limit_bytes: int) -> int:
    """Wait until the process and all below it hold more than that, and return how much, in bytes."""
    while True:
        held = await trio.to_thread.run_sync(held_bytes, pid, limit_bytes)
        if held > limit_bytes:
            return held
        await trio.sleep(LOOK_S)


def offer_first(pid: int) -> None:
    """When the machine runs out of memory, let the kernel end this process before its owner's programs. Linux alone
    knows that; elsewhere nothing happens.
    """
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(OFFERED), encoding="ascii")
