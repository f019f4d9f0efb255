"""The last that a process of ours does when it cannot go on: to say why, and to end at once.

Left to itself, an interpreter that an exception ends waits for threads, destroys process groups and frees GPUs, which
takes seconds or for ever. Whoever started it sees its pipe closed, gives up, and kills it; then that kill is all that
is known. Light, so that it can run before the imports that take seconds.

Invariant: the reason is the last line on stderr, behind `FATAL`, and the exit status is 1. This file stands alone:
engine workers load it by its path.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

from learner.trainer_api.exit_reasons import FATAL

STATUS = 1


def tell_deaths() -> None:
    """From now on an exception that nobody catches in the main thread, and a fault in a library, are told."""
    faulthandler.enable()
    sys.excepthook = _die


def die(reason: str) -> NoReturn:
    """Say why this process ends, and end it, from any thread, also if nobody reads what it says any more."""
    try:
        print(f"{FATAL}{' '.join(reason.split())}", file=sys.stderr, flush=True)
    finally:
        os._exit(STATUS)


def die_of(error: BaseException) -> NoReturn:
    """Say that `error` ends this process, and end it, from any thread."""
    with suppress(Exception):
        traceback.print_exception(error)
    die(describe_error(error))


def describe_error(error: BaseException) -> str:
    """`error` in one line: its kind, its message, and where it was raised."""
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (at {frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}{f': {message}' if message else ''}{place}"


def _die(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    die_of(error.with_traceback(trace))
