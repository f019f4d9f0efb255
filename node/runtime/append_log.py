"""A file to which only whole lines are appended, by one writer, however often the disk is full.

What always holds: after `append`, and after opening, every line of the file has its end; what did not fit is taken back
by shortening the file, which needs no room. Nothing waits for the disk: a power cut costs the last seconds.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

LOOK_BACK_BYTES = 64 * 1024
"""Read at a time from the end of a file, in search of its last whole line."""


class LineFile:
    """Appends to `path`, opening it when needed; beyond `most_bytes` it is full, and `set_aside` begins another."""

    def __init__(self, path: Path, *, most_bytes: int) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._file: int | None = None
        self.is_full = False

    @property
    def is_open(self) -> bool:
        """Whether what is appended next follows what was appended last, in the same file."""
        return self._file is not None

    def append(self, lines: bytes) -> None:
        """Append whole lines, all or nothing. Raises OSError; the file is then as it was, and closed."""
        try:
            self._append(lines)
        except OSError:
            self.close()
            raise

    def set_aside(self) -> None:
        """Make it `path`.1, in place of the one before. Raises OSError."""
        self.close()
        self._path.replace(self._path.with_name(self._path.name + ".1"))
        self.is_full = False

    def close(self) -> None:
        """Close the file; what is appended later opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, lines: bytes) -> None:
        if self._file is not None and os.fstat(self._file).st_nlink == 0:  # nobody would ever read what is appended
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
    """Cut off what a kill or a power cut left of a line."""
    size = end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - LOOK_BACK_BYTES)
        if (found := os.pread(file, end - start, start).rfind(b"\n")) >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)
