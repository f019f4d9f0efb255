"""Read the events that a running program appends to its log, from a recent place on.

Invariants:

- Only whole lines are read, each once and in order, also when the log is rotated, removed or emptied meanwhile.
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

LATEST_S = 1e11
"""Seconds since 1970 up to which a time has a date."""

PIECE_BYTES = 1 << 20
"""Bytes that one call of `read` takes at most, and more than the longest line."""


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
    _is_too_long: bool = field(default=False, init=False)
    """Whether the line that is being read is too long to be an event, and is skipped up to its end."""

    def read(self) -> list[Logged] | None:
        """Return the events of the next piece; None if there is nothing to read now."""
        piece = self._piece()
        if not piece:
            return None
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if lines and self._is_too_long:
            del lines[0]
            self._is_too_long = False
        if self._is_too_long or len(self._rest) > PIECE_BYTES:
            self._rest, self._is_too_long = b"", True
        return list(_parsed(lines))

    def close(self) -> None:
        """Close the file. The next reading opens it from its beginning."""
        if self._file is not None:
            self._file.close()
        self._file, self._rest, self._is_too_long = None, b"", False

    def _piece(self) -> bytes:
        if self._file is None:
            self._open()
        if self._file is None:
            return b""
        if piece := self._file.read(PIECE_BYTES):
            return piece
        if not self._is_replaced():
            if os.fstat(self._file.fileno()).st_size < self._file.tell():  # emptied in its place
                self.close()
                self._open()
            return b"" if self._file is None else self._file.read(PIECE_BYTES)
        if piece := self._file.read(PIECE_BYTES):  # written after the last look, and before the new file came
            return piece
        self.close()
        self._open()
        return b"" if self._file is None else self._file.read(PIECE_BYTES)

    def _open(self) -> None:
        with suppress(OSError):
            self._file = self.path.open("rb")
            size = os.fstat(self._file.fileno()).st_size
            if self._is_first and size > BEGIN_BYTES:
                self._file.seek(size - BEGIN_BYTES)
                self._is_too_long = True  # the first line was begun before
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
        with suppress(ValueError, RecursionError):
            match told := json.loads(line):
                case {"at": int() | float() as at, "event": str() as event} if 0 <= at < LATEST_S:
                    yield Logged(at=at, event=event, fields={key: told[key] for key in told.keys() - {"at", "event"}})
