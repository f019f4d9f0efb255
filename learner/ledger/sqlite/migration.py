"""Convert a ledger whose leases and records are plain tables into this program's format.

This runs within one transaction of the caller, so that a kill or a full disk leaves the old ledger as it was. Foreign
keys must be off: tables that refer to leases are made again, to refer to the new table.

Invariants:

- Every lease and every record keeps its rowid as its number, and reads as before.
"""

from __future__ import annotations

import sqlite3

from learner.ledger.sqlite.files import execute_all
from learner.ledger.sqlite.schema import LEASE, WORK

MOVED = """
INSERT INTO peer_numbers (peer) SELECT peer FROM old_leases UNION SELECT peer FROM old_records;
INSERT INTO lease_rows SELECT l.rowid, l.lease, p.no, l.task, l.prompt, l.rollouts, l.issued_ms, l.deadline_ms,
    l.status, l.closed_ms, l.started_version FROM old_leases l JOIN peer_numbers p USING (peer) ORDER BY l.rowid;
INSERT INTO lease_payloads SELECT rowid, envelope FROM old_leases WHERE envelope IS NOT NULL;
INSERT INTO receipts SELECT rowid, receipt FROM old_leases WHERE receipt IS NOT NULL;
INSERT INTO record_rows SELECT r.rowid, l.rowid, r.record, r.idx, p.no, r.rule, r.reward, r.tokens, r.incarnation,
    r.version, r.lag, r.received_ms, r.generation_ms, r.detail, r.step, r.trained_lag
    FROM old_records r JOIN old_leases l USING (lease) JOIN peer_numbers p ON p.peer = r.peer ORDER BY r.rowid;
INSERT INTO record_payloads SELECT rowid, envelope FROM old_records WHERE envelope IS NOT NULL;
DROP TABLE old_records;
DROP TABLE old_leases;
"""

REFERS = "REFERENCES leases"


def split_work(db: sqlite3.Connection) -> None:
    """Move leases and records into the tables of WORK. Raises sqlite3.DatabaseError."""
    db.execute("PRAGMA legacy_alter_table = ON")  # references to a renamed table keep its old name
    referring = db.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND sql LIKE ? AND name <> 'records'",
        (f"%{REFERS}%",),
    ).fetchall()
    for name in ("leases", "records"):
        _rename(db, name)
    execute_all(db, WORK)
    execute_all(db, MOVED)
    for name, sql in referring:
        rebuild(db, name, sql.replace(REFERS, LEASE))
    db.execute("PRAGMA legacy_alter_table = OFF")


def rebuild(db: sqlite3.Connection, name: str, sql: str) -> None:
    """Make a table again by another statement, with its rows and indexes. Needs `legacy_alter_table`."""
    indexes = _rename(db, name)
    db.execute(sql)
    db.execute(f'INSERT INTO "{name}" SELECT * FROM "old_{name}"')
    db.execute(f'DROP TABLE "old_{name}"')
    for index in indexes:
        db.execute(index)


def _rename(db: sqlite3.Connection, name: str) -> list[str]:
    """Rename a table to its old_ name; delete its indexes and return the statements that made them."""
    found = db.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL", (name,)
    ).fetchall()
    for index, _ in found:
        db.execute(f'DROP INDEX "{index}"')
    db.execute(f'ALTER TABLE "{name}" RENAME TO "old_{name}"')
    return [sql for _, sql in found]
