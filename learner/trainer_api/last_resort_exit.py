"""End a process of this program that cannot go on: say why, and exit at once.

After an uncaught exception an interpreter waits for threads, destroys process groups and frees GPUs, which takes
seconds or forever. Its parent sees the pipe closed, gives up, and kills it; then only that kill is known. Light, so
that it can run before the imports that take seconds. Engine workers load this file by its path.

Invariants:

- The reason is the last line on stderr, after `FATAL`, and the exit status is 1.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, TextIO

from learner.trainer_api.exit_reasons import FATAL

STATUS = 1


def tell_deaths() -> None:
    """Report, from now on, every uncaught exception in the main thread, and every fault in a library."""
    faulthandler.enable()
    sys.excepthook = _die


def die(reason: str) -> NoReturn:
    """Print why this process ends, and end it. Works from any thread, also if nobody reads stderr any more."""
    try:
        print(f"{FATAL}{' '.join(reason.split())}", file=_stderr(), flush=True)
    finally:
        os._exit(STATUS)


def die_of(error: BaseException) -> NoReturn:
    """Print that `error` ends this process, and end it. Works from any thread."""
    with suppress(Exception):
        traceback.print_exception(error, file=_stderr())
    die(describe_error(error))


def _stderr() -> TextIO | None:
    """Return the stderr that the process began with. torch.distributed's hook holds back what an uncaught exception
    prints on `sys.stderr`, to write it later: after `os._exit` there is no later."""
    return sys.__stderr__ or sys.stderr


def describe_error(error: BaseException) -> str:
    """Return `error` in one line: its type, its message, and where it was raised."""
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (at {frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}{f': {message}' if message else ''}{place}"


def _die(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    die_of(error.with_traceback(trace))
