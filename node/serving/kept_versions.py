"""Keep the files of a version while it is served, even if its store evicts it.

After a crash the engine is restarted and loads its version again. A running store may have evicted it by then. So the
files are linked (link(2)) into a directory of this process beside the store, which takes no space until the store
removes its own names. If links cannot be made, the store's own directory is served. A crash after an eviction then
leaves nothing to load until the next version.

Invariants:

- Nothing in the store is changed, and no file of a version is ever written to.
- The directory of a process that was killed is removed by the next process that serves from the same store.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from node.runtime.errors import RunError
from node.serving.sources import Candidate

LOCK = "lock"


class VersionGone(RunError):
    """The store evicted the version while it was being read."""


@dataclass(kw_only=True)
class KeptVersions:
    """The links to versions that are served. `root`: a directory of this process alone; None if nothing is linked."""

    root: Path | None

    def keep(self, candidate: Candidate) -> Path:
        """Return the directory to load `candidate` from. Raises VersionGone, or RunError if a file is incomplete."""
        if candidate.signed is None:
            return candidate.directory
        place = candidate.directory
        if self.root is not None:
            place = self.root / candidate.version.manifest.hex()
            if not self._link(candidate, place):
                place = candidate.directory
        _require_whole(candidate, place)
        return place

    def place_of(self, candidate: Candidate) -> Path:
        """Return the directory of its kept files, or its directory in the store."""
        kept = candidate.directory if self.root is None else self.root / candidate.version.manifest.hex()
        return kept if kept.is_dir() else candidate.directory

    def forget(self, candidate: Candidate) -> None:
        """Remove its kept files."""
        if self.root is not None:
            shutil.rmtree(self.root / candidate.version.manifest.hex(), ignore_errors=True)

    def _link(self, candidate: Candidate, place: Path) -> bool:
        """Link the version's files into `place`. Return False if this file system makes no links."""
        assert candidate.signed is not None
        shutil.rmtree(place, ignore_errors=True)
        try:
            place.mkdir(parents=True)
            for entry in candidate.signed.manifest.files:
                os.link(candidate.directory / entry.name, place / entry.name)
        except FileNotFoundError as error:
            shutil.rmtree(place, ignore_errors=True)
            raise VersionGone(_gone(candidate)) from error
        except OSError:
            shutil.rmtree(place, ignore_errors=True)
            return False
        return True


def _require_whole(candidate: Candidate, place: Path) -> None:
    assert candidate.signed is not None
    for entry in candidate.signed.manifest.files:
        try:
            size = (place / entry.name).stat().st_size
        except OSError as error:
            raise VersionGone(_gone(candidate)) from error
        if size != entry.size:
            raise RunError(
                f"{candidate.directory / entry.name} has {size} bytes instead of {entry.size}. Start its node or "
                "learner once, which repairs the store, or name another version."
            )


def _gone(candidate: Candidate) -> str:
    return f"Version {candidate.label} is incomplete in {candidate.directory}: the store removed it, or lost a file."


@contextmanager
def open_kept(root: Path | None) -> Iterator[KeptVersions]:
    """Keep versions in a directory of this process below `root`, which is removed at the end."""
    if root is None:
        yield KeptVersions(root=None)
        return
    try:
        _sweep(root)
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        mine = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
        lock = os.open(mine / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # the state directory is not writable, so it is only read
        yield KeptVersions(root=None)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield KeptVersions(root=mine)
    finally:
        os.close(lock)
        shutil.rmtree(mine, ignore_errors=True)
        with suppress(OSError):  # other processes serve from there
            root.rmdir()


def _sweep(root: Path) -> None:
    """Remove the directories of processes that have ended."""
    for place in root.iterdir() if root.is_dir() else ():
        try:
            lock = os.open(place / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(place, ignore_errors=True)
        except OSError:
            continue  # its process is alive
        finally:
            os.close(lock)
