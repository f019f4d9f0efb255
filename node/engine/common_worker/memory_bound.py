"""Find how much memory this process may use: a cgroup's limit, as in containers, or the machine's memory.

In our cgroup the kernel drops pages of files before it ends a process; all other memory counts against the limit.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")

PROCESS_BYTES = 300_000_000
"""Bytes that torch and transformers take before there is a model."""

NO_LIMIT = 1 << 60
"""Bytes. Version 1 of cgroups expresses "no limit" as a number near 2^63."""


def memory_bound(own: Path = Path("/proc/self/cgroup"), root: Path = CGROUPS) -> int | None:
    """Return the smallest limit of the cgroups that this process is in, in bytes; None if there is none."""
    limits = []
    with suppress(OSError, ValueError):  # ValueError: a line of another form
        for line in own.read_text(encoding="ascii", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            top = root / "memory" if controllers else root
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            inner = top / path.lstrip("/")
            limits += [_read(folder / name) for folder in (inner, *inner.parents) if folder.is_relative_to(top)]
    return min((limit for limit in limits if limit is not None), default=None)


def whole_memory() -> int | None:
    """Return the machine's memory, or the cgroup's limit if that is smaller; None if neither can be read."""
    with suppress(ValueError, OSError, AttributeError):
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min(machine, memory_bound() or machine)
    return memory_bound()


def _read(file: Path) -> int | None:
    with suppress(OSError, ValueError):
        found = int(file.read_text(encoding="ascii"))
        return found if 0 < found < NO_LIMIT else None
    return None
