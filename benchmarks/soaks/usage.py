"""Measure the resources that this process uses, its children's memory included.

Invariant: Python and the C library free the memory that they can before it is measured.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import trio

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Usage:
    """`at`: in hours of the run, or in thousands of joins. `disk_mib` is the size of the files."""

    at: float
    memory_mib: float
    handles: int
    tasks: int
    files: int
    disk_mib: float


def usage(at: float, directory: Path) -> Usage:
    """Return the current usage, with the files below `directory`. Call it in a task of trio."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    process = psutil.Process()
    memory = process.memory_info().rss
    for child in process.children(recursive=True):
        with suppress(psutil.Error):
            memory += child.memory_info().rss
    sizes = []
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                sizes.append(path.stat().st_size)
    return Usage(
        at=at,
        memory_mib=memory / MIB,
        handles=process.num_fds(),
        tasks=trio.lowlevel.current_statistics().tasks_living,
        files=len(sizes),
        disk_mib=sum(sizes) / MIB,
    )
