"""Open, read and write SQLite files on a disk, and say what is wrong with a file that cannot be read.

A flipped bit in a schema or a text makes Python's module raise UnicodeDecodeError instead of an error of SQLite. A path
may be a pipe, on which SQLite would wait. So each of our files is opened here, and each error is classified here.

Invariants:

- Only a regular file is opened, or made where there is none and the caller wants one.
- Each error that a damaged file can cause has an Ailment; an error without one is a bug of ours.
- Nothing is written to a file that was removed or replaced while it was open.
"""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from enum import Enum, auto
from pathlib import Path
from threading import RLock
from types import GenericAlias
from typing import Any, Self, TypeVar

import msgspec

from learner.artifacts.regular_file import open_file
from protocol.core.codec import ready

SQLITE_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Exceptions from reading or writing a file; `ailment_of` says which of them are due to the file."""

OF_ROWS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError)
"""Exceptions from reading rows that no program of ours wrote: an enum without that value, a number that is too
large."""


class Ailment(Enum):
    """The kind of fault that a file has."""

    BUSY = "busy"
    """Another program holds it."""
    DAMAGED = "damaged"
    """It does not hold what was written."""
    PLACE = "place"
    """The disk or the permissions fail."""


def connect(path: Path, *, timeout_s: float, read_only: bool = False, shared: bool = False) -> sqlite3.Connection:
    """Open the file. Without `read_only`, it is made if there is none. `shared`: for several threads, which take turns.

    Raises sqlite3.OperationalError, and OSError if it is no regular file.
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
    """Return what an error says of the file; None if it says nothing of it."""
    if isinstance(error, UnicodeDecodeError):
        return Ailment.DAMAGED
    kind = str(getattr(error, "sqlite_errorname", ""))
    if kind.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Ailment.BUSY
    if kind.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT", "SQLITE_MISMATCH")):
        return Ailment.DAMAGED
    if type(error) is sqlite3.OperationalError:
        # No error name: a text that is not UTF-8. SQLITE_ERROR: a table or a column is missing.
        return Ailment.DAMAGED if kind in ("", "SQLITE_ERROR") else Ailment.PLACE
    return Ailment.DAMAGED if type(error) is sqlite3.DatabaseError else None


def is_sound(db: sqlite3.Connection) -> str:
    """Return "" if SQLite finds nothing wrong with the whole file, including indexes; else the first thing that it
    finds. Raises SQLITE_ERRORS."""
    ((found,),) = db.execute("PRAGMA integrity_check(1)")
    return "" if found == "ok" else " ".join(str(found).split())[:200]


class Doing(Enum):
    """The operation on a file that failed."""

    OPEN = auto()
    PREPARE = auto()
    """To check whether the file is ours, and to make its tables."""
    READ = auto()
    WRITE = auto()


class FileGone(Exception):
    """The path no longer leads to the open file. `rescued`: where all its contents were written, if that succeeded."""

    def __init__(self, what: str, rescued: Path | None) -> None:
        super().__init__(what)
        self.rescued = rescued


class Whereabouts:
    """Checks whether the path of an open database, and of the log beside it, still lead to the files that are open.

    If such a file is deleted or replaced under a running program, SQLite keeps writing into a file without a name, and
    all of that is lost when the program ends. The check costs two `stat`, 4 us.
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path, self._db = path, db
        self._known: dict[Path, tuple[int, int]] = {}
        self._gone: FileGone | None = None

    def require(self) -> None:
        """Raise FileGone if the file is gone. The first time, write a copy beside the path before that; the path itself
        is left as it is."""
        if self._gone is None:
            self._gone = self._look()
        if self._gone is not None:
            raise self._gone

    def _look(self) -> FileGone | None:
        for path in (self._path, self._path.with_name(self._path.name + "-wal")):
            found = _place_of(path)
            if found is not None and path not in self._known:
                self._known[path] = found  # the first transaction makes the log, which stays until the file is closed
            elif path in self._known and found != self._known[path]:
                return FileGone(f"{path} was {'removed' if found is None else 'replaced'}", self._rescue())
        return None

    def _rescue(self) -> Path | None:
        """Copy the nameless file through SQLite, which has it open: all of it, with the log."""
        names = (f"{self._path.name}.rescued-{number:03}" for number in range(1, 1000))
        target = next(path for name in names if not (path := self._path.with_name(name)).exists())
        try:
            with closing(sqlite3.connect(target)) as copy:
                copy.execute("PRAGMA synchronous = FULL")
                self._db.backup(copy)
        except (sqlite3.Error, OSError):
            target.unlink(missing_ok=True)
            return None
        return target


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A row of a query: the fields of a subclass, in their order, are its columns."""


R = TypeVar("R", bound=Row)


class Queries(ABC):
    """The queries that a file, or a snapshot of one, answers."""

    @abstractmethod
    def query(self, sql: str, values: Sequence[Any] = (), *, of: str = "") -> list[Any]:
        """Return all rows that a query finds; none if the file lacks the table `of`, since an older program wrote
        it."""

    def rows(self, kind: type[R], sql: str, values: Sequence[Any] = (), *, of: str = "") -> list[R]:
        """Return all rows that a query finds, as values. A query that begins with FROM selects the columns named like
        the fields. Raises ValueError for rows that no program of ours wrote."""
        if sql.startswith("FROM"):
            sql = f"SELECT {', '.join(kind.__struct_fields__)} {sql}"
        found: list[R] = msgspec.convert(self.query(sql, values, of=of), ready(GenericAlias(list, (kind,))))
        return found

    def has_table(self, name: str) -> bool:
        """Return whether this table exists. A file that only older programs have written to lacks the newer tables."""
        return bool(self.query("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)))


class SqliteFile(Queries):
    """A SQLite file that is open. Several threads may call it, and take turns.

    A subclass says in `_prepare` what a file must have, and in `_failure` and `_taken_away` what is raised.

    Args:
        busy_s: seconds to wait for another program that holds the file.
        read_only: without this, the file is made if there is none.
    """

    def __init__(self, path: Path, *, busy_s: float, read_only: bool = False) -> None:
        self.path, self._read_only = path, read_only
        self._lock = RLock()
        with self._named(Doing.OPEN):
            self._db = connect(path, timeout_s=busy_s, read_only=read_only, shared=True)
        self._whereabouts = Whereabouts(path, self._db)
        try:
            with self._named(Doing.PREPARE):
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write everything inside together when the block ends, or nothing."""
        with self._lock, self._named(Doing.WRITE):
            self._whereabouts.require()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk has already rolled it back
                    self._db.execute("ROLLBACK")
                raise

    def query(self, sql: str, values: Sequence[Any] = (), *, of: str = "") -> list[Any]:
        if of and not self.has_table(of):
            return []
        with self._lock, self._named(Doing.READ):
            return self._db.execute(sql, values).fetchall()

    @contextmanager
    def _named(self, doing: Doing) -> Iterator[None]:
        """Turn errors of the file or the disk into those of the subclass. Other errors are bugs, and are raised as they
        are."""
        try:
            yield
        except FileGone as gone:
            raise self._taken_away(gone) from None
        except (*SQLITE_ERRORS, OSError) as error:
            ailment = ailment_of(error)
            if isinstance(error, OSError) and error.filename == str(self.path):
                ailment = Ailment.PLACE
            if ailment is None or (failure := self._failure(doing, ailment, error)) is None:
                raise
            raise failure from error

    def rows(self, kind: type[R], sql: str, values: Sequence[Any] = (), *, of: str = "") -> list[R]:
        """Return the same as `Queries.rows`. Raises the error for a damaged file for rows that no program of ours
        wrote."""
        try:
            return super().rows(kind, sql, values, of=of)
        except ValueError as error:
            if (failure := self._failure(Doing.READ, Ailment.DAMAGED, error)) is None:
                raise
            raise failure from error

    @abstractmethod
    def _prepare(self) -> None:
        """Check whether the file is ours before any change, then make what it lacks."""

    @abstractmethod
    def _failure(self, doing: Doing, ailment: Ailment, error: Exception) -> Exception | None:
        """Return what to raise, naming the file and the next step; None raises the error itself."""

    @abstractmethod
    def _taken_away(self, gone: FileGone) -> Exception:
        """Return what to raise when the path no longer leads to this file."""


def execute_all(db: sqlite3.Connection, statements: str) -> None:
    """Execute statements separated by semicolons, within the open transaction."""
    for statement in filter(str.strip, statements.split(";")):
        db.execute(statement)


def rescued_files(path: Path) -> list[Path]:
    """Return the copies that were made of the file at `path` when it was removed or replaced, the latest last."""
    return sorted(path.parent.glob(f"{path.name}.rescued-*[0-9]"))


def _place_of(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
