"""Write metrics to `metrics.sqlite` in the learner's state directory, for queries.

It is a file of its own beside the ledger because the two promise different things. The ledger waits for the disk before
a receipt is sent, and is kept for ever. Metrics may lose the last rows in a power cut, or on a full disk, and old ones
are removed.

    SELECT step, value FROM metrics WHERE metric = 'entropy' ORDER BY step;

Invariants:

- Readers may open the file while the learner writes (WAL).
- A series has one value for a step: a step that is taken again replaces the values before.
- At most MAX_VALUES values are kept, the newest.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from typing import ClassVar

from node.learner_role.metrics.board import Row, Series
from node.learner_role.metrics.catalogue import METRICS
from node.learner_role.metrics.side_file import SideFileSink

FILE = "metrics.sqlite"

FORMAT = 1
"""Format of the file. It increases when an old program could misread a new file."""

MAX_VALUES = 5_000_000
"""Most values in the file: 150 MB, some 50,000 steps of 100 series. The ledger keeps its own rows of steps for ever."""

PRUNE_SHARE = 0.1
"""Fraction of the values that are removed at a time, the oldest, so that it happens seldom."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, metric TEXT NOT NULL, labels TEXT NOT NULL, UNIQUE (metric, labels)
) STRICT;
CREATE TABLE IF NOT EXISTS steps (
    step INTEGER PRIMARY KEY, incarnation INTEGER NOT NULL, at_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS figures (
    step INTEGER NOT NULL, series INTEGER NOT NULL REFERENCES series, value REAL NOT NULL, PRIMARY KEY (step, series)
) STRICT, WITHOUT ROWID;
CREATE VIEW IF NOT EXISTS metrics AS
    SELECT metric, labels, step, incarnation, at_ms, value
    FROM figures JOIN series ON series.id = figures.series JOIN steps USING (step);
"""


@dataclass(kw_only=True)
class SqliteSink(SideFileSink):
    """Writes metrics. `most` is MAX_VALUES, except in tests."""

    form: ClassVar = FORMAT
    schema: ClassVar = SCHEMA
    most: int = MAX_VALUES
    name: str = "sqlite"
    _ids: dict[Series, int] = field(default_factory=dict)
    _count: int = 0

    def begin(self, incarnation: int, base: int) -> None:
        """Open or create the file, and remove steps after `base`."""
        rows = self._open().query("SELECT id, metric, labels FROM series")
        self._ids = {Series(metric, tuple(json.loads(labels).values())): number for number, metric, labels in rows}
        with self._writing() as db:
            self._forget(db, "step > ?", base)

    def write(self, row: Row) -> None:
        """Store a row, which is soon on disk."""
        with self._writing() as db:
            # A row that completes an earlier one keeps the earlier time.
            db.execute("INSERT OR IGNORE INTO steps VALUES (?, ?, ?)", (row.step, row.incarnation, row.at_ms))
            db.executemany(
                "INSERT OR REPLACE INTO figures VALUES (?, ?, ?)",
                [(row.step, self._id(db, series), value) for series, value in row.values.items()],
            )
            self._count += len(row.values)
            if self._count > self.most:
                self._prune(db)

    def _id(self, db: sqlite3.Connection, series: Series) -> int:
        if series not in self._ids:
            labels = json.dumps(dict(zip(METRICS[series.metric].labels, series.labels, strict=True)))
            cursor = db.execute("INSERT INTO series (metric, labels) VALUES (?, ?)", (series.metric, labels))
            self._ids[series] = int(cursor.lastrowid or 0)
        return self._ids[series]

    def _prune(self, db: sqlite3.Connection) -> None:
        (last,) = db.execute(
            "SELECT step FROM figures ORDER BY step LIMIT 1 OFFSET ?", (int(self.most * PRUNE_SHARE),)
        ).fetchone()
        self._forget(db, "step <= ?", last)

    def _forget(self, db: sqlite3.Connection, steps: str, limit: int) -> None:
        db.execute(f"DELETE FROM figures WHERE {steps}", (limit,))
        db.execute(f"DELETE FROM steps WHERE {steps}", (limit,))
        (self._count,) = db.execute("SELECT count(*) FROM figures").fetchone()
