"""Make the ledger smaller without losing anything, by packing receipts of leases that ended long ago.

A run adds rows as long as it lasts. Almost all bytes are receipts: signed, about 200 bytes a rollout, and hardly ever
asked for once they are old. Packed (`learner.ledger.receipt_packing`), they take an eighth of that and read back byte
for byte. All other large data are deleted once no restart can ask for them (`learner.ledger.training`).

Each round is one transaction, so that after a kill or a full disk each receipt is whole or packed, never lost. The
ledger uses the freed room in its file again; `shrink` gives it back to the disk.
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
"""Receipts that are packed in one transaction: about 50 ms, during which no other thread can write."""

PAGES = ("page_count", "freelist_count", "page_size")


@dataclass(frozen=True)
class Compaction:
    """Packs old receipts, and shrinks the file. Raises LedgerError."""

    db: LedgerFile

    def pack_receipts(self, before_ms: int, most: int = ROUND) -> int:
        """Pack receipts of leases that ended before `before_ms`, `most` at most; return how many were packed."""
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
        """Return the number of the first lease that was granted at `since_ms` or later. Leases are numbered in the
        order of their grants, so no lease from this number on ended before. Their receipts, which are nearly all of the
        whole ones, need not be read."""
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
        """Give the free room in the file back to the disk. There must be no reader, and there must be room: SQLite
        writes the used pages into a temporary file, and from there into its log."""
        pages, free, size = (int(self.db.query(f"PRAGMA {name}")[0][0]) for name in PAGES)
        needed = (pages - free) * size
        for place, times in ((self.db.path.parent, 2), (Path(tempfile.gettempdir()), 1)):
            status = os.statvfs(place)
            if (left := status.f_bavail * status.f_frsize) < times * needed:
                raise LedgerError(
                    f"Shrinking {self.db.path} needs {times * needed} bytes in {place} for a while, and only {left} "
                    "are free there. The receipts are packed, and the ledger uses their room in the file again. Free "
                    "the disk, then run this again."
                )
        self.db.vacuum()

    def _packed(self, db: sqlite3.Connection, lease: LeaseId, receipt: bytes) -> bytes:
        """Return the receipt, packed, or unchanged if the packed form would not read back."""
        certificate = certificate_in(receipt)
        db.execute("INSERT INTO receipt_certificates (certificate) VALUES (?) ON CONFLICT DO NOTHING", (certificate,))
        ((number,),) = db.execute("SELECT no FROM receipt_certificates WHERE certificate = ?", (certificate,))
        known = known_of(self.db, lease, certificate)
        packed = pack(receipt, number, known)
        return packed if is_packed(packed) and unpack(packed, known) == receipt else receipt


def size_of(path: Path) -> int:
    """Return the bytes of the ledger's file and of its log."""
    return sum(each.stat().st_size for each in (path, path.with_name(path.name + "-wal")) if each.exists())
