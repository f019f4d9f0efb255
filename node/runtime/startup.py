"""What the program does before all else: heed signals from its first line on, have the interpreter collect seldom, and
open as many files as it may.

    SIGUSR1, SIGUSR2           the owner's word: the last one is remembered until a node can heed it
    SIGINT, SIGTERM, SIGHUP    end the program as Ctrl-C does: with nothing half-written, and without a traceback

SIGHUP says that the terminal was closed. `nohup` has it ignored, and then it stays ignored.

Invariants:
- The module is imported before anything that takes time, and imports nothing but the standard library.
- A signal that somebody handles or ignores already is left as it is.
- Programs that are none of a node, and children, which take nothing of it over, lose nothing.
- An interrupt that comes in a callback, where Python drops exceptions, comes again until it is heeded.
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
"""128 + SIGINT, as shells have it; also after SIGTERM and SIGHUP, which end the program in the same order."""

AGAIN_S = 0.01
"""After which an interrupt that was dropped comes again: the callback that it met, of a lock or a weak reference, is
over by then."""

_last: int | None = None


def remember() -> None:
    """Handle all five from now on; what is already handled stays so. Until `loaded`, the last three end it at once."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _note)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _end)


def loaded() -> None:
    """The imports are done: from now on SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is _end:
            signal.signal(number, _interrupt)
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = _interrupt_again


def remembered() -> int | None:
    """The last of SIGUSR1 and SIGUSR2 that came, None if none did; it is forgotten."""
    global _last
    number, _last = _last, None
    return number


def _note(number: int, _frame: FrameType | None) -> None:
    global _last
    _last = number


def _end(_number: int, _frame: FrameType | None) -> None:
    """End while Python imports: nothing was begun. An exception would be printed, or lost in a callback."""
    os._exit(STOPPED_EXIT_CODE)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C would do now: trio has a handler of its own, which keeps its inner loop whole."""
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    else:
        raise KeyboardInterrupt


def _interrupt_again(dropped: sys.UnraisableHookArgs) -> None:
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        try:
            threading.Timer(AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        except KeyboardInterrupt:  # where starting a thread takes longer than that, it comes while this still runs
            _interrupt_again(dropped)
    else:
        sys.__unraisablehook__(dropped)


NEW_OBJECTS = 10_000
"""Between two looks at the youngest: some megabytes of garbage at most, as none of ours keeps chunks in cycles."""


def look_seldom() -> None:
    """Make the interpreter search for cycles of objects seldom, for a process that runs for days.

    By default it looks after every 700 new objects, and again and again through all that imports have brought: 5 % of
    what a relaying node computes. Cycles are still found; what was there when the program began is no longer looked
    through.

    Call it once, when everything is imported and nothing has begun.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)


OPEN_FILES = 65_536
"""More than any role needs. A connection of a member is one, and so is each chunk that is read or written."""


def open_many_files() -> None:
    """Let this process open as many files as the system allows it, OPEN_FILES at most.

    Most systems begin with 1024, for programs that cannot use more, and let each raise that by itself.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    while soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return
        most //= 2  # macOS has a lower limit of its own, which it does not tell


def share_arenas() -> None:
    """Let threads take memory from ARENAS pools of the C library instead of one each, as glibc has it.

    What a thread frees stays in its pool. A learner's threads come and go with deliveries, versions and the ledger, and
    each pool grew to what the largest of them had ever taken: 20 of 220 MiB, with the smallest of models. The
    interpreter's lock lets few threads ask for memory at a time.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # glibc has it
        mallopt(M_ARENA_MAX, ARENAS)


M_ARENA_MAX = -8
"""As malloc.h has it."""

ARENAS = 1
"""With two, the learner of a small model took 181 to 201 MiB, by how its threads met; with one, 186 to 187. Patches are
made and applied as fast."""
