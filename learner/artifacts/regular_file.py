"""Open and read files on a disk safely, even if something else has taken their place.

A path that a program has read a hundred times may be anything today: a directory that a backup made, a pipe that nobody
writes to, a device without an end, a loop of links. So every file that is kept or provided by a person is opened here.

Invariants:

- Nothing here waits for another program: a pipe is an error at once. The exception are descriptors that a shell has
  opened for this process, as for `volery join <(ssh HOST cat state/invite)`.
- Only a regular file is read, and at most the number of bytes that the caller names.
- Every error is an OSError with the name of the file and the reason in words.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MAX_FILE_BYTES = 1 << 30
"""A GiB. The largest files that are read whole are a learner's problem files; weights are never read whole here."""

PIECE_BYTES = 1 << 16
"""Least number of bytes for one read, because a descriptor from the shell has no size."""

INHERITED = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""Prefixes of paths that name descriptors with which this process was started."""

_KINDS = (
    (stat.S_ISDIR, errno.EISDIR, "Is a directory"),
    (stat.S_ISFIFO, errno.EINVAL, "it is a pipe, not a file"),
    (stat.S_ISCHR, errno.EINVAL, "it is a device, not a file"),
    (stat.S_ISBLK, errno.EINVAL, "it is a device, not a file"),
    (stat.S_ISSOCK, errno.EINVAL, "it is a socket, not a file"),
)


def open_file(path: Path) -> BinaryIO:
    """Return the file at `path`, open for reading. Raises OSError, also if it is no regular file."""
    inherited = str(path).startswith(INHERITED)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if inherited else os.O_NONBLOCK))
    try:
        if not inherited or stat.S_ISDIR(os.fstat(handle).st_mode):
            _require_regular(path, handle)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_file(path: Path, most: int = MAX_FILE_BYTES) -> bytes:
    """Return all bytes of the file at `path`. Raises OSError as `open_file`, and if there are more than `most`."""
    pieces, left = list[bytes](), most + 1
    with open_file(path) as file:
        at_once = max(os.fstat(file.fileno()).st_size + 1, PIECE_BYTES)  # Python allocates all that is asked for
        while left > 0 and (piece := file.read(min(left, at_once))):
            pieces.append(piece)
            left -= len(piece)
    if left <= 0:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return b"".join(pieces)


def open_lock(path: Path) -> BinaryIO:
    """Return the file at `path`, to hold a lock on; create it if it does not exist. Raises OSError as `open_file`."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        _require_regular(path, handle)
        return os.fdopen(handle, "ab")
    except BaseException:
        os.close(handle)
        raise


def _require_regular(path: Path, handle: int) -> None:
    mode = os.fstat(handle).st_mode
    for is_kind, number, why in _KINDS:
        if is_kind(mode):
            raise OSError(number, why, str(path))
