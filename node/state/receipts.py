"""Keep a rollout node's receipts: what the learner signed for its work, when it worked, and what it exchanged.

One SQLite file (WAL, synchronous NORMAL). After a power cut the last receipts may be missing; the learner still has
them.

Invariants:

- A lease's receipt is kept once, no matter how often it is sent, and the latest of several.
- The signed bytes are kept as they came, so that anyone can check them later.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from learner.ledger.sqlite.files import execute_all
from node.state.receipt_queries import ReceiptQueries
from node.state.receipt_rows import KeptProof, KeptReputation, PeerTraffic
from node.state.receipt_tables import LATER_TABLES, SCHEMA, SCHEMA_VERSION
from protocol.accounting.claims import EnergySource, Price
from protocol.core.codec import encode
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.work import NumberedNote, Receipt
from swarm.transport.interface import Traffic

NO_ENERGY: Mapping[EnergySource, float] = MappingProxyType({})

RELAY_RECEIPTS_KEPT = 1024
"""Most relay receipts of our own that are kept. One has a byte for each chunk of a version, so those of a large model
take 40 MB. The learner keeps what was credited by them."""


@dataclass(frozen=True, kw_only=True)
class Received:
    """A receipt. `raw`: its envelope; `engine_s`: engine time of its records; `scored`: it is for a teacher's
    scores."""

    receipt: Receipt
    raw: bytes
    engine_s: float
    scored: bool = False


class Receipts(ReceiptQueries):
    """The receipts at `path`, for writing. The file is created if it is missing. Raises ReceiptsError."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, read_only=False)

    def add(self, receipt: Receipt, raw: bytes, *, engine_s: float) -> bool:
        """Do the same as `add_all`, for one receipt; return False if it was known."""
        [is_new] = self.add_all([Received(receipt=receipt, raw=raw, engine_s=engine_s)])
        return is_new

    def add_all(self, received: Iterable[Received]) -> list[bool]:
        """Keep receipts in one transaction, and return for each whether it is new."""
        with self.transaction() as db:
            return [_add(db, one) for one in received]

    def add_proofs(
        self,
        tally: bytes,
        proofs: Sequence[KeptProof],
        notes: Sequence[NumberedNote] = (),
        reputation: KeptReputation | None = None,
    ) -> None:
        """Keep checked proofs of one version, whose tally has the envelope `tally`, credit notes, and a reputation,
        which replaces the one before."""
        with self.transaction() as db:
            db.executemany(
                "INSERT INTO tallies VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                {(one.version.incarnation, one.version.version, tally) for one in proofs},
            )
            db.executemany(
                "INSERT INTO proofs VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                [
                    (one.record, one.version.incarnation, one.version.version, one.proof.place, encode(one.proof))
                    for one in proofs
                ],
            )
            insert = "INSERT INTO credit_notes VALUES (?, ?) ON CONFLICT DO NOTHING"
            db.executemany(insert, [(one.number, one.note) for one in notes])
            if reputation is not None:
                values = (encode(reputation.note), reputation.raw)
                db.execute("INSERT OR REPLACE INTO reputation VALUES (1, ?, ?)", values)

    def relayed(self, manifest: ManifestHash, raw: bytes, now_ms: int) -> None:
        """Keep the relay receipt that this node signed for a version, and the latest RELAY_RECEIPTS_KEPT in all."""
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO relay_receipts VALUES (?, ?, ?)", (manifest, now_ms, raw))
            db.execute(
                "DELETE FROM relay_receipts WHERE rowid NOT IN"
                " (SELECT rowid FROM relay_receipts ORDER BY signed_ms DESC, rowid DESC LIMIT ?)",
                (RELAY_RECEIPTS_KEPT,),
            )

    def revise(self, receipt: Receipt, raw: bytes) -> bool:
        """Keep a later receipt instead of the present one of its lease. Return False if there is none, or if it is as
        new.
        """
        with self.transaction() as db:
            cursor = db.execute(
                "UPDATE receipts SET incarnation = ?, version = ?, issued_ms = ?, tokens = ?, raw = ?"
                " WHERE lease = ? AND issued_ms < ?",
                (
                    receipt.version.incarnation, receipt.version.version, receipt.issued_ms, receipt.tokens, raw,
                    receipt.lease, receipt.issued_ms,
                ),
            )  # fmt: skip
            if not cursor.rowcount:
                return False
            db.execute("DELETE FROM verdicts WHERE lease = ?", (receipt.lease,))
            _add_verdicts(db, receipt)
        return True

    def session_began(self, price: Price, now_ms: int) -> int:
        """Record that the node works from now on; return the id of the session."""
        with self.transaction() as db:
            cursor = db.execute(
                "INSERT INTO sessions (began_ms, ended_ms, micros_per_hour, currency) VALUES (?, ?, ?, ?)",
                (now_ms, now_ms, price.micros_per_hour, price.currency),
            )
        return int(cursor.lastrowid or 0)

    def session_lasts(
        self,
        session: int,
        now_ms: int,
        *,
        bytes_up: int,
        bytes_down: int,
        moved: Traffic | None = None,
        traffic: Iterable[PeerTraffic] = (),
        energy: Mapping[EnergySource, float] = NO_ENERGY,
    ) -> None:
        """Record that a session lasts until `now_ms`, and its bytes and joules so far: those of chunks, also by peer;
        all bytes that were moved; joules by source.

        `traffic` may leave out peers whose bytes have not changed.
        """
        with self.transaction() as db:
            db.execute(
                "UPDATE sessions SET ended_ms = ?, bytes_up = ?, bytes_down = ? WHERE id = ?",
                (now_ms, bytes_up, bytes_down, session),
            )
            if moved is not None:
                db.execute("INSERT OR REPLACE INTO moved VALUES (?, ?, ?)", (session, moved.sent, moved.received))
            db.executemany(
                "INSERT INTO traffic VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                " bytes_up = excluded.bytes_up, bytes_down = excluded.bytes_down",
                [(session, one.peer, one.bytes_up, one.bytes_down) for one in traffic],
            )
            db.executemany(
                "INSERT OR REPLACE INTO energy VALUES (?, ?, ?)",
                [(session, source.value, joules) for source, joules in energy.items()],
            )

    def proven_upto(self) -> tuple[PolicyVersion, int]:
        """Return the place after the last proof that is kept, with its version."""
        rows = self.query(
            "SELECT incarnation, version, place FROM proofs ORDER BY incarnation DESC, version DESC, place DESC LIMIT 1"
        )
        return (PolicyVersion(rows[0][0], rows[0][1]), rows[0][2] + 1) if rows else (PolicyVersion(0, 0), 0)

    def credited_upto(self) -> int:
        """Return the number of the last credit note that is kept; 0 if none is."""
        return int(self.query("SELECT coalesce(max(number), 0) FROM credit_notes")[0][0])

    def _prepare(self) -> None:
        """Write nothing, not even the journal mode, before the file is known to be ours."""
        if not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            with self.transaction() as db:
                execute_all(db, SCHEMA)
                db.execute("INSERT INTO meta VALUES ('receipts', ?)", (str(SCHEMA_VERSION).encode(),))
        super()._prepare()
        for tables in LATER_TABLES:
            execute_all(self._db, tables)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._whereabouts.require()


def _add(db: sqlite3.Connection, one: Received) -> bool:
    receipt, version = one.receipt, one.receipt.version
    cursor = db.execute(
        "INSERT INTO receipts VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            receipt.lease, receipt.peer, version.incarnation, version.version, receipt.issued_ms,
            receipt.tokens, one.engine_s, one.raw,
        ),
    )  # fmt: skip
    if not cursor.rowcount:
        return False
    if one.scored:
        db.execute("INSERT INTO scored VALUES (?)", (receipt.lease,))
    _add_verdicts(db, receipt)
    return True


def _add_verdicts(db: sqlite3.Connection, receipt: Receipt) -> None:
    db.executemany(
        "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?)",
        [(receipt.lease, v.index, v.record, v.rule.value, v.reward, v.detail) for v in receipt.verdicts],
    )
