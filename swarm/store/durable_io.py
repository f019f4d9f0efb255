"""The few things done to a disk that must survive a kill, and in which order.

What always holds: a file that `replace_file` wrote is there whole or not at all; a directory moved by `move_durably`
had its contents on the disk before it got its new name. Chunks are not synced one by one (a lost one is fetched
again), only before the rename that calls a version complete.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from swarm.store.errors import StoreLocked

SCRATCH_PREFIX = "scratch-"
"""What bears it was left by a process that was killed, and may be removed when the store is opened."""

MIN_WRITE_BACK_BYTES = 64 * 1024
"""Writes from this size on, chunks that is, are sent to the disk at once. Left to the end, the sync of 64 MiB made the
last of eight peers on one disk wait 0.3 s."""

_NO_PREALLOCATION = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


def scratch_path(directory: Path) -> Path:
    """Return a path in `directory` that nobody else uses."""
    return directory / f"{SCRATCH_PREFIX}{secrets.token_hex(8)}"


def remove_scratch(directory: Path) -> None:
    """Remove what earlier processes left half done in `directory`."""
    for path in directory.glob(f"{SCRATCH_PREFIX}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def replace_file(path: Path, data: bytes) -> None:
    """Make `path` hold `data`; a reader, now or after a crash, sees the old contents or the new."""
    scratch = scratch_path(path.parent)
    try:
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(path)
    except BaseException:  # also where it was interrupted: nobody would find the scratch file
        scratch.unlink(missing_ok=True)
        raise
    sync(path.parent)


def move_durably(source: Path, target: Path) -> None:
    """Rename a directory to a name that is free, its files and entries on the disk before, the new name on it after."""
    sync_directory(source)
    source.rename(target)
    sync(target.parent)


def sync_directory(directory: Path) -> None:
    """Wait until the files in `directory`, and their names, are on the disk."""
    for path in directory.iterdir():
        sync(path)
    sync(directory)


def sync(path: Path | str) -> None:
    """Wait until what was written to a file, or the entries of a directory, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def opened_to_write(path: Path | str) -> Iterator[int]:
    """An existing file, until the `with` block ends; also where it gets another name meanwhile, or none."""
    handle = os.open(path, os.O_WRONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def write_at(path: Path | str, offset: int, *parts: bytes | memoryview) -> None:
    """Write all of `parts`, one behind the other, into an existing file. Raises OSError; then any part of it may have
    been written.
    """
    with opened_to_write(path) as handle:
        write_pieces(handle, [(offset, parts)])


def write_pieces(handle: int, pieces: Iterable[tuple[int, Sequence[bytes | memoryview]]]) -> None:
    """Write each piece, all of its parts one behind the other, at its offset. Raises OSError as `write_at` does."""
    start = end = 0
    for offset, parts in pieces:
        if offset != end:
            begin_write_back(handle, start, end - start)
            start = end = offset
        for part in parts:
            view = memoryview(part)
            while view:
                written = os.pwrite(handle, view, end)
                view, end = view[written:], end + written
    begin_write_back(handle, start, end - start)


def begin_write_back(handle: int, offset: int, size: int) -> None:
    """Let the system write these bytes to the disk soon, so that the sync at a version's end has little to do."""
    if size >= MIN_WRITE_BACK_BYTES and hasattr(os, "posix_fadvise"):
        # Linux begins to write what is dirty, and would drop from memory only what is not: nothing here.
        os.posix_fadvise(handle, offset, size, os.POSIX_FADV_DONTNEED)


def read_once(handle: int, offset: int, size: int) -> bytes:
    """Return `size` bytes, fewer only where the file ends, and close `handle`."""
    try:
        data = os.pread(handle, size, offset)
        while len(data) < size and (more := os.pread(handle, size - len(data), offset + len(data))):
            data += more
        return data
    finally:
        os.close(handle)


def read_regular(path: Path) -> bytes:
    """All bytes of a file. Raises OSError, also for what is no regular file: a pipe would be waited for."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        return file.read()


def preallocate(path: Path, size: int) -> None:
    """Give `path` exactly `size` bytes of disk, keeping what is there: a full disk shows before a byte is fetched."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.ftruncate(handle, size)
        if size and hasattr(os, "posix_fallocate"):  # not on macOS; there the file stays sparse
            try:
                os.posix_fallocate(handle, 0, size)
            except OSError as error:
                if error.errno not in _NO_PREALLOCATION:
                    raise
    finally:
        os.close(handle)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or where the two are on different disks, a copy."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}:
            raise
        shutil.copyfile(source, target)


def lock(path: Path) -> int:
    """Take the lock at `path` and return its handle; closing it releases the lock, and so does the end of the process.

    Raises StoreLocked, naming the process that has it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise StoreLocked(
            f"{path.parent} is in use by process {holder}. Stop that process, or give this node a store of its own."
        ) from error
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return handle
