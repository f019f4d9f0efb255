"""What can go wrong with a store on this machine, and the next step. A peer's bad bytes are PeerErrors instead."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}


class StoreError(Exception):
    """Base of all below."""


class StoreFull(StoreError):
    """No room: the disk, a quota of the system's, or the store's own quota."""


class StoreUnwritable(StoreError):
    """The store's directory cannot be made or written."""


class StoreLocked(StoreError):
    """Another process uses this store."""


class StoreForeign(StoreError):
    """The directory holds another swarm's versions, or versions of a protocol that this program cannot read."""


class VersionUnknown(StoreError):
    """The store holds nothing of this version: never begun, or evicted meanwhile."""


class VersionIncomplete(StoreError):
    """Chunks of this version are still missing."""


def is_full(error: OSError) -> bool:
    """Whether the disk, or what this user may take of it, is used up: removing something may help."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Turn what the system says about `path` into StoreFull or StoreUnwritable; other errors of the system pass."""
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
    """Turn what the system says of a file of the store at `root` into a StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{error.filename or root} cannot be used: {error.strerror}. Move {root} away: what it holds is fetched "
            "or published again."
        ) from error
