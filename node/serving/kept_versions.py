"""Keep the files of a version for as long as it is served, whatever its store evicts.

The engine is started again after a crash, and loads its version again. A store at work may have evicted it by then. So
the files are linked (link(2)) into a directory of this process beside the store, which takes no space until the store
removes its own names. Where links cannot be made, the store's own directory is served; a crash after an eviction then
leaves nothing to load until the next version.

Invariants:
- nothing in the store is changed, and no file of a version is ever written to;
- what a process that was killed left behind is removed by the next one that serves from there.
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
    """The store has evicted the version while it was looked at."""


@dataclass(kw_only=True)
class KeptVersions:
    """See the module's paragraph. `root` is a directory of this process alone; None: nothing is linked."""

    root: Path | None

    def keep(self, candidate: Candidate) -> Path:
        """Return the directory to load `candidate` from. Raises VersionGone, RunError where a file is not whole."""
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
        """Where what is kept of it lies, or where the store has it."""
        kept = candidate.directory if self.root is None else self.root / candidate.version.manifest.hex()
        return kept if kept.is_dir() else candidate.directory

    def forget(self, candidate: Candidate) -> None:
        """Give back what was kept of it."""
        if self.root is not None:
            shutil.rmtree(self.root / candidate.version.manifest.hex(), ignore_errors=True)

    def _link(self, candidate: Candidate, place: Path) -> bool:
        """False where this file system makes no links."""
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
                "learner once, which mends the store, or name another version."
            )


def _gone(candidate: Candidate) -> str:
    return f"Version {candidate.label} is not whole in {candidate.directory}: the store has removed it, or lost a file."


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
    except OSError:  # a state directory that cannot be written to: it is only read, then
        yield KeptVersions(root=None)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield KeptVersions(root=mine)
    finally:
        os.close(lock)
        shutil.rmtree(mine, ignore_errors=True)
        with suppress(OSError):  # others serve from there
            root.rmdir()


def _sweep(root: Path) -> None:
    """Remove the directories of processes that are no more."""
    for place in root.iterdir() if root.is_dir() else ():
        try:
            lock = os.open(place / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(place, ignore_errors=True)
        except OSError:
            continue  # it is alive
        finally:
            os.close(lock)
