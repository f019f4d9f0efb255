"""SQLite files that lie on a disk: how one is opened, and what is wrong with one that cannot be read.

A flipped bit in a schema or a text makes Python's module raise UnicodeDecodeError instead of an error of SQLite's; a
path may be a pipe, which SQLite would wait for. So every file of ours is opened here, and every error is named here.

Invariants:
- Only a regular file is opened, or made where there is none and that is wanted.
- Each error that a damaged file can cause has an Ailment; what has none is a mistake of ours.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from enum import Enum
from pathlib import Path

from learner.artifacts.regular_file import open_file

SQLITE_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What reading or writing a file may raise; `ailment_of` says which of them are the file's."""

OF_ROWS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError)
"""What reading rows may raise that no program of ours wrote: an enum without that word, a number too large."""


class Ailment(Enum):
    """What is wrong with a file."""

    BUSY = "busy"
    """Another program holds it."""
    DAMAGED = "damaged"
    """It holds something else than was written."""
    PLACE = "place"
    """The disk, or a right."""


def connect(path: Path, *, timeout_s: float, read_only: bool = False, shared: bool = False) -> sqlite3.Connection:
    """Open the file; without `read_only` it is made where there is none. `shared`: for several threads, who take turns.

    Raises sqlite3.OperationalError, and OSError for what is no regular file.
    """
    try:
        open_file(path).close()
    except FileNotFoundError:
        if read_only or path.is_symlink():
            raise
    mode = "ro" if read_only else "rwc"
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=not shared,
        timeout=timeout_s,
    )


def ailment_of(error: Exception) -> Ailment | None:
    """What an error says of the file that was read, None where it says nothing of one."""
    if isinstance(error, UnicodeDecodeError):
        return Ailment.DAMAGED
    kind = str(getattr(error, "sqlite_errorname", ""))
    if kind.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Ailment.BUSY
    if kind.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT", "SQLITE_MISMATCH")):
        return Ailment.DAMAGED
    if type(error) is sqlite3.OperationalError:
        # No name: a text that is not UTF-8. SQLITE_ERROR: a table or a column that is not there.
        return Ailment.DAMAGED if kind in ("", "SQLITE_ERROR") else Ailment.PLACE
    return Ailment.DAMAGED if type(error) is sqlite3.DatabaseError else None


def is_sound(db: sqlite3.Connection) -> str:
    """ "" if SQLite finds nothing wrong with all of the file, indexes too; else what it finds first. Raises
    SQLITE_ERRORS."""
    ((found,),) = db.execute("PRAGMA integrity_check(1)")
    return "" if found == "ok" else " ".join(str(found).split())[:200]


class FileGone(Exception):
    """The path does not lead to the open file any more. `rescued`: where all that it held was written, if anywhere."""

    def __init__(self, what: str, rescued: Path | None) -> None:
        super().__init__(what)
        self.rescued = rescued


class Whereabouts:
    """Whether the path of an open database, and of the log beside it, still lead to the files that are open.

    Who deletes or replaces such a file under a running program takes nothing from it: SQLite goes on writing into a
    file without a name, and all of that is gone when the program ends. Asking costs two `stat`, 4 us.
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path, self._db = path, db
        self._known: dict[Path, tuple[int, int]] = {}
        self._gone: FileGone | None = None

    def require(self) -> None:
        """Raises FileGone; the first time after a copy was written, beside the path, which is left as it is."""
        if self._gone is None:
            self._gone = self._look()
        if self._gone is not None:
            raise self._gone

    def _look(self) -> FileGone | None:
        for path in (self._path, self._path.with_name(self._path.name + "-wal")):
            found = _place_of(path)
            if found is not None and path not in self._known:
                self._known[path] = found  # a log is made by the first transaction, and stays until the file is closed
            elif path in self._known and found != self._known[path]:
                return FileGone(f"{path} was {'removed' if found is None else 'replaced'}", self._rescue())
        return None

    def _rescue(self) -> Path | None:
        """A copy of the file without a name, through SQLite, which has it open: whole, the log included."""
        target = next(path for number in range(1, 1000) if not (path := _rescued(self._path, number)).exists())
        try:
            with closing(sqlite3.connect(target)) as copy:
                copy.execute("PRAGMA synchronous = FULL")
                self._db.backup(copy)
        except (sqlite3.Error, OSError):
            target.unlink(missing_ok=True)
            return None
        return target


def rescued_files(path: Path) -> list[Path]:
    """Copies that were made of the file at `path` when it was taken away, the latest last."""
    return sorted(path.parent.glob(f"{path.name}.rescued-*[0-9]"))


def _rescued(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.rescued-{number:03}")


def _place_of(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
