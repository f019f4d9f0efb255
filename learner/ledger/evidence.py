"""Read the evidence in a ledger: what the learner and receivers signed, and which records trained which version.

A ledger that an older program wrote has no tallies and no credit notes, and none are made for it.

Invariants:

- The records that a tally counts can be found again, in the same order, as long as the ledger exists and no restart
  cuts the version off.
- Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from learner.ledger.queries.receipts import stored_receipt, whole_receipt
from learner.ledger.queries.work import dropped
from learner.ledger.rows import TallyRow
from learner.ledger.sqlite.files import Queries, Row
from protocol.accounting.tally import TrainedRecord
from protocol.core.ids import LeaseId, PeerId, PolicyVersion, RecordId

PAGE = 256
"""Rows read at a time, so that no export holds a whole ledger in memory."""

TALLY = "SELECT incarnation, version, after, envelope FROM tallies"


class GivenReceipt(Row, frozen=True):
    """A receipt as the learner signed it, with its lease and peer."""

    rowid: int
    lease: LeaseId
    peer: PeerId
    receipt: bytes


class RelayEvidence(Row, frozen=True):
    """A relay receipt as its receiver signed it, and the learner's credit note for it; None if there is none."""

    rowid: int
    receipt: bytes
    note: bytes | None


class KnownRecord(Row, frozen=True):
    """A record as the ledger has it. `step` is the step that consumed it, None if none did. `dropped` is why none ever
    will."""

    record: RecordId
    lease: LeaseId
    peer: PeerId
    rule: str
    detail: str
    step: int | None
    dropped: str | None


@dataclass(frozen=True)
class Evidence:
    """The evidence that a ledger can show."""

    db: Queries

    def tally_of_step(self, step: int) -> TallyRow | None:
        """Return the tally of the surviving version that includes step `step`; None if none was signed (yet)."""
        return self._tally(f"{TALLY} WHERE version >= ? AND after < ?", (step, step))

    def tally_for(self, peer: PeerId, version: PolicyVersion) -> TallyRow | None:
        """Return the first tally, of `version` or a later one, that counts records of `peer`; None if there is none
        (yet)."""
        since = self._tally(
            f"{TALLY} WHERE (incarnation, version) >= (?, ?) ORDER BY incarnation, version LIMIT 1",
            (version.incarnation, version.version),
        )
        if since is None:
            return None
        ((step,),) = self.db.query("SELECT min(step) FROM records WHERE peer = ? AND step > ?", (peer, since.after))
        return None if step is None else self.tally_of_step(step)

    def trained(self, after: int, upto: int) -> list[TrainedRecord]:
        """Return the records that the steps after `after`, up to `upto`, consumed."""
        return [
            TrainedRecord(record=record, peer=peer, lease=lease, index=index, version=PolicyVersion(incarnation, step))
            for record, peer, lease, index, incarnation, step in self.db.query(
                "SELECT r.record, r.peer, r.lease, r.idx, s.incarnation, s.step FROM records r"
                " JOIN steps s USING (step) WHERE r.step > ? AND r.step <= ? ORDER BY r.step, r.record",
                (after, upto),
            )
        ]

    def find(self, prefix: str, limit: int) -> list[KnownRecord]:
        """Return up to `limit` records whose ids begin with `prefix`, in hex. A record that came several times is
        returned once, as it was trained on or admitted. This reads all records, so it is for commands."""
        return self.db.rows(
            KnownRecord,
            "SELECT r.record, r.lease, r.peer, r.rule, r.detail, r.step, d.reason"
            " FROM (SELECT rowid AS place, *, row_number() OVER (PARTITION BY record ORDER BY step IS NULL,"
            " rule <> 'admitted', rowid) AS rank FROM records WHERE substr(lower(hex(record)), 1, ?) = ?) r"
            f" {dropped(self.db)} WHERE rank = 1 ORDER BY place LIMIT ?",
            (len(prefix), prefix.lower(), limit),
        )

    def receipt_for(self, lease: LeaseId) -> bytes | None:
        """Return the receipt that was given for a lease."""
        return stored_receipt(self.db, lease)

    def newest_receipts(self, limit: int, peer: PeerId | None = None) -> list[bytes]:
        """Return the latest `limit` receipts, of all peers or of one, newest first."""
        rows = self.db.query(
            "SELECT lease, receipt FROM leases WHERE receipt IS NOT NULL AND (?1 IS NULL OR peer = ?1)"
            " ORDER BY closed_ms DESC, rowid DESC LIMIT ?2",
            (peer, limit),
        )
        return [whole_receipt(self.db, LeaseId(lease), raw) for lease, raw in rows]

    def trained_of(self, lease: LeaseId) -> dict[RecordId, PolicyVersion]:
        """Return those records of a lease that a surviving step consumed, each with the version that the step made."""
        rows = self.db.query(
            "SELECT r.record, s.incarnation, s.step FROM records r JOIN steps s USING (step) WHERE r.lease = ?",
            (lease,),
        )
        return {RecordId(record): PolicyVersion(incarnation, step) for record, incarnation, step in rows}

    def peers(self, ending: str) -> list[PeerId]:
        """Return rollout peers whose ids end with `ending`, two at most."""
        rows = self.db.query(
            "SELECT peer FROM peers WHERE role = 'rollout' AND substr(peer, -?) = ? LIMIT 2", (len(ending), ending)
        )
        return [PeerId(peer) for (peer,) in rows]

    def tallies(self) -> Iterator[TallyRow]:
        """Yield the tallies of all surviving versions, in order."""
        after = (-1, -1)
        while row := self._tally(
            f"{TALLY} WHERE (incarnation, version) > (?, ?) ORDER BY incarnation, version LIMIT 1", after
        ):
            yield row
            after = (row.version.incarnation, row.version.version)

    def receipts(self, peer: PeerId | None = None) -> Iterator[GivenReceipt]:
        """Yield every receipt given, to all peers or to one, in the order in which the leases were granted."""
        page = (
            "FROM leases WHERE rowid > ? AND receipt IS NOT NULL AND (?2 IS NULL OR peer = ?2) ORDER BY rowid LIMIT ?3"
        )
        after = 0
        while found := self.db.rows(GivenReceipt, page, (after, peer, PAGE)):
            for one in found:
                yield msgspec.structs.replace(one, receipt=whole_receipt(self.db, one.lease, one.receipt))
            after = found[-1].rowid

    def relays(self, peer: PeerId | None = None) -> Iterator[RelayEvidence]:
        """Yield every credited relay receipt with its credit note; with `peer`, those that it signed or that credit
        it."""
        has_notes = self.db.has_table("credit_notes")
        note, join = (
            ("n.envelope", "LEFT JOIN credit_notes n USING (manifest, receiver)") if has_notes else ("NULL", "")
        )
        after = 0
        while page := self.db.rows(
            RelayEvidence,
            f"SELECT r.rowid, r.envelope, {note} FROM relay_receipts r {join} WHERE r.rowid > ?1 AND (?2 IS NULL"
            " OR r.receiver = ?2 OR EXISTS (SELECT 1 FROM relayed d WHERE d.manifest = r.manifest"
            " AND d.receiver = r.receiver AND d.relay = ?2)) ORDER BY r.rowid LIMIT ?3",
            (after, peer, PAGE),
            of="relay_receipts",
        ):
            yield from page
            after = page[-1].rowid

    def notes_for(self, relay: PeerId, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return (number, envelope) of the first `limit` credit notes after number `after` that name `relay`."""
        return self.db.query(
            "SELECT n.rowid, n.envelope FROM relayed d JOIN credit_notes n USING (manifest, receiver)"
            " WHERE d.relay = ? AND n.rowid > ? ORDER BY n.rowid LIMIT ?",
            (relay, after, limit),
        )

    def _tally(self, sql: str, values: Sequence[Any]) -> TallyRow | None:
        if not (rows := self.db.query(sql, values, of="tallies")):
            return None
        incarnation, version, after, envelope = rows[0]
        return TallyRow(version=PolicyVersion(incarnation, version), after=after, envelope=envelope)
