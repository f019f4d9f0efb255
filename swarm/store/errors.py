"""Define the errors of a store on this machine, whose messages name the next step.

Bad bytes of a peer raise PeerError instead.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}


class StoreError(Exception):
    """Base of the errors below."""


class StoreFull(StoreError):
    """There is no room on the disk, in the system's quota, or in the store's own quota."""


class StoreUnwritable(StoreError):
    """The store's directory cannot be created or written."""


class StoreLocked(StoreError):
    """Another process uses this store."""


class StoreForeign(StoreError):
    """The directory holds another swarm's versions, or versions of a protocol that this program cannot read."""


class VersionUnknown(StoreError):
    """The store holds nothing of this version: it was never begun, or was evicted meanwhile."""


class VersionIncomplete(StoreError):
    """Chunks of this version are still missing."""


def is_full(error: OSError) -> bool:
    """Return whether the disk, or the user's quota on it, is full, so that removing files may help."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Turn errors of the system about `path` into StoreFull or StoreUnwritable; let others pass."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFull(
                f"No room left below {path} ({error.strerror}). Free some space there, or move the store elsewhere."
            ) from error
        if error.errno in _UNWRITABLE:
            raise StoreUnwritable(
                f"Cannot write {error.filename or path} ({error.strerror}). Give this user the right to write to "
                f"{path}, or choose another directory for the store."
            ) from error
        raise


@contextmanager
def readable(root: Path) -> Iterator[None]:
    """Turn errors of the system about a file of the store at `root` into a StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{error.filename or root} cannot be used: {error.strerror}. Move {root} away: its versions are then "
            "fetched or published again."
        ) from error
