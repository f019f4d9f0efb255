"""Open the ledger's file: one SQLite database of one swarm, in a format that this program knows.

Readers may open the file while the learner writes, and see it as it is at one moment.

Invariants:

- When a transaction ends, all that it wrote is on disk, or none of it (WAL, synchronous FULL).
- A file that is damaged or not ours is not changed: before it is opened for writing, all of it is read and its rows are
  summed (`row_sums`).
- An error of SQLite becomes a LedgerError with the next step. Other exceptions, which are bugs of ours, are raised as
  they are.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learner.ledger.sqlite.files import (
    OF_ROWS,
    SQLITE_ERRORS,
    Ailment,
    Doing,
    FileGone,
    Queries,
    SqliteFile,
    ailment_of,
    connect,
    execute_all,
    is_sound,
)
from learner.ledger.sqlite.migration import split_work
from learner.ledger.sqlite.row_sums import Summing, differing
from learner.ledger.sqlite.schema import LATER_TABLES, READABLE, SCHEMA, SCHEMA_VERSION, SUMMED, WITH_PLAIN_TABLES, WORK

BUSY_S = 10.0
"""Seconds to wait for another writer. There should be none, but a backup tool may hold the file for a moment."""


HEADER_BYTES = 100
"""Bytes of the header with which a SQLite file begins."""


class LedgerError(Exception):
    """The ledger cannot be used; its data are not changed. The message names the file and the next step."""


class DamagedValue(LedgerError):
    """A value in a ledger is none that a learner writes. The message names its table and column; `snapshot`, or another
    caller that knows the file, puts the file's name before that."""


@dataclass(frozen=True)
class Snapshot(Queries):
    """A ledger as it is at one moment."""

    db: sqlite3.Connection

    def query(self, sql: str, values: Sequence[Any] = (), *, of: str = "") -> list[Any]:
        return self.db.execute(sql, values).fetchall() if not of or self.has_table(of) else []


class LedgerFile(SqliteFile):
    """The ledger's file, open for writing. Several threads may call it; calls are serialised. Raises LedgerError."""

    def __init__(self, path: Path, *, swarm: bytes) -> None:
        self._swarm = swarm
        require_sound(path, swarm)
        super().__init__(path, busy_s=BUSY_S)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write everything inside to disk together when the block ends, or nothing. Raises LedgerError."""
        with super().transaction() as db:
            self._summing.forget()
            yield db
            self._summing.write()

    def vacuum(self) -> None:
        """Rewrite the file without its free pages. Raises LedgerError."""
        with self._lock, self._named(Doing.WRITE):
            self._whereabouts.require()
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _prepare(self) -> None:
        db, self._summing = self._db, Summing(self._db)
        if db.execute("SELECT 1 FROM sqlite_master").fetchone():  # checked before any change: it may not be ours
            _require_swarm(self.path, _meta(self.path, db), self._swarm)
        db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = OFF;")
        with self.transaction():
            if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
                execute_all(db, WORK)
                execute_all(db, SCHEMA)
                now = str(SCHEMA_VERSION).encode()
                db.execute("INSERT INTO meta VALUES ('schema', ?), ('swarm', ?)", (now, self._swarm))
            ((schema,),) = db.execute("SELECT value FROM meta WHERE key = 'schema'")
            if int(schema) in WITH_PLAIN_TABLES:
                split_work(db)
            for tables in LATER_TABLES:
                execute_all(db, tables)
            db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(SCHEMA_VERSION).encode(),))
            self._summing.begin(anew=int(schema) != SCHEMA_VERSION)
        db.execute("PRAGMA foreign_keys = ON")
        self._summing.watch()
        _require_swarm(self.path, _meta(self.path, db), self._swarm)

    def _failure(self, doing: Doing, ailment: Ailment, error: Exception) -> Exception:
        if doing is Doing.OPEN:
            return LedgerError(
                f"{self.path} cannot be opened ({error}). Check that its directory exists and is writable."
            )
        if ailment is Ailment.DAMAGED:
            return _unreadable(self.path, error)
        return LedgerError(
            f"{self.path}: {error}. Free the disk, or end the program that holds the file, then start again. All that "
            "the learner acknowledged is safe."
        )

    def _taken_away(self, gone: FileGone) -> Exception:
        if gone.rescued is None:
            return LedgerError(
                f"{gone} while the learner used it, and could not be rescued. Restore {self.path} from a copy."
            )
        return LedgerError(
            f"{gone} while the learner used it. All its contents are in {gone.rescued}. Find out what removed it, "
            f"move this file to {self.path} (with no -wal or -shm beside it), and start again. Nothing that was "
            "acknowledged is lost."
        )


def is_blank(path: Path) -> bool:
    """Return whether nothing was ever written there: there is no file, or its writer was killed while it made the
    file."""
    if not path.exists():
        return True
    if not path.is_file() or 0 < path.stat().st_size < HEADER_BYTES:  # SQLite would treat such a file as a new database
        return False
    try:
        with closing(connect(path, timeout_s=BUSY_S, read_only=True)) as db:
            return not db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except (*SQLITE_ERRORS, OSError):
        return False


@contextmanager
def snapshot(path: Path) -> Iterator[Snapshot]:
    """Yield the ledger as it is now, to read it while another process may write to it.

    Raises LedgerError, naming the file and the next step, when the file is missing, unreadable, or of another program.
    """
    if not path.exists():
        raise LedgerError(f"{path}: there is no ledger. Name the state directory of a learner that has been started.")
    if not path.is_file():
        raise LedgerError(f"{path} is no file. Move away what is there, and restore the ledger from a copy.")
    try:
        with closing(connect(path, timeout_s=BUSY_S, read_only=True)) as db:
            db.execute("BEGIN")
            _require_schema(path, _meta(path, db))  # the first query fails if the file is not SQLite's
            with _blaming(path, db):
                yield Snapshot(db)
    except OSError as error:
        if error.filename != str(path):
            raise
        raise LedgerError(f"{path} cannot be read ({error.strerror}). Check who owns it.") from error
    except SQLITE_ERRORS as error:
        raise _unreadable(path, error) from error
    except DamagedValue as error:
        raise LedgerError(f"{path}: {error}") from error


@contextmanager
def _blaming(path: Path, db: sqlite3.Connection) -> Iterator[None]:
    """Raise LedgerError for an exception from reading rows if the file is damaged; otherwise it is a bug, and is raised
    as it is."""
    try:
        yield
    except UnicodeDecodeError:
        raise
    except OF_ROWS as error:
        if found := what_ails(db):
            raise _damaged(path, found) from error
        raise


def _unreadable(path: Path, error: Exception) -> LedgerError:
    """Return the error that says why the file cannot be read, and what to do, by SQLite's name for the failure."""
    ailment = ailment_of(error)
    if ailment is Ailment.BUSY:
        return LedgerError(
            f"{path} is locked: another program has held it for more than {BUSY_S:g} s. End that program (a backup, a"
            " database browser), then run this again. Nothing was changed."
        )
    if ailment is Ailment.DAMAGED:
        return LedgerError(
            f"{path} is damaged, or no ledger ({error}). Nothing was changed. Restore it from a copy;"
            " `sqlite3 FILE .recover` prints what can still be read of it."
        )
    return LedgerError(
        f"{path} cannot be read as a ledger ({error}). Check that it is one, that you may read it and that its"
        " directory is writable (SQLite keeps a lock file there), or restore it from a copy."
    )


def _meta(path: Path, db: sqlite3.Connection) -> dict[str, bytes]:
    """Return what the file says of itself. Raises LedgerError when it is another program's, or empty."""
    if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise LedgerError(
            f"{path} is empty, or cut short. Restore it from a copy. If this learner has never run, remove it, and"
            " start again."
        )
    named = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta' AND type = 'table'").fetchone()
    meta = dict(db.execute("SELECT key, value FROM meta")) if named else {}
    if not isinstance(meta.get("schema"), bytes) or not isinstance(meta.get("swarm"), bytes):
        raise LedgerError(
            f"{path} is a database, but not a ledger. Move it away, or name the state directory of a learner."
        )
    return meta


def _require_swarm(path: Path, meta: Mapping[str, bytes], swarm: bytes) -> None:
    _require_schema(path, meta)
    if (theirs := meta["swarm"]) != swarm:
        raise LedgerError(f"{path} belongs to another swarm ({theirs.hex()[:8]}). Choose another state directory.")


def require_sound(path: Path, swarm: bytes) -> None:
    """Raise LedgerError unless the file is new, or ours and undamaged. All of it is read, by a reader, which changes
    nothing even when it closes the file. Writing into a damaged file may destroy what could have been saved. 1 GB takes
    5 s."""
    if is_blank(path):
        return
    with snapshot(path) as moment:
        _require_swarm(path, _meta(path, moment.db), swarm)
        if found := what_ails(moment.db):
            raise _damaged(path, found)


def what_ails(db: sqlite3.Connection) -> str:
    """Read the whole file and return what is wrong with it, "" if nothing is found. Raises SQLITE_ERRORS."""
    (schema,) = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() or (b"",)
    return is_sound(db) or (differing(db) if schema in [str(one).encode() for one in SUMMED] else "")


def _damaged(path: Path, found: str) -> LedgerError:
    return LedgerError(
        f"{path} is damaged ({found}). Nothing was changed. Restore it from a copy; `sqlite3 FILE .recover` prints"
        ' what can still be read of it. If you changed it on purpose, run `sqlite3 FILE "DROP TABLE sums"`, and the'
        " next start accepts it as it is."
    )


def _require_schema(path: Path, meta: Mapping[str, bytes]) -> None:
    """Raise LedgerError unless this program can read the ledger that has this `meta`."""
    schema = bytes(meta.get("schema", b"")).decode("ascii", "replace")
    if schema not in map(str, READABLE):
        raise LedgerError(
            f"{path} has ledger format {schema or 'unknown'}, but this program reads {SCHEMA_VERSION}. Use the version"
            " of volery that wrote it."
        )
