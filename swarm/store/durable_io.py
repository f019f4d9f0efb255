"""Do the disk operations of the store whose result must survive a kill, in a safe order.

Chunks are not synced one by one, because a lost one is fetched again. They are synced before the rename that marks a
version as complete.

Invariants:

- A file that `replace_file` wrote is there whole or not at all.
- The contents of a directory that `move_durably` moves are on the disk before it gets its new name.
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
"""Prefix of temporary names. If one is there when the store is opened, a killed process left it, and it is removed."""

MIN_WRITE_BACK_BYTES = 64 * 1024
"""Writes of at least this size, which are chunks, are sent to the disk at once. When all of 64 MiB was synced at the
end, the last of eight peers on one disk waited 0.3 s."""

_NO_PREALLOCATION = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


def scratch_path(directory: Path) -> Path:
    """Return an unused temporary path in `directory`."""
    return directory / f"{SCRATCH_PREFIX}{secrets.token_hex(8)}"


def remove_scratch(directory: Path) -> None:
    """Remove the temporary files that earlier processes left in `directory`."""
    for path in directory.glob(f"{SCRATCH_PREFIX}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` to `path`. A reader, now or after a crash, sees either the old contents or the new."""
    scratch = scratch_path(path.parent)
    try:
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(path)
    except BaseException:  # also on interruption, since nothing else removes the scratch file
        scratch.unlink(missing_ok=True)
        raise
    sync(path.parent)


def move_durably(source: Path, target: Path) -> None:
    """Rename a directory to an unused name. Its files and entries are on the disk before, the new name is after."""
    sync_directory(source)
    source.rename(target)
    sync(target.parent)


def sync_directory(directory: Path) -> None:
    """Wait until the files in `directory`, and their names, are on the disk."""
    for path in directory.iterdir():
        sync(path)
    sync(directory)


def sync(path: Path | str) -> None:
    """Wait until the contents of a file, or the entries of a directory, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def opened_to_write(path: Path | str) -> Iterator[int]:
    """Open an existing file for the `with` block. The handle stays valid if the file is renamed or removed."""
    handle = os.open(path, os.O_WRONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def write_at(path: Path | str, offset: int, *parts: bytes | memoryview) -> None:
    """Write all of `parts` in order into an existing file, from `offset` on.

    Raises OSError; then any part of them may have been written.
    """
    with opened_to_write(path) as handle:
        write_pieces(handle, [(offset, parts)])


def write_pieces(handle: int, pieces: Iterable[tuple[int, Sequence[bytes | memoryview]]]) -> None:
    """Write each piece, all of its parts in order, at its offset. Raises OSError as `write_at` does."""
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
    """Let the system write these bytes to the disk soon, so that the final sync of a version has little to do."""
    if size >= MIN_WRITE_BACK_BYTES and hasattr(os, "posix_fadvise"):
        # Linux begins to write the dirty pages. It would drop only clean pages from memory, and these are all dirty.
        os.posix_fadvise(handle, offset, size, os.POSIX_FADV_DONTNEED)


def read_once(handle: int, offset: int, size: int) -> bytes:
    """Return `size` bytes, or fewer if the file ends, and close `handle`."""
    try:
        data = os.pread(handle, size, offset)
        while len(data) < size and (more := os.pread(handle, size - len(data), offset + len(data))):
            data += more
        return data
    finally:
        os.close(handle)


def read_regular(path: Path) -> bytes:
    """Return all bytes of a file. Raise OSError, also if it is not a regular file: reading a pipe would block."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return file.read()


def preallocate(path: Path, size: int) -> None:
    """Give `path` exactly `size` bytes of disk and keep its contents. So a full disk shows before a byte is fetched."""
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
    """Give a file a second name, or copy it if the two are on different disks."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}:
            raise
        shutil.copyfile(source, target)


def lock(path: Path) -> int:
    """Take the lock at `path` and return its handle. Closing it, or the end of the process, releases the lock.

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
