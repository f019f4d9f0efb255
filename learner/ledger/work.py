"""Write leases, the verdicts on their records, and receipts.

Invariants:

- The verdicts that a receipt states are on disk before the receipt exists.
- A record is counted once, because each index of a lease is admitted once.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from learner.ledger.queries.work import WorkQueries
from learner.ledger.rows import LeaseRow, RecordRow, TeacherLeaseRow
from learner.ledger.sqlite.database import LedgerFile
from learner.ledger.work_tables import HAS_RECEIPT, PEER, add_leases, add_records, put_receipt
from protocol.core.errors import LocalProtocolError
from protocol.core.ids import LeaseId, PeerId, PolicyVersion


@dataclass(frozen=True)
class WorkLedger(WorkQueries):
    """The part of the ledger that writes leases, verdicts and receipts. Raises LedgerError."""

    db: LedgerFile

    def leases_issued(self, rows: Sequence[LeaseRow]) -> None:
        """Write leases before they are granted."""
        with self.db.transaction() as db:
            add_leases(db, rows)
            db.executemany(
                "INSERT INTO continuations VALUES (?, ?, ?, ?)",
                [(r.lease, r.place.root, r.place.turn, json.dumps(r.place.slots)) for r in rows if r.place is not None],
            )

    def scoring_issued(self, rows: Sequence[TeacherLeaseRow]) -> None:
        """Write the leases of teachers before they are granted."""
        with self.db.transaction() as db:
            add_leases(db, rows)
            db.executemany(
                "INSERT INTO teacher_leases (lease, root, tokens) VALUES (?, ?, ?)",
                [(r.lease, r.root, r.tokens) for r in rows],
            )

    def scores_judged(self, lease: LeaseId, receipt: bytes, engine_s: float | None, now_ms: int) -> None:
        """Write the receipt for a teacher's delivery; it is on disk when this returns. `engine_s` is None if the
        delivery was rejected. Raises LocalProtocolError when the lease already has a receipt: a delivery is judged
        once."""
        with self.db.transaction() as db:
            _judge(db, lease, "delivered", receipt, now_ms)
            db.execute("UPDATE teacher_leases SET engine_s = ? WHERE lease = ?", (engine_s, lease))

    def recall_scoring(self, now_ms: int) -> int:
        """Close all open leases of teachers, which do not survive a restart, and count none against its teacher. Return
        how many were open."""
        with self.db.transaction() as db:
            open_ones = "SELECT lease FROM leases JOIN teacher_leases USING (lease) WHERE status = 'open'"
            db.execute(f"INSERT OR IGNORE INTO recalled {open_ones}")
            closed = "UPDATE lease_rows SET status = 'returned', closed_ms = ? WHERE status = 'open'"
            return db.execute(f"{closed} AND lease IN ({open_ones})", (now_ms,)).rowcount

    def leases_closed(self, leases: Sequence[LeaseId], status: str, now_ms: int) -> None:
        """Close leases that will not be delivered, as 'expired', 'returned', 'lost' or 'recalled'. 'recalled' means
        that the peer returned them because the learner recalled them, or that the learner was away."""
        with self.db.transaction() as db:
            if status == "recalled":
                db.executemany(
                    "INSERT INTO recalled SELECT lease FROM leases WHERE lease = ? AND status = 'open'",
                    [(lease,) for lease in leases],
                )
                status = "returned"
            db.executemany(
                "UPDATE lease_rows SET status = ?, closed_ms = ? WHERE lease = ? AND status = 'open'",
                [(status, now_ms, lease) for lease in leases],
            )

    def leases_started(self, started: Sequence[tuple[LeaseId, PolicyVersion]]) -> None:
        """Write with which version peers began to generate. The first report for a lease counts."""
        with self.db.transaction() as db:
            db.executemany(
                "UPDATE lease_rows SET started_version = ? WHERE lease = ? AND started_version IS NULL",
                [(str(version), lease) for lease, version in started],
            )

    def leases_granted_again(self, leases: Sequence[LeaseId]) -> None:
        """Forget with which version these leases were begun, since their peers had lost them and will report it
        again."""
        with self.db.transaction() as db:
            db.executemany(
                "UPDATE lease_rows SET started_version = NULL WHERE lease = ?", [(lease,) for lease in leases]
            )

    def deliveries_judged(
        self,
        rows: Sequence[RecordRow],
        receipts: Mapping[LeaseId, bytes],
        now_ms: int,
        orphaned: Mapping[LeaseId, int] | None = None,
        returned: Collection[LeaseId] = (),
    ) -> None:
        """Write verdicts and receipts of one or more deliveries, all or none; they are on disk when this returns.
        Raises LocalProtocolError when a lease already has a receipt: a delivery is judged once.

        Args:
            rows: the judged records.
            receipts: the receipt of each lease.
            orphaned: completion tokens, by lease, that count for the peer although a restart orphaned its records.
            returned: leases that were returned, with the records that were finished by then.
        """
        with self.db.transaction() as db:
            for lease, receipt in receipts.items():
                _judge(db, lease, "returned" if lease in returned else "delivered", receipt, now_ms)
            db.executemany("INSERT INTO orphans VALUES (?, ?)", list((orphaned or {}).items()))
            _add_records(db, rows)

    def rejected_after_the_end(
        self, rows: Sequence[RecordRow], receipts: Mapping[LeaseId, tuple[PeerId, bytes]]
    ) -> None:
        """Write verdicts and receipts of deliveries that came after their leases had ended: expired, returned, or lost
        with the peer's connection. The leases keep their status, so that a peer that delivers after the end is treated
        like one that never delivers.

        Nothing is written for a lease that was not granted to that peer, or that has a receipt. So what a peer can make
        the ledger store is bounded by what was granted to it. The end of a lease may not be written yet. If that write
        is lost, the lease stays open for ever, but no restart takes it up (`open_leases`).
        """
        with self.db.transaction() as db:
            ended = {
                lease
                for lease, (peer, _) in receipts.items()
                if db.execute(
                    f"SELECT 1 FROM lease_rows WHERE lease = ? AND peer = {PEER} AND status <> 'delivered'"
                    f" AND NOT {HAS_RECEIPT}",
                    (lease, peer),
                ).fetchone()
            }
            for lease in ended:
                put_receipt(db, lease, receipts[lease][1])
            _add_records(db, [row for row in rows if row.lease in ended])


def _judge(db: sqlite3.Connection, lease: LeaseId, status: str, receipt: bytes, now_ms: int) -> None:
    """Close a lease with its receipt. Raises LocalProtocolError when it already has one: a delivery is judged once."""
    closed = f"UPDATE lease_rows SET status = ?, closed_ms = ? WHERE lease = ? AND NOT {HAS_RECEIPT}"
    if not db.execute(closed, (status, now_ms, lease)).rowcount:
        raise LocalProtocolError(f"lease {lease.hex()[:8]} was never issued, or was judged before")
    put_receipt(db, lease, receipt)


def _add_records(db: sqlite3.Connection, rows: Sequence[RecordRow]) -> None:
    add_records(db, rows)
    db.executemany("INSERT OR IGNORE INTO cut_off VALUES (?, ?)", [(r.lease, r.index) for r in rows if r.cut_off])
    db.executemany(
        "INSERT OR IGNORE INTO reward_parts VALUES (?, ?, ?, ?, ?, ?)",
        [
            (r.lease, r.index, part.name, place, part.value if part.is_known else None, part.weight)
            for r in rows
            for place, part in enumerate(r.parts)
        ],
    )
