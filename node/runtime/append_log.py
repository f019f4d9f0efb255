"""Append whole lines to a file with one writer, even if the disk is full now and then.

Invariants:

- After `append`, and after opening, every line of the file is complete. A line that did not fit is removed by
  shortening the file, which needs no room.
- Nothing waits for the disk: a power cut costs the last seconds.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

LOOK_BACK_BYTES = 64 * 1024
"""Bytes that are read at a time from the end of a file, in search of its last whole line."""


class LineFile:
    """Append to `path`, opening it when needed. Beyond `most_bytes` the file is full, and `set_aside` begins
    another."""

    def __init__(self, path: Path, *, most_bytes: int) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._file: int | None = None
        self.is_full = False

    @property
    def is_open(self) -> bool:
        """Return whether the next line follows the last one in the same file."""
        return self._file is not None

    def append(self, lines: bytes) -> None:
        """Append whole lines, all or nothing. Raises OSError; the file is then as it was, and closed."""
        try:
            self._append(lines)
        except OSError:
            self.close()
            raise

    def set_aside(self) -> None:
        """Rename the file to `path`.1, in place of the one before. Raises OSError."""
        self.close()
        self._path.replace(self._path.with_name(self._path.name + ".1"))
        self.is_full = False

    def close(self) -> None:
        """Close the file. The next append opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, lines: bytes) -> None:
        if self._file is not None and os.fstat(self._file).st_nlink == 0:  # nobody would ever read more lines
            raise FileNotFoundError(errno.ENOENT, "it was removed while it was written to", str(self._path))
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            _end_after_last_line(self._file)
        size = os.fstat(self._file).st_size
        if (written := os.write(self._file, lines)) < len(lines):
            os.ftruncate(self._file, size)
            raise OSError(f"only {written} of {len(lines)} bytes could be written; the disk is full")
        self.is_full = size + written > self._most_bytes


def _end_after_last_line(file: int) -> None:
    """Cut off the part of a line that a kill or a power cut left."""
    size = end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - LOOK_BACK_BYTES)
        if (found := os.pread(file, end - start, start).rfind(b"\n")) >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)
