"""Turn a ledger of today into one of a format before 8, in which `leases` and `records` are tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from learner.ledger.sqlite.files import execute_all
from learner.ledger.sqlite.migration import REFERS, rebuild
from learner.ledger.sqlite.schema import LEASE

PLAIN = """
CREATE TABLE leases (
    lease BLOB PRIMARY KEY, peer TEXT NOT NULL, task TEXT NOT NULL, prompt INTEGER NOT NULL, rollouts INTEGER NOT NULL,
    issued_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL, envelope BLOB,
    status TEXT NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'delivered', 'expired', 'returned', 'lost')),
    closed_ms INTEGER, receipt BLOB, started_version TEXT
) STRICT;
CREATE INDEX leases_by_status ON leases (status);
CREATE INDEX leases_by_peer ON leases (peer);
CREATE INDEX leases_with_envelope ON leases (lease) WHERE envelope IS NOT NULL;
CREATE TABLE records (
    lease BLOB NOT NULL REFERENCES leases, record BLOB NOT NULL, idx INTEGER NOT NULL, peer TEXT NOT NULL,
    rule TEXT NOT NULL, reward REAL, tokens INTEGER NOT NULL, incarnation INTEGER NOT NULL, version INTEGER NOT NULL,
    lag INTEGER NOT NULL, received_ms INTEGER NOT NULL, generation_ms INTEGER NOT NULL,
    detail TEXT NOT NULL DEFAULT '', envelope BLOB, step INTEGER, trained_lag INTEGER,
    PRIMARY KEY (lease, record)
) STRICT;
CREATE UNIQUE INDEX records_once ON records (lease, idx) WHERE rule = 'admitted';
CREATE INDEX records_by_step ON records (step) WHERE step IS NOT NULL;
CREATE INDEX records_with_envelope ON records (step) WHERE envelope IS NOT NULL;
CREATE INDEX records_trained ON records (peer, step) WHERE step IS NOT NULL;
CREATE INDEX records_refused ON records (lease, rule, peer) WHERE rule <> 'admitted';
"""
"""The tables as formats 1 to 7 have them."""

LEASE_COLUMNS = (
    "rowid, lease, peer, task, prompt, rollouts, issued_ms, deadline_ms, envelope, status, closed_ms, receipt,"
    " started_version"
)
RECORD_COLUMNS = (
    "rowid, lease, record, idx, peer, rule, reward, tokens, incarnation, version, lag, received_ms, generation_ms,"
    " detail, envelope, step, trained_lag"
)
ROWS = ("lease_payloads", "receipts", "packed_receipts", "receipt_certificates", "record_payloads", "record_rows",
        "lease_rows", "peer_numbers")  # fmt: skip


def make_plain(path: Path, schema: int = 7) -> None:
    """Make the ledger, which no process has open, what a program of `schema` would have written."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA legacy_alter_table = ON")
        db.execute("BEGIN")
        leases = db.execute(f"SELECT {LEASE_COLUMNS} FROM leases ORDER BY rowid").fetchall()
        records = db.execute(f"SELECT {RECORD_COLUMNS} FROM records ORDER BY rowid").fetchall()
        for name in ("leases", "records"):
            db.execute(f"DROP VIEW {name}")
        for name in ROWS:
            db.execute(f"DROP TABLE {name}")
        execute_all(db, PLAIN)
        _insert(db, "leases", LEASE_COLUMNS, leases)
        _insert(db, "records", RECORD_COLUMNS, records)
        for name, sql in db.execute("SELECT name, sql FROM sqlite_master WHERE sql LIKE ?", (f"%{LEASE}%",)).fetchall():
            rebuild(db, name, sql.replace(LEASE, REFERS))
        db.execute("DROP TABLE IF EXISTS sums")
        db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(schema).encode(),))
        db.execute("COMMIT")


def _insert(db: sqlite3.Connection, table: str, columns: str, rows: list[tuple[object, ...]]) -> None:
    marks = ", ".join("?" * len(columns.split(",")))
    db.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)
