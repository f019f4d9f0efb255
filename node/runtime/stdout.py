"""Standard output for what Python prints, and for nothing else: C libraries print there as well, unasked.

HiGHS, which finds the cheapest set of peers, tells the file descriptor 1 of its inner life now and then, whatever its
options say, and that would stand in the middle of a live view, or of JSON for a program; where nobody opened descriptor
1, it would stand in whichever file got that number. What always holds after `keep_outlet`: `sys.stdout` writes to where
it did, descriptor 1 leads nowhere, and 0 to 2 are of no file of ours. Output that cannot be written is a RunError, told
once; a reader who has gone away (`| head`) is none, and is raised as BrokenPipeError, at which the program ends without
a word. A terminal that was closed is none either: what would go there is dropped, since the program is told by SIGHUP,
or is to go on without (`nohup`, `disown`). What an encoding lacks is written as an escape.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import shutil
import sys
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Any

import typer

from node.runtime.errors import RunError
from protocol.core.visible import visible

WIDTHS = (80, 200)
"""Columns that tables are made for, whatever the terminal has: below these there is hardly room for one."""

STANDARD = 3
"""Descriptors below are standard input, output and errors."""


def keep_outlet() -> None:
    """Let nothing but `sys.stdout` write to standard output from now on. Where that is no real file, it stays so."""
    _fill_standard()
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return  # a test captures it
    if descriptor != 1:
        return
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    raw = io.BufferedWriter(_Outlet(kept, "w"))
    lossless = "backslashreplace" if sys.stdout.errors == "strict" else sys.stdout.errors
    outlet = io.TextIOWrapper(raw, encoding=sys.stdout.encoding, errors=lossless, line_buffering=True)
    sys.stdout = sys.__stdout__ = outlet  # type: ignore[misc]  # both: the size of a terminal is asked of the latter


def is_screen() -> bool:
    """Whether standard output is a terminal that shows colours and lines."""
    out = sys.stdout
    return out.isatty() and out.encoding.lower().startswith("utf") and os.environ.get("TERM", "dumb") != "dumb"


def screen_width(least: int = WIDTHS[0]) -> int:
    """Columns of the terminal, within WIDTHS, or from `least` on."""
    return min(max(shutil.get_terminal_size().columns, least), WIDTHS[1])


def say(text: str, *, nl: bool = True) -> None:
    """A line, or several, on standard output: all that is not drawn goes through here, and can do nothing to it."""
    typer.echo(visible(text), nl=nl)


def say_drawn(text: str) -> None:
    """What a `HarmlessConsole` drew, or JSON, on standard output as it is."""
    typer.echo(text, nl=False)


def complain(text: str) -> None:
    """A line on standard error, if that can be written."""
    with suppress(OSError):  # the exit code says it as well
        print(visible(text), file=sys.stderr, flush=True)


def tame_tracebacks() -> None:
    """What ends the program unforeseen, and what libraries log, quotes strangers as well: it can do nothing either."""
    sys.excepthook = _tell_exception
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_HarmlessFormatter())


def _tell_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    complain("".join(traceback.format_exception(kind, error, trace)).rstrip())


class _HarmlessFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _fill_standard() -> None:
    """Open what a starter left closed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < STANDARD:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nothing = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for as long as the program lives
            setattr(sys, name, nothing)
            setattr(sys, f"__{name}__", nothing)


class _Outlet(io.FileIO):
    """The descriptor that output goes to. Once it has failed the rest is dropped, or Python would fail again at its
    end, with what it still holds."""

    def __init__(self, descriptor: int, mode: str) -> None:
        super().__init__(descriptor, mode)
        self._failed = False
        self._is_terminal = self.isatty()

    def write(self, data: Any, /) -> int:
        if self._failed:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except BrokenPipeError:
            self._failed = True
            raise
        except OSError as error:
            self._failed = True
            if self._is_terminal and error.errno == errno.EIO:
                return memoryview(data).nbytes
            raise RunError(
                f"standard output cannot be written: {error.strerror}. Free the disk, or let it go elsewhere."
            ) from None
