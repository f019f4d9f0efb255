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
from pathlib import Path
from threading import RLock
from typing import Any, Self

from learner.ledger.sqlite.files import (
    OF_ROWS,
    SQLITE_ERRORS,
    Ailment,
    FileGone,
    Whereabouts,
    ailment_of,
    connect,
    is_sound,
)
from learner.ledger.sqlite.row_sums import Summing, differing
from learner.ledger.sqlite.schema import (
    CONTINUATIONS,
    ENERGY,
    ORPHANS,
    PLANS,
    READABLE,
    RECALLS,
    RELAYS,
    SCHEMA,
    SCHEMA_VERSION,
    SCORES,
    TALLIES,
    TROUBLES,
    TRUST,
)

BUSY_S = 10.0
"""How long to wait for another writer, of which there should be none: a backup tool may hold the file for a moment."""


HEADER_BYTES = 100
"""With so many a file of SQLite's begins."""


class LedgerError(Exception):
    """The ledger cannot be used; its data are untouched. The message names the file and the next step."""


class DamagedValue(LedgerError):
    """A value in a ledger is none that a learner writes. The message names its table and column; `snapshot`, and who
    else knows the file, puts its name before that."""


class LedgerFile:
    """See the module's paragraph. Safe to call from several threads; calls are serialised. Raises LedgerError."""

    def __init__(self, path: Path, *, swarm: bytes) -> None:
        self.path = path
        self._lock = RLock()
        require_sound(path, swarm)
        self._db = _open(path)
        self._whereabouts = Whereabouts(path, self._db)
        self._summing = Summing(self._db)
        try:
            self._prepare(swarm)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything written inside is on disk together when the block ends, or not at all. Raises LedgerError."""
        with self._lock, self._translated():
            self._whereabouts.require()
            self._db.execute("BEGIN IMMEDIATE")
            self._summing.forget()
            try:
                yield self._db
                self._summing.write()
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk has rolled it back already
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Other errors of SQLite's (its subclasses of DatabaseError) are mistakes of ours, and travel."""
        try:
            yield
        except FileGone as gone:
            raise LedgerError(_taken_away(self.path, gone)) from None
        except SQLITE_ERRORS as error:
            match ailment_of(error):
                case None:
                    raise
                case Ailment.DAMAGED:
                    raise _unreadable(self.path, error) from error
                case _:
                    raise LedgerError(
                        f"{self.path}: {error}. Free the disk, or end what holds the file, then start again: what was "
                        "acknowledged is safe."
                    ) from error

    def _query(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, self._translated():
            return self._db.execute(sql, values).fetchall()

    def _prepare(self, swarm: bytes) -> None:
        if self._query("SELECT 1 FROM sqlite_master"):  # asked before anything is changed: it may not be ours
            self._require_ours(swarm)
        with self._translated():
            self._db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;")
        with self.transaction() as db:
            if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
                _create(db, swarm)
            ((schema,),) = db.execute("SELECT value FROM meta WHERE key = 'schema'")
            was = int(schema)
            _execute(db, RELAYS)
            _execute(db, PLANS)
            _execute(db, RECALLS)
            _execute(db, CONTINUATIONS)
            _execute(db, SCORES)
            _execute(db, ORPHANS)
            _execute(db, TALLIES)
            _execute(db, TRUST)
            _execute(db, ENERGY)
            _execute(db, TROUBLES)
            db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(SCHEMA_VERSION).encode(),))
            self._summing.begin(anew=was != SCHEMA_VERSION)
        with self._translated():
            self._summing.watch()
        self._require_ours(swarm)

    def _require_ours(self, swarm: bytes) -> None:
        with self._lock, self._translated():
            _require_swarm(self.path, _meta(self.path, self._db), swarm)


def _taken_away(path: Path, gone: FileGone) -> str:
    if gone.rescued is None:
        return f"{gone} while the learner used it, and could not be written anew. Restore {path} from a copy."
    return (
        f"{gone} while the learner used it. All that it held is in {gone.rescued}. Find out who did that, move this "
        f"file to {path} (with no -wal or -shm beside it), and start again: nothing that was acknowledged is lost."
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
def snapshot(path: Path) -> Iterator[sqlite3.Connection]:
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
                yield db
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


def has_table(db: sqlite3.Connection, name: str) -> bool:
    """Whether the ledger has this table: one that an older program wrote lacks some, and tells less."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None


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
    with snapshot(path) as db:
        _require_swarm(path, _meta(path, db), swarm)
        if found := what_ails(db):
            raise _damaged(path, found)


def what_ails(db: sqlite3.Connection) -> str:
    """What is wrong with the file, read through; "" if nothing is found. Raises SQLITE_ERRORS."""
    (schema,) = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() or (b"",)
    return is_sound(db) or ("" if schema != str(SCHEMA_VERSION).encode() else differing(db))


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


def _create(db: sqlite3.Connection, swarm: bytes) -> None:
    _execute(db, SCHEMA)
    db.execute("INSERT INTO meta VALUES ('schema', ?), ('swarm', ?)", (str(SCHEMA_VERSION).encode(), swarm))


def _execute(db: sqlite3.Connection, statements: str) -> None:
    for statement in filter(str.strip, statements.split(";")):
        db.execute(statement)


def _open(path: Path) -> sqlite3.Connection:
    try:
        return connect(path, timeout_s=BUSY_S, shared=True)
    except (sqlite3.OperationalError, OSError) as error:
        raise LedgerError(
            f"{path} cannot be opened ({error}). Check that its directory exists and is writable."
        ) from error
