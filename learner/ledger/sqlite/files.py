"""SQLite files that lie on a disk: how one is opened, read and written, and what is wrong with one that cannot be read.

A flipped bit in a schema or a text makes Python's module raise UnicodeDecodeError instead of an error of SQLite's; a
path may be a pipe, which SQLite would wait for. So every file of ours is opened here, and every error is named here.

Invariants:
- Only a regular file is opened, or made where there is none and that is wanted.
- Each error that a damaged file can cause has an Ailment; what has none is a mistake of ours.
- Nothing is written to a file that somebody took away or replaced while it was open.
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


class Doing(Enum):
    """What was being done with a file when it failed."""

    OPEN = auto()
    PREPARE = auto()
    """To look whether the file is ours, and to make its tables."""
    READ = auto()
    WRITE = auto()


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
    """What a file, or one moment of one, may be asked."""

    @abstractmethod
    def query(self, sql: str, values: Sequence[Any] = (), *, of: str = "") -> list[Any]:
        """All rows that a query finds; none where the file lacks the table `of`, since an older program wrote it."""

    def rows(self, kind: type[R], sql: str, values: Sequence[Any] = (), *, of: str = "") -> list[R]:
        """All rows that a query finds, as values; one that begins with FROM asks for the columns named like fields.
        Raises ValueError for what no program of ours wrote."""
        if sql.startswith("FROM"):
            sql = f"SELECT {', '.join(kind.__struct_fields__)} {sql}"
        found: list[R] = msgspec.convert(self.query(sql, values, of=of), ready(GenericAlias(list, (kind,))))
        return found

    def has_table(self, name: str) -> bool:
        """Whether there is this table: files that no program has written to since it was invented lack it."""
        return bool(self.query("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)))


class SqliteFile(Queries):
    """A SQLite file that is open. Safe to call from several threads, which take turns.

    A subclass says in `_prepare` what a file must have, and in `_failure` and `_taken_away` what it raises.

    Args:
        busy_s: how long to wait for another program that holds the file.
        read_only: without this the file is made where there is none.
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
        """Let go of the file."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything written inside is written together when the block ends, or not at all."""
        with self._lock, self._named(Doing.WRITE):
            self._whereabouts.require()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk has rolled it back already
                    self._db.execute("ROLLBACK")
                raise

    def query(self, sql: str, values: Sequence[Any] = (), *, of: str = "") -> list[Any]:
        if of and not self.has_table(of):
            return []
        with self._lock, self._named(Doing.READ):
            return self._db.execute(sql, values).fetchall()

    @contextmanager
    def _named(self, doing: Doing) -> Iterator[None]:
        """What is neither the file's nor the disk's fault is a mistake of ours, and travels."""
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

    @abstractmethod
    def _prepare(self) -> None:
        """Find out whether the file is ours before anything is changed, then make what it lacks."""

    @abstractmethod
    def _failure(self, doing: Doing, ailment: Ailment, error: Exception) -> Exception | None:
        """What to raise, naming the file and the next step; None: the error itself."""

    @abstractmethod
    def _taken_away(self, gone: FileGone) -> Exception:
        """What to raise when the path does not lead to this file any more."""


def execute_all(db: sqlite3.Connection, statements: str) -> None:
    """Execute statements that a semicolon divides, within the transaction that is open."""
    for statement in filter(str.strip, statements.split(";")):
        db.execute(statement)


def rescued_files(path: Path) -> list[Path]:
    """Copies that were made of the file at `path` when it was taken away, the latest last."""
    return sorted(path.parent.glob(f"{path.name}.rescued-*[0-9]"))


def _place_of(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
