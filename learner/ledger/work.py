"""The ledger of work: leases, the verdicts on what came of them, and receipts.

What always holds: what a receipt says is committed to disk before the receipt exists; a record is counted once, because
an index of a lease is admitted once.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learner.ledger.rows import LeaseRow, RecordRow, UnconsumedRow
from learner.ledger.sqlite.column_values import from_json, version_from
from learner.ledger.sqlite.database import LedgerFile, snapshot
from learner.rollouts.admission import EpisodeSlots
from protocol.core.errors import LocalProtocolError
from protocol.core.ids import LeaseId, PeerId, PolicyVersion

OPEN = "status = 'open' AND receipt IS NULL"
OPEN_LEASES = (
    "SELECT lease, peer, task, prompt, rollouts, issued_ms, deadline_ms, envelope, started_version, root, turn, slots"
    " FROM leases LEFT JOIN continuations USING (lease)"
    f" WHERE {OPEN} ORDER BY issued_ms, lease"
)

UNCONSUMED = (
    "FROM records r JOIN leases l USING (lease) LEFT JOIN continuations c USING (lease)"
    " WHERE r.rule = 'admitted' AND r.step IS NULL AND r.envelope IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM dropped d WHERE d.lease = coalesce(c.root, r.lease))"
)


@dataclass
class WorkLedger:
    """See the module's paragraph. Raises LedgerError."""

    db: LedgerFile

    def leases_issued(self, rows: Sequence[LeaseRow]) -> None:
        """Write leases before they are handed out."""
        with self.db.transaction() as db:
            db.executemany(
                "INSERT INTO leases (lease, peer, task, prompt, rollouts, issued_ms, deadline_ms, envelope)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [(r.lease, r.peer, r.task, r.prompt, r.rollouts, r.issued_ms, r.deadline_ms, r.envelope) for r in rows],
            )
            db.executemany(
                "INSERT INTO continuations VALUES (?, ?, ?, ?)",
                [(r.lease, r.place.root, r.place.turn, json.dumps(r.place.slots)) for r in rows if r.place is not None],
            )

    def leases_closed(self, leases: Sequence[LeaseId], status: str, now_ms: int) -> None:
        """These leases will not be delivered: 'expired', 'returned', 'lost', or 'recalled' (and returned therefore, or
        not, the learner having been away)."""
        with self.db.transaction() as db:
            if status == "recalled":
                db.executemany(
                    "INSERT INTO recalled SELECT lease FROM leases WHERE lease = ? AND status = 'open'",
                    [(lease,) for lease in leases],
                )
                status = "returned"
            db.executemany(
                "UPDATE leases SET status = ?, closed_ms = ? WHERE lease = ? AND status = 'open'",
                [(status, now_ms, lease) for lease in leases],
            )

    def leases_started(self, started: Sequence[tuple[LeaseId, PolicyVersion]]) -> None:
        """Peers said with which version they began to generate; the first word counts."""
        with self.db.transaction() as db:
            db.executemany(
                "UPDATE leases SET started_version = ? WHERE lease = ? AND started_version IS NULL",
                [(str(version), lease) for lease, version in started],
            )

    def leases_granted_again(self, leases: Sequence[LeaseId]) -> None:
        """Their peers had lost them; with which version they are begun is to be said anew."""
        with self.db.transaction() as db:
            db.executemany("UPDATE leases SET started_version = NULL WHERE lease = ?", [(lease,) for lease in leases])

    def open_leases(self) -> list[LeaseRow]:
        """Leases neither delivered nor closed, nor answered with a receipt."""
        return [_open_lease(row) for row in self.db.query(OPEN_LEASES)]

    def deliveries_judged(
        self,
        rows: Sequence[RecordRow],
        receipts: Mapping[LeaseId, bytes],
        now_ms: int,
        orphaned: Mapping[LeaseId, int] | None = None,
    ) -> None:
        """Write verdicts and receipts of one or more deliveries, all or nothing, on disk when this returns.

        `orphaned`: completion tokens that count for their authors although a restart orphaned them.
        Raises LocalProtocolError when a lease has a receipt already: a delivery is judged once.
        """
        with self.db.transaction() as db:
            for lease, receipt in receipts.items():
                update = "UPDATE leases SET status = 'delivered', closed_ms = ?, receipt = ? WHERE lease = ?"
                if not db.execute(f"{update} AND receipt IS NULL", (now_ms, receipt, lease)).rowcount:
                    raise LocalProtocolError(f"lease {lease.hex()[:8]} was never issued, or was judged before")
            db.executemany("INSERT INTO orphans VALUES (?, ?)", list((orphaned or {}).items()))
            _add_records(db, rows)

    def refused_after_the_end(
        self, rows: Sequence[RecordRow], receipts: Mapping[LeaseId, tuple[PeerId, bytes]]
    ) -> None:
        """Write verdicts and receipts of deliveries whose leases had ended before they came: expired, returned, or lost
        with their peers' connections. The leases stay what they are, so that who delivers after the end is treated
        neither better nor worse than who never does.

        Nothing is written of a lease that was not issued to that peer, or has a receipt: what anybody can have us keep
        is bounded by what was issued. Its end may be about to be written only: should that be lost, the lease is open
        for ever, but no restart takes it up (`open_leases`).
        """
        with self.db.transaction() as db:
            ended = {
                lease
                for lease, (peer, receipt) in receipts.items()
                if db.execute(
                    "UPDATE leases SET receipt = ? WHERE lease = ? AND peer = ? AND receipt IS NULL"
                    " AND status <> 'delivered'",
                    (receipt, lease, peer),
                ).rowcount
            }
            _add_records(db, [row for row in rows if row.lease in ended])

    def receipt_of(self, lease: LeaseId, peer: PeerId) -> bytes | None:
        """The receipt already given to `peer` for `lease`, or None."""
        rows = self.db.query("SELECT receipt FROM leases WHERE lease = ? AND peer = ?", (lease, peer))
        return rows[0][0] if rows else None

    def lease_envelope(self, lease: LeaseId) -> bytes | None:
        """The lease as it was signed. None when there is none of that id, or it is of no use any more."""
        rows = self.db.query("SELECT envelope FROM leases WHERE lease = ?", (lease,))
        return rows[0][0] if rows else None

    def unconsumed(self) -> list[UnconsumedRow]:
        """Admitted records that no surviving step has taken or dropped, in order of turns and of arrival."""
        return [
            UnconsumedRow(
                prompt=row[0], lease=LeaseId(row[1]), reward=row[2], peer=PeerId(row[3]), envelope=row[4],
                place=_place(*row[5:]),
            )
            for row in self.db.query(
                "SELECT l.prompt, r.lease, r.reward, r.peer, r.envelope, c.root, c.turn, c.slots"
                f" {UNCONSUMED}"
                " ORDER BY coalesce(c.turn, 0), r.received_ms, r.lease, r.idx"
            )
        ]  # fmt: skip

    def counts(self) -> tuple[int, int]:
        """How many leases and records there are; none is ever deleted."""
        leases = self.db.query("SELECT coalesce(max(rowid), 0) FROM leases")[0][0]
        return int(leases), int(self.db.query("SELECT coalesce(max(rowid), 0) FROM records")[0][0])

    def since(self, leases: int, records: int) -> tuple[list[int], list[tuple[int, float]]]:
        """Beyond the first so many leases and records, in order: the prompts that were leased, and (prompt, mean
        reward) of each group that was admitted.
        """
        given = self.db.query(
            "SELECT prompt FROM leases LEFT JOIN continuations c USING (lease)"
            " WHERE leases.rowid > ? AND c.root IS NULL ORDER BY leases.rowid",
            (leases,),
        )
        seen = self.db.query(
            "WITH fresh AS (SELECT DISTINCT coalesce(c.root, r.lease) AS root FROM records r"
            " LEFT JOIN continuations c USING (lease) WHERE r.rule = 'admitted' AND r.rowid > ?),"
            " turns AS (SELECT root, root AS lease FROM fresh"
            " UNION ALL SELECT c.root, c.lease FROM continuations c JOIN fresh USING (root))"
            " SELECT l.prompt, avg(r.reward) FROM turns t JOIN leases l ON l.lease = t.root"
            " JOIN records r ON r.lease = t.lease AND r.rule = 'admitted'"
            # Complete is a group with a return for each of its first turns.
            " GROUP BY t.root HAVING count(r.reward) = sum(t.lease = t.root) ORDER BY max(r.rowid)",
            (records,),
        )
        return [prompt for (prompt,) in given], [(prompt, mean) for prompt, mean in seen]


def open_leases_of(path: Path) -> list[LeaseRow]:
    """As `WorkLedger.open_leases`, of a ledger that somebody else may be writing to. Raises LedgerError."""
    with snapshot(path) as db:
        return [_open_lease(row) for row in db.query(OPEN_LEASES)]


def group_sizes_of(path: Path) -> set[int]:
    """Of how many completions the groups are that are leased, or wait to be trained on, in a ledger that somebody else
    may be writing to. Raises LedgerError."""
    with snapshot(path) as db:
        return {
            int(size)
            for (size,) in db.query(
                "SELECT rollouts FROM leases LEFT JOIN continuations c USING (lease) WHERE c.root IS NULL AND"
                f" ({OPEN} OR lease IN (SELECT coalesce(c.root, r.lease) {UNCONSUMED}))"
            )
        }


def _open_lease(row: tuple[Any, ...]) -> LeaseRow:
    return LeaseRow(
        lease=LeaseId(row[0]), peer=PeerId(row[1]), task=row[2], prompt=row[3], rollouts=row[4],
        issued_ms=row[5], deadline_ms=row[6], envelope=row[7], started=_version(row[8]), place=_place(*row[9:]),
    )  # fmt: skip


def _version(name: str | None) -> PolicyVersion | None:
    return None if name is None else version_from("leases.started_version", name)


def _place(root: bytes | None, turn: int | None, slots: str | None) -> EpisodeSlots | None:
    if root is None or turn is None or slots is None:
        return None
    return EpisodeSlots(root=LeaseId(root), turn=turn, slots=tuple(from_json("continuations.slots", slots, list[int])))


def _add_records(db: sqlite3.Connection, rows: Sequence[RecordRow]) -> None:
    db.executemany(
        # The same bytes twice in one delivery are one record.
        "INSERT INTO records (record, lease, idx, peer, rule, reward, tokens, incarnation, version, lag,"
        " received_ms, generation_ms, detail, envelope) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (lease, record) DO NOTHING",
        [
            (
                r.record, r.lease, r.index, r.peer, r.rule.value, r.reward, r.tokens,
                r.version.incarnation, r.version.version, r.lag, r.received_ms, r.generation_ms, r.detail,
                r.envelope,
            )
            for r in rows
        ],
    )  # fmt: skip
