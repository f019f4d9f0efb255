"""Makes the ledger smaller, and loses nothing: receipts of leases that ended long ago are packed.

A run adds rows as long as it lasts, and almost all of its bytes are receipts: signed, some 200 bytes a rollout, and
hardly ever asked for once they are old. Packed (`learner.ledger.receipt_packing`) they are an eighth of that, and read
back byte for byte. Everything else that is large is forgotten by itself once no restart can ask for it
(`learner.ledger.training`).

Each round is one transaction, so that a kill or a full disk leaves receipts whole or packed, never neither. Their room
in the file is used again; `shrink` gives it back to the disk.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path

from learner.ledger.queries.receipts import known_of
from learner.ledger.receipt_packing import certificate_in, is_packed, pack, unpack
from learner.ledger.sqlite.database import LedgerError, LedgerFile
from protocol.core.ids import LeaseId

ROUND = 500
"""Receipts that are packed in one transaction: some 50 ms, for which nobody else can write."""

PAGES = ("page_count", "freelist_count", "page_size")


@dataclass(frozen=True)
class Compaction:
    """See the module's paragraph. Raises LedgerError."""

    db: LedgerFile

    def pack_receipts(self, before_ms: int, most: int = ROUND) -> int:
        """Pack receipts of leases that ended before then, `most` at most; return how many were."""
        with self.db.transaction() as db:
            rows = db.execute(
                "SELECT r.no, l.lease, r.receipt FROM receipts r JOIN lease_rows l USING (no)"
                " WHERE r.no < ? AND l.closed_ms < ? ORDER BY r.no LIMIT ?",
                (self._first_issued(before_ms), before_ms, most),
            ).fetchall()
            for number, lease, receipt in rows:
                packed = self._packed(db, LeaseId(lease), receipt)
                db.execute("DELETE FROM receipts WHERE no = ?", (number,))
                db.execute("INSERT INTO packed_receipts VALUES (?, ?)", (number, packed))
        return len(rows)

    def _first_issued(self, since_ms: int) -> int:
        """The number of the first lease that was issued then or later. Leases are numbered as they are issued, so what
        lies beyond has not ended before, and need not be looked at: it is all that is whole."""
        low, high = 1, int(self.db.query("SELECT coalesce(max(no), 0) FROM lease_rows")[0][0]) + 1
        while low < high:
            middle = (low + high) // 2
            rows = self.db.query("SELECT issued_ms FROM lease_rows WHERE no >= ? ORDER BY no LIMIT 1", (middle,))
            if rows and rows[0][0] < since_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def shrink(self) -> None:
        """Give the disk back what is free in the file. Needs nobody who reads it, and room: SQLite writes what is not
        free into a temporary file, and from there into its log."""
        pages, free, size = (int(self.db.query(f"PRAGMA {name}")[0][0]) for name in PAGES)
        needed = (pages - free) * size
        for place, times in ((self.db.path.parent, 2), (Path(tempfile.gettempdir()), 1)):
            status = os.statvfs(place)
            if (left := status.f_bavail * status.f_frsize) < times * needed:
                raise LedgerError(
                    f"To make {self.db.path} smaller takes {times * needed} bytes in {place} for a while, and {left} "
                    "are free there. Receipts are packed, and their room in the file is used again. Free the disk, "
                    "then do this again."
                )
        self.db.vacuum()

    def _packed(self, db: sqlite3.Connection, lease: LeaseId, receipt: bytes) -> bytes:
        """The receipt, packed, or as it is where it would not read back."""
        certificate = certificate_in(receipt)
        db.execute("INSERT INTO receipt_certificates (certificate) VALUES (?) ON CONFLICT DO NOTHING", (certificate,))
        ((number,),) = db.execute("SELECT no FROM receipt_certificates WHERE certificate = ?", (certificate,))
        known = known_of(self.db, lease, certificate)
        packed = pack(receipt, number, known)
        return packed if is_packed(packed) and unpack(packed, known) == receipt else receipt


def size_of(path: Path) -> int:
    """Bytes of the ledger's file and of its log."""
    return sum(each.stat().st_size for each in (path, path.with_name(path.name + "-wal")) if each.exists())
