"""The file that is the ledger: one SQLite database of one swarm, in a format that this program knows.

What always holds: what a transaction wrote is on disk when it ends, or nothing of it is (WAL, synchronous FULL); a file
that is not ours, or damaged, is not changed: before it is opened to be written, it is read through and its rows are
summed (`row_sums`); what SQLite refuses becomes a LedgerError with the next step, and mistakes of ours travel. Readers
may open the file while the learner writes, and see one moment of it.
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
"""How long to wait for another writer, of which there should be none: a backup tool may hold the file for a moment."""


HEADER_BYTES = 100
"""With so many a file of SQLite's begins."""


class LedgerError(Exception):
    """The ledger cannot be used; its data are untouched. The message names the file and the next step."""


class DamagedValue(LedgerError):
    """A value in a ledger is none that a learner writes. The message names its table and column; `snapshot`, and who
    else knows the file, puts its name before that."""


@dataclass(frozen=True)
class Snapshot(Queries):
    """A ledger as it is at one moment."""

    db: sqlite3.Connection

    def query(self, sql: str, values: Sequence[Any] = (), *, of: str = "") -> list[Any]:
        return self.db.execute(sql, values).fetchall() if not of or self.has_table(of) else []


class LedgerFile(SqliteFile):
    """See the module's paragraph. Safe to call from several threads; calls are serialised. Raises LedgerError."""

    def __init__(self, path: Path, *, swarm: bytes) -> None:
        self._swarm = swarm
        require_sound(path, swarm)
        super().__init__(path, busy_s=BUSY_S)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything written inside is on disk together when the block ends, or not at all. Raises LedgerError."""
        with super().transaction() as db:
            self._summing.forget()
            yield db
            self._summing.write()

    def vacuum(self) -> None:
        """Write the file anew, without what is free in it. Raises LedgerError."""
        with self._lock, self._named(Doing.WRITE):
            self._whereabouts.require()
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _prepare(self) -> None:
        db, self._summing = self._db, Summing(self._db)
        if db.execute("SELECT 1 FROM sqlite_master").fetchone():  # asked before anything is changed: it may not be ours
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
            f"{self.path}: {error}. Free the disk, or end what holds the file, then start again: what was acknowledged "
            "is safe."
        )

    def _taken_away(self, gone: FileGone) -> Exception:
        if gone.rescued is None:
            return LedgerError(
                f"{gone} while the learner used it, and could not be written anew. Restore {self.path} from a copy."
            )
        return LedgerError(
            f"{gone} while the learner used it. All that it held is in {gone.rescued}. Find out who did that, move "
            f"this file to {self.path} (with no -wal or -shm beside it), and start again: nothing that was "
            "acknowledged is lost."
        )


def is_blank(path: Path) -> bool:
    """Whether nothing was ever written there: there is no file, or whoever made it was killed at that."""
    if not path.exists():
        return True
    if not path.is_file() or 0 < path.stat().st_size < HEADER_BYTES:  # SQLite would take those for a new database
        return False
    try:
        with closing(connect(path, timeout_s=BUSY_S, read_only=True)) as db:
            return not db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except (*SQLITE_ERRORS, OSError):
        return False


@contextmanager
def snapshot(path: Path) -> Iterator[Snapshot]:
    """The ledger as it is now, to read while somebody else may write to it.

    Raises LedgerError, naming the file and the next step, when it is missing, unreadable, or of another program.
    """
    if not path.exists():
        raise LedgerError(f"{path}: there is no ledger. Name the state directory of a learner that has been started.")
    if not path.is_file():
        raise LedgerError(f"{path} is no file. Move away what lies there, and restore the ledger from a copy.")
    try:
        with closing(connect(path, timeout_s=BUSY_S, read_only=True)) as db:
            db.execute("BEGIN")
            _require_schema(path, _meta(path, db))  # SQLite finds out that a file is none of its own at the first query
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
    """What reading rows raises is the file's fault if the file is found to be damaged, and else a mistake of ours."""
    try:
        yield
    except UnicodeDecodeError:
        raise
    except OF_ROWS as error:
        if found := what_ails(db):
            raise _damaged(path, found) from error
        raise


def _unreadable(path: Path, error: Exception) -> LedgerError:
    """Why the file cannot be read, and what to do, by what SQLite calls it."""
    ailment = ailment_of(error)
    if ailment is Ailment.BUSY:
        return LedgerError(
            f"{path} is locked: another program holds it for longer than {BUSY_S:g} s. End that one (a backup, a"
            " browser of databases), then do this again. Nothing was changed."
        )
    if ailment is Ailment.DAMAGED:
        return LedgerError(
            f"{path} is damaged, or no ledger ({error}). Nothing was changed. Restore it from a copy; what can still be"
            " read of it, `sqlite3 FILE .recover` prints."
        )
    return LedgerError(
        f"{path} cannot be read as a ledger ({error}). Check that it is one, that you may read it and that its"
        " directory is writable (SQLite keeps a lock file there), or restore it from a copy."
    )


def _meta(path: Path, db: sqlite3.Connection) -> dict[str, bytes]:
    """What the file says of itself. Raises LedgerError when it is another program's, or empty."""
    if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise LedgerError(
            f"{path} is empty, or cut short. Restore it from a copy; if this learner has never worked, remove it, and"
            " start."
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
    """Raise LedgerError unless the file is new, or ours and whole. Asked as a reader, who changes nothing even by
    closing, and of all of it: to write into a damaged file may spoil what could have been saved. A GB takes 5 s."""
    if is_blank(path):
        return
    with snapshot(path) as moment:
        _require_swarm(path, _meta(path, moment.db), swarm)
        if found := what_ails(moment.db):
            raise _damaged(path, found)


def what_ails(db: sqlite3.Connection) -> str:
    """What is wrong with the file, read through; "" if nothing is found. Raises SQLITE_ERRORS."""
    (schema,) = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() or (b"",)
    return is_sound(db) or (differing(db) if schema in [str(one).encode() for one in SUMMED] else "")


def _damaged(path: Path, found: str) -> LedgerError:
    return LedgerError(
        f"{path} is damaged ({found}). Nothing was changed. Restore it from a copy; what can still be read of it,"
        ' `sqlite3 FILE .recover` prints. If it was changed by hand, on purpose: `sqlite3 FILE "DROP TABLE sums"`,'
        " and the next start takes it as it is."
    )


def _require_schema(path: Path, meta: Mapping[str, bytes]) -> None:
    """Raise LedgerError unless this program understands the ledger that says `meta` of itself."""
    schema = bytes(meta.get("schema", b"")).decode("ascii", "replace")
    if schema not in map(str, READABLE):
        raise LedgerError(
            f"{path} has ledger format {schema or 'unknown'}, this program reads {SCHEMA_VERSION}. Use the volery that"
            " wrote it."
        )
