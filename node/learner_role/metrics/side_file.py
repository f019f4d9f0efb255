"""Write SQLite files beside the ledger, for data that a run can do without.

Invariants:

- Readers may open a file while the learner writes (WAL). A power cut may lose the last writes.
- A file with another format in `user_version` is not changed.
- A sink has its file open from `begin` to `close`, and may begin again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from learner.ledger.sqlite.files import Ailment, Doing, FileGone, SqliteFile

BUSY_S = 5.0
"""Seconds to wait for another process that has locked the file."""


class SideFile(SqliteFile):
    """One such file, created if it is missing. Raises sqlite3.Error, also for another format, and FileGone."""

    def __init__(self, path: Path, *, form: int, schema: str) -> None:
        self._form, self._schema = form, schema
        super().__init__(path, busy_s=BUSY_S)

    def _prepare(self) -> None:
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if found not in (0, self._form):
            raise sqlite3.DatabaseError(
                f"{self.path} has format {found}, but this program writes {self._form}: move it away"
            )
        self._db.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; {self._schema}")
        self._db.execute(f"PRAGMA user_version = {self._form}")

    def _failure(self, doing: Doing, ailment: Ailment, error: Exception) -> Exception | None:
        if isinstance(error, OSError):
            return sqlite3.OperationalError(f"{self.path} cannot be opened: {error.strerror}")
        if isinstance(error, UnicodeDecodeError):
            return sqlite3.DatabaseError(f"{self.path} is damaged: move it away")
        return None

    def _taken_away(self, gone: FileGone) -> Exception:
        return gone


@dataclass(kw_only=True)
class SideFileSink:
    """A sink that writes to one such file."""

    path: Path
    _file: SideFile | None = None
    form: ClassVar[int]
    schema: ClassVar[str]

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self) -> SideFile:
        """Open or create the file, unless it is open."""
        if self._file is None:
            self._file = SideFile(self.path, form=self.form, schema=self.schema)
        return self._file

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction. The sink must have begun."""
        if self._file is None:
            raise sqlite3.ProgrammingError("not begun")
        with self._file.transaction() as db:
            yield db
