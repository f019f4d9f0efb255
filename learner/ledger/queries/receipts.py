"""Read receipts as they were signed, whether the ledger has them whole or packed."""

from __future__ import annotations

from learner.ledger.receipt_packing import Known, NotPacked, is_packed, needed, unpack
from learner.ledger.sqlite.column_values import damaged_value
from learner.ledger.sqlite.files import Queries
from protocol.core.ids import LeaseId, PeerId


def stored_receipt(db: Queries, lease: LeaseId, peer: PeerId | None = None) -> bytes | None:
    """Return the receipt that was given for a lease, if it is one of `peer` (if that is given); None if there is
    none."""
    rows = db.query("SELECT receipt FROM leases WHERE lease = ?1 AND (?2 IS NULL OR peer = ?2)", (lease, peer))
    return None if not rows or rows[0][0] is None else whole_receipt(db, lease, rows[0][0])


def whole_receipt(db: Queries, lease: LeaseId, receipt: bytes) -> bytes:
    """Return the receipt of `lease` as it was signed; `receipt` is what the ledger has. Raises DamagedValue."""
    if not is_packed(receipt):
        return receipt
    try:
        number, records = needed(receipt)
        return unpack(receipt, known_of(db, lease, _certificate(db, number), records))
    except NotPacked as error:
        raise damaged_value("packed_receipts.receipt", receipt, str(error)) from error


def known_of(db: Queries, lease: LeaseId, certificate: bytes, records: int = -1) -> Known:
    """Return what the rows say of a lease, for the dictionary of its receipt. `records` is how many of its first
    records to use; below 0 means all. Raises NotPacked."""
    rows = db.query(
        "SELECT l.no, p.peer FROM lease_rows l JOIN peer_numbers p ON p.no = l.peer WHERE l.lease = ?", (lease,)
    )
    if not rows:
        raise NotPacked("its lease is gone")
    ((number, peer),) = rows
    found = db.query(
        "SELECT record, idx, reward FROM record_rows WHERE lease = ? ORDER BY no LIMIT ?", (number, records)
    )
    return Known(lease=lease, peer=peer, certificate=certificate, records=found)


def _certificate(db: Queries, number: int) -> bytes:
    rows = db.query("SELECT certificate FROM receipt_certificates WHERE no = ?", (number,))
    if not rows:
        raise NotPacked(f"there is no certificate {number}")
    return bytes(rows[0][0])
