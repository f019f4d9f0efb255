"""Write leases, records and receipts into their tables, in which peers and leases are numbers.

Invariants:

- Each function is called within a transaction of the ledger.
- Rows read back through the views `leases` and `records` as they were given.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from learner.ledger.rows import LeaseRow, RecordRow, TeacherLeaseRow
from protocol.core.ids import LeaseId

HAS_RECEIPT = (
    "(EXISTS (SELECT 1 FROM receipts r WHERE r.no = lease_rows.no)"
    " OR EXISTS (SELECT 1 FROM packed_receipts k WHERE k.no = lease_rows.no))"
)
"""SQL that is true for a row of `lease_rows` that has a receipt."""

NUMBER = "(SELECT no FROM lease_rows WHERE lease = ?)"

PEER = "(SELECT no FROM peer_numbers WHERE peer = ?)"


def add_leases(db: sqlite3.Connection, rows: Sequence[LeaseRow | TeacherLeaseRow]) -> None:
    """Write leases that are open."""
    _number_peers(db, {row.peer for row in rows})
    db.executemany(
        "INSERT INTO lease_rows (lease, peer, task, prompt, rollouts, issued_ms, deadline_ms)"
        f" VALUES (?, {PEER}, ?, ?, ?, ?, ?)",
        [
            (
                row.lease, row.peer, row.task, row.prompt,
                row.completions if isinstance(row, TeacherLeaseRow) else row.rollouts, row.issued_ms, row.deadline_ms,
            )
            for row in rows
        ],
    )  # fmt: skip
    db.executemany(f"INSERT INTO lease_payloads VALUES ({NUMBER}, ?)", [(row.lease, row.envelope) for row in rows])


def add_records(db: sqlite3.Connection, rows: Sequence[RecordRow]) -> None:
    """Write records. The same bytes twice under one lease are one record."""
    _number_peers(db, {row.peer for row in rows})
    for r in rows:
        ((lease,),) = db.execute("SELECT no FROM lease_rows WHERE lease = ?", (r.lease,))
        if db.execute("SELECT 1 FROM record_rows WHERE lease = ? AND record = ?", (lease, r.record)).fetchone():
            continue
        number = db.execute(
            "INSERT INTO record_rows (lease, record, idx, peer, rule, reward, tokens, incarnation, version, lag,"
            f" received_ms, generation_ms, detail) VALUES (?, ?, ?, {PEER}, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                lease, r.record, r.index, r.peer, r.rule.value, r.reward, r.tokens, r.version.incarnation,
                r.version.version, r.lag, r.received_ms, r.generation_ms, r.detail,
            ),
        ).lastrowid  # fmt: skip
        if r.envelope is not None:
            db.execute("INSERT INTO record_payloads VALUES (?, ?)", (number, r.envelope))


def put_receipt(db: sqlite3.Connection, lease: LeaseId, receipt: bytes) -> None:
    """Write the receipt of a lease, in place of the one that it has, if any. Write nothing if there is no such
    lease."""
    db.execute(f"DELETE FROM packed_receipts WHERE no = {NUMBER}", (lease,))
    db.execute("INSERT OR REPLACE INTO receipts SELECT no, ? FROM lease_rows WHERE lease = ?", (receipt, lease))


def put_lease_payload(db: sqlite3.Connection, lease: LeaseId, envelope: bytes) -> None:
    """Keep a lease as it was signed, if the ledger has it."""
    db.execute("INSERT OR REPLACE INTO lease_payloads SELECT no, ? FROM lease_rows WHERE lease = ?", (envelope, lease))


def _number_peers(db: sqlite3.Connection, peers: Iterable[str]) -> None:
    db.executemany(
        "INSERT INTO peer_numbers (peer) VALUES (?) ON CONFLICT DO NOTHING", [(peer,) for peer in sorted(peers)]
    )
