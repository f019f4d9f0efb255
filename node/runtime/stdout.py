"""Keep standard output for what Python prints, because C libraries print there unasked.

HiGHS, which finds the cheapest set of peers, writes to file descriptor 1 now and then, whatever its options are. That
would stand in the middle of a live view, or of JSON for a program. If descriptor 1 was closed at the start, it would
stand in whichever file got that number.

Invariants, after `keep_outlet`:

- `sys.stdout` writes to where it did. Descriptor 1 leads nowhere, and no file of ours has a descriptor from 0 to 2.
- Output that cannot be written is a RunError, raised once.
- A reader that has gone away (`| head`) raises BrokenPipeError, at which the program ends without a message.
- Output to a terminal that was closed is dropped: SIGHUP tells the program, or it is to go on without (`nohup`,
  `disown`).
- Characters that the encoding lacks are written as escapes.
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

from node.runtime.errors import unwritable_output
from node.runtime.formatting import folded
from protocol.core.visible import visible

WIDTHS = (80, 200)
"""Least and most columns of a table, whatever the terminal has: below the least there is hardly room for one."""

STANDARD = 3
"""Descriptors below this number are standard input, output and errors."""


def keep_outlet() -> None:
    """Let nothing but `sys.stdout` write to standard output from now on. If it is no real file, nothing changes."""
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
    sys.stdout = sys.__stdout__ = outlet  # type: ignore[misc]  # both: the terminal's size is read from the latter


def is_screen() -> bool:
    """Return whether standard output is a terminal that shows colours and lines."""
    out = sys.stdout
    return out.isatty() and out.encoding.lower().startswith("utf") and os.environ.get("TERM", "dumb") != "dumb"


def screen_width(least: int = WIDTHS[0]) -> int:
    """Return the terminal's columns, within WIDTHS, or from `least` on."""
    return min(max(shutil.get_terminal_size().columns, least), WIDTHS[1])


def say(text: str, *, nl: bool = True) -> None:
    """Print lines to standard output, made harmless. Everything that is not drawn goes through here."""
    typer.echo(visible(text), nl=nl)


def say_folded(text: str, *, as_json: bool = False, nl: bool = True) -> None:
    """Print lines to standard output; on a terminal, break those that are longer than it is wide, but not JSON."""
    if sys.stdout.isatty() and not as_json:
        width = shutil.get_terminal_size().columns
        text = "\n".join(folded(line, width) for line in text.split("\n"))
    say(text, nl=nl)


def say_drawn(text: str) -> None:
    """Print to standard output unchanged what a `HarmlessConsole` drew, or JSON."""
    typer.echo(text, nl=False)


def complain(text: str) -> None:
    """Print a line to standard error, if that can be written."""
    with suppress(OSError):  # the exit code tells it as well
        print(visible(text), file=sys.stderr, flush=True)


def tame_tracebacks() -> None:
    """Make tracebacks and logs of libraries harmless, since they quote strangers, too."""
    sys.excepthook = _tell_exception
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_HarmlessFormatter())


def _tell_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    complain("".join(traceback.format_exception(kind, error, trace)).rstrip())


class _HarmlessFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _fill_standard() -> None:
    """Open the standard descriptors that the parent process left closed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < STANDARD:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nothing = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for as long as the program lives
            setattr(sys, name, nothing)
            setattr(sys, f"__{name}__", nothing)


class _Outlet(io.FileIO):
    """The descriptor that output goes to. Once it has failed, the rest is dropped: Python would fail again at its end,
    with what it still holds."""

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
            raise unwritable_output(error) from None
