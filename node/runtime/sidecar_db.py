"""SQLite files beside the ledger: what a run can do without, for whoever wants to ask.

What always holds: readers may open one while the learner writes (WAL); a power cut may take what was written last; a
file of another format, which `user_version` says, is not changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from learner.ledger.sqlite.files import connect

BUSY_S = 5.0
"""How long to wait for another process that holds the file."""


def open_side_file(path: Path, *, form: int, schema: str) -> sqlite3.Connection:
    """Open the file, or make it, to write to it from any thread. Raises sqlite3.Error, also for another format."""
    try:
        db = connect(path, timeout_s=BUSY_S, shared=True)
    except OSError as error:
        raise sqlite3.OperationalError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        (found,) = db.execute("PRAGMA user_version").fetchone()
        if found not in (0, form):
            raise sqlite3.DatabaseError(f"{path} has format {found}, this program writes {form}: move it away")
        db.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; {schema}")
        db.execute(f"PRAGMA user_version = {form}")
    except UnicodeDecodeError as error:
        db.close()
        raise sqlite3.DatabaseError(f"{path} is damaged: move it away") from error
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as it is, to be read while somebody else may write to it. Raises sqlite3.Error."""
    try:
        with closing(connect(path, timeout_s=BUSY_S, read_only=True)) as db:
            yield db
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError("it is damaged: a text in it is no UTF-8") from error
    except OSError as error:
        if error.filename != str(path):
            raise
        raise sqlite3.OperationalError(error.strerror) from error
