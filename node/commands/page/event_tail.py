"""Read the events that a running program appends to its log, from a recent place on.

Invariants:

- Only whole lines are read, each once and in order, also when the log is rotated or removed meanwhile.
- Reading never holds more than a fixed number of bytes, however long the log is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

BEGIN_BYTES = 8 << 20
"""Bytes of the log before its end that the first reading begins with: hours of most runs, read in a fifth of a
second."""

PIECE_BYTES = 1 << 20
"""Bytes that one call of `read` takes at most."""


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One event. `at` is in seconds since 1970."""

    at: float
    event: str
    fields: dict[str, Any]


@dataclass(kw_only=True, eq=False)
class EventTail:
    """The events in the file `path`, from BEGIN_BYTES before its end on."""

    path: Path
    _file: IO[bytes] | None = None
    _rest: bytes = b""
    _is_first: bool = field(default=True, init=False)

    def read(self) -> list[Logged]:
        """Return the next events; an empty list if there are none now."""
        if self._file is None:
            self._open()
        if self._file is None:
            return []
        piece = self._file.read(PIECE_BYTES)
        if not piece and self._is_replaced():
            self._file.close()
            self._file, self._rest = None, b""
            self._open()
            piece = b"" if self._file is None else self._file.read(PIECE_BYTES)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > PIECE_BYTES:  # no event is that long: the file is no log
            self._rest = b""
        return list(_parsed(lines))

    def _open(self) -> None:
        with suppress(OSError):
            self._file = self.path.open("rb")
            size = os.fstat(self._file.fileno()).st_size
            if self._is_first and size > BEGIN_BYTES:
                self._file.seek(size - BEGIN_BYTES)
                self._file.readline()
            self._is_first = False

    def _is_replaced(self) -> bool:
        assert self._file is not None
        try:
            now = self.path.stat()
        except OSError:
            return False  # between two names, or gone: the next look decides
        opened = os.fstat(self._file.fileno())
        return (now.st_dev, now.st_ino) != (opened.st_dev, opened.st_ino)


def _parsed(lines: list[bytes]) -> Iterator[Logged]:
    for line in lines:
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            told = json.loads(line)
            yield Logged(at=float(told.pop("at")), event=str(told.pop("event")), fields=told)
