"""Prepare the process before all else: handle signals from the first line on, and set garbage collection and limits.

    SIGUSR1, SIGUSR2           the owner's orders: the last one is remembered until a node can follow it
    SIGINT, SIGTERM, SIGHUP    end the program as Ctrl-C does: with nothing half-written, and without a traceback

SIGHUP means that the terminal was closed. `nohup` ignores it, and then it stays ignored.

Invariants:

- The module is imported before anything that takes time, and imports nothing but the standard library.
- A signal that is already handled or ignored is left as it is.
- Other programs, and children, which inherit none of it, lose nothing.
- An interrupt that comes in a callback, where Python drops exceptions, comes again until it is handled.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

STOPPED_EXIT_CODE = 130
"""128 + SIGINT, as in shells. It also follows SIGTERM and SIGHUP, which end the program in the same order."""

AGAIN_S = 0.01
"""Seconds after which a dropped interrupt comes again. The callback that it met, of a lock or a weak reference, has
ended by then."""

_last: int | None = None


def remember() -> None:
    """Handle all five signals that nobody handles yet. Until `loaded`, the last three end the program at once."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _note)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _end)


def loaded() -> None:
    """After the imports, let SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is _end:
            signal.signal(number, _interrupt)
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = _interrupt_again


def remembered() -> int | None:
    """Return the last SIGUSR1 or SIGUSR2 that came, None if none did, and forget it."""
    global _last
    number, _last = _last, None
    return number


def _note(number: int, _frame: FrameType | None) -> None:
    global _last
    _last = number


def _end(_number: int, _frame: FrameType | None) -> None:
    """End while Python imports: nothing has begun. An exception would be printed, or lost in a callback."""
    os._exit(STOPPED_EXIT_CODE)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C would do now. trio has a handler of its own, which keeps its inner loop whole."""
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    else:
        raise KeyboardInterrupt


def _interrupt_again(dropped: sys.UnraisableHookArgs) -> None:
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        try:
            threading.Timer(AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        except KeyboardInterrupt:  # starting the thread took longer than AGAIN_S, so it came while this still ran
            _interrupt_again(dropped)
    else:
        sys.__unraisablehook__(dropped)


NEW_OBJECTS = 10_000
"""New objects between two collections of the youngest: at most some megabytes of garbage, as none of our cycles holds
chunks."""


def prepare_process() -> None:
    """Set up the interpreter and the process for a role that runs for days.

    Call it once, when everything is imported and nothing has begun.
    """
    look_seldom()
    open_many_files()
    share_arenas()


def look_seldom() -> None:
    """Make the interpreter search for cycles of objects seldom, for a process that runs for days.

    By default it searches after every 700 new objects, and again and again through all that imports brought: 5 % of
    what a relaying node computes. Cycles are still found, except among objects that existed when the program began.

    Call it once, when everything is imported and nothing has begun.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)


OPEN_FILES = 65_536
"""Most open files, more than any role needs. A member's connection is one, and so is each chunk that is read or
written."""


def open_many_files() -> None:
    """Let this process open as many files as the system allows, at most OPEN_FILES.

    Most systems begin with 1024, for programs that cannot use more, and let each program raise its own limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    while soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return
        most //= 2  # macOS has a lower limit that it does not report


def share_arenas() -> None:
    """Let threads share ARENAS memory pools of the C library, instead of one each as glibc does by default.

    Memory that a thread frees stays in its pool. A learner's threads come and go with deliveries, versions and the
    ledger, and each pool grew to what the largest of them had ever taken: 20 of 220 MiB, with the smallest of models.
    The interpreter's lock lets few threads ask for memory at a time.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # only glibc has it
        mallopt(M_ARENA_MAX, ARENAS)


M_ARENA_MAX = -8
"""The value in malloc.h."""

ARENAS = 1
"""Number of pools. With two, the learner of a small model took 181 to 201 MiB, depending on how its threads met; with
one, 186 to 187. Patches are made and applied as fast."""
