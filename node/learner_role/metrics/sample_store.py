"""Store samples in `samples.sqlite` in the learner's state directory. `volery samples` reads them.

The file is written as a sink. Readers may open it while the learner writes.

Invariants:

- If a step is taken again, its samples replace the ones before.
- The file has at most MAX_BYTES of groups. If there are more, the older half of the steps is thinned out evenly. So a
  long run keeps all new samples, some old ones, and those of its first step.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from learner.ledger.sqlite.files import SQLITE_ERRORS, Ailment, ailment_of, connect
from node.learner_role.metrics.sample_selection import KeptGroup, pack, unpack
from node.learner_role.metrics.side_file import BUSY_S, SideFileSink
from node.runtime.errors import RunError
from protocol.core.ids import PolicyVersion

FILE = "samples.sqlite"

FORMAT = 1
"""Format of the file. It increases when an old program could misread a new file."""

MAX_BYTES = 256 << 20
"""Most bytes of groups in the file. Two groups of 16 completions of 512 tokens take 30 KB, so all samples of 8000 steps
fit."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS groups (
    step INTEGER NOT NULL, place INTEGER NOT NULL, incarnation INTEGER NOT NULL, at_ms INTEGER NOT NULL,
    payload BLOB NOT NULL, PRIMARY KEY (step, place)
) STRICT;
"""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The groups that are kept of one training step."""

    incarnation: int
    step: int
    at_ms: int
    groups: Sequence[KeptGroup]

    @property
    def version(self) -> PolicyVersion:
        """Return the version that the step made."""
        return PolicyVersion(self.incarnation, self.step)


@dataclass(kw_only=True)
class SampleSink(SideFileSink):
    """Writes samples. `most` is MAX_BYTES, except in tests."""

    form: ClassVar = FORMAT
    schema: ClassVar = SCHEMA
    most: int = MAX_BYTES
    name: str = "samples"
    _bytes: int = 0

    def begin(self, incarnation: int, base: int) -> None:
        """Open or create the file, and remove steps after `base`."""
        self._open()
        with self._writing() as db:
            db.execute("DELETE FROM groups WHERE step > ?", (base,))
            self._measure(db)

    def write(self, row: Sample) -> None:
        """Store the groups of one step, which are soon on disk."""
        payloads = [pack(group) for group in row.groups]
        with self._writing() as db:
            db.execute("DELETE FROM groups WHERE step = ?", (row.step,))
            db.executemany(
                "INSERT INTO groups VALUES (?, ?, ?, ?, ?)",
                [(row.step, place, row.incarnation, row.at_ms, raw) for place, raw in enumerate(payloads)],
            )
            self._bytes += sum(map(len, payloads))
            while self._bytes > self.most and self._thin(db):
                self._measure(db)

    def _measure(self, db: sqlite3.Connection) -> None:
        (self._bytes,) = db.execute("SELECT coalesce(sum(length(payload)), 0) FROM groups").fetchone()

    def _thin(self, db: sqlite3.Connection) -> bool:
        """Remove the step of the older half whose neighbours are closest. Return False if only the newest is left."""
        steps = [step for (step,) in db.execute("SELECT DISTINCT step FROM groups ORDER BY step")]
        older = steps[: len(steps) // 2 + 1]
        gaps = [(after - before, step) for before, step, after in zip(older, older[1:], older[2:], strict=False)]
        gone = [min(gaps)[1]] if gaps else steps[:-1][:1]
        db.executemany("DELETE FROM groups WHERE step = ?", [(step,) for step in gone])
        return bool(gone)


def kept_versions(path: Path) -> list[PolicyVersion]:
    """Return the versions with samples, oldest first; empty if there is no file. Raises RunError."""
    rows = _query(path, "SELECT DISTINCT step, incarnation FROM groups ORDER BY step") if path.is_file() else []
    return [PolicyVersion(incarnation, step) for step, incarnation in rows]


def read_sample(path: Path, version: PolicyVersion) -> Sample:
    """Return the samples of the step that made `version`, one of `kept_versions`. Raises RunError."""
    rows = _query(path, "SELECT incarnation, at_ms, payload FROM groups WHERE step = ? ORDER BY place", version.version)
    if not rows:  # the learner writes while we read
        raise RunError(f"{path}: the samples of version {version} have just been removed. Show another version.")
    try:
        groups = [unpack(raw) for _, _, raw in rows]
    except ValueError as error:
        raise RunError(
            f"{path}: the samples of version {version} are damaged ({error}). Show another version."
        ) from None
    return Sample(incarnation=version.incarnation, step=version.version, at_ms=rows[0][1], groups=groups)


def _query(path: Path, sql: str, *values: int) -> list[tuple[Any, ...]]:
    try:
        with closing(connect(path, timeout_s=BUSY_S, read_only=True)) as db:
            (found,) = db.execute("PRAGMA user_version").fetchone()
            if found != FORMAT:
                raise RunError(
                    f"{path} has format {found}, but this program reads {FORMAT}. Use the volery that wrote it."
                )
            return db.execute(sql, values).fetchall()
    except (*SQLITE_ERRORS, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        if isinstance(error, UnicodeDecodeError):
            why = "it is damaged: a text in it is not UTF-8"
        if ailment_of(error) is Ailment.DAMAGED:
            raise RunError(
                f"{path} cannot be read ({why}). Restore it from a copy, or delete it while no learner runs: only "
                "samples are lost."
            ) from None
        raise RunError(
            f"{path} cannot be opened ({why}). SQLite keeps a lock file beside it, so its directory must be writable: "
            f"copy {path.parent} to a writable disk, and show the copy."
        ) from None
