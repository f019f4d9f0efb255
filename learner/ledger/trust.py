"""Write what audits found, the evidence about each peer, who is banned, and which verdicts were revised.

Records that failed an audit are kept as they were signed, so that anybody with the weights can check them again: the
newest MAX_EVIDENCE leases of each peer.

Invariants:

- An audit, its evidence about the peer, and the fate of the records that failed it reach the disk together.
- A lease is audited once.
- A verdict is revised only while no training step has consumed the record. The receipt that says so replaces the one
  before.
- A group that is dropped here stays dropped, whichever checkpoint a restart goes back to. So the parts that other peers
  made of it do not keep waiting.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from learner.ledger.queries.trust import TrustQueries
from learner.ledger.rows import AuditRow, SelectionRow
from learner.ledger.sqlite.database import LedgerFile
from learner.ledger.work_tables import NUMBER, put_lease_payload, put_receipt
from learner.trust.audit_history import AuditHistory
from learner.trust.ban_evidence import Margin
from learner.trust.selection_test import CompletionValue
from protocol.core.ids import LeaseId, PeerId
from protocol.work import Rule

MAX_EVIDENCE = 16
"""Failed leases of each peer whose lease and records are kept. The first of them is enough to convict most cheaters."""

EMPTY: Mapping[LeaseId, tuple[Rule, str, bytes]] = MappingProxyType({})

NONE: Mapping[LeaseId, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class AuditOutcome:
    """One audit, what is known of its peer after it, and what it takes back.

    Args:
        revised: lease -> (rule, detail, receipt): the admitted records of these leases are rejected after all, unless a
            training step has consumed them.
        dropped: lease that opened a group -> reason: these groups are not trained on, whichever peers made parts of
            them.
    """

    row: AuditRow
    known: AuditHistory
    revised: Mapping[LeaseId, tuple[Rule, str, bytes]] = field(default_factory=dict)
    dropped: Mapping[LeaseId, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TrustLedger(TrustQueries):
    """The part of the ledger that writes audits, evidence, bans and revisions. Raises LedgerError."""

    db: LedgerFile

    def scores_audited(self, audit: AuditOutcome, margins: Sequence[Margin], lease: bytes, record: bytes) -> None:
        """Write the audit of a teacher's scores, and the `margins` that were used. If it failed, also write `lease` and
        `record` as they were signed."""
        with self.db.transaction() as db:
            db.execute(
                "UPDATE teacher_leases SET margins = ? WHERE lease = ?", (margins_text(margins), audit.row.lease)
            )
            put_lease_payload(db, audit.row.lease, lease)
            _write_audit(db, audit.row, [record])
            _write_confidence(db, audit.row.peer, audit.known, audit.row.at_ms)
            _revise(db, audit.revised, audit.row.at_ms)

    def audited(self, audits: Sequence[AuditOutcome], *, margins: Sequence[Margin] = ()) -> None:
        """Write these audits in their order, all or none, and the `margins` that were used."""
        with self.db.transaction() as db:
            if margins and audits:
                _write_margins(db, margins, min(one.row.at_ms for one in audits))
            for one in audits:
                _write_audit(db, one.row)
                _write_confidence(db, one.row.peer, one.known, one.row.at_ms)
                _revise(db, one.revised, one.row.at_ms)
                _drop(db, one.dropped)

    def verdicts_revised(
        self,
        revised: Mapping[LeaseId, tuple[Rule, str, bytes]],
        now_ms: int,
        dropped: Mapping[LeaseId, str] = NONE,
    ) -> None:
        """Reject the admitted records of these leases after all, unless a step has consumed them, as in
        `AuditOutcome`."""
        with self.db.transaction() as db:
            _revise(db, revised, now_ms)
            _drop(db, dropped)

    def confidence_written(
        self,
        peer: PeerId,
        known: AuditHistory,
        now_ms: int,
        revised: Mapping[LeaseId, tuple[Rule, str, bytes]] = EMPTY,
        dropped: Mapping[LeaseId, str] = NONE,
        *,
        decision: str = "",
    ) -> None:
        """Write what is known of a peer, and what is rejected because of it, as in `AuditOutcome`. `decision` is the
        operator's decision behind it, if any (BAN or PARDON of `learner.ledger.reputation`)."""
        with self.db.transaction() as db:
            if decision:
                db.execute(
                    "INSERT INTO decisions (peer, at_ms, what, reason) VALUES (?, ?, ?, ?)",
                    (peer, now_ms, decision, known.banned),
                )
            _write_confidence(db, peer, known, now_ms)
            _revise(db, revised, now_ms)
            _drop(db, dropped)

    def engine_used(self, what: str, seconds: float) -> None:
        """Add seconds that an engine was used for "audits" or "choices", or a teacher's engine for its "scores"."""
        with self.db.transaction() as db:
            db.execute(
                "INSERT INTO engine_time VALUES (?, ?)"
                " ON CONFLICT (what) DO UPDATE SET seconds = seconds + excluded.seconds",
                (what, seconds),
            )

    def selection_tested(self, row: SelectionRow) -> None:
        """Write the check of a group for selective delivery. Each lease is checked once."""
        with self.db.transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO choices VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    row.lease, row.peer, row.at_ms, row.outcome.value, row.withheld, _values_text(row.theirs),
                    _values_text(row.ours), row.heard,
                    json.dumps(row.log_wealth),
                ),
            )  # fmt: skip

    def selection_forgiven(self, peer: PeerId) -> None:
        """Stop counting the checks of this peer so far. They remain to be read, with `heard` below 0."""
        with self.db.transaction() as db:
            db.execute("UPDATE choices SET heard = -heard WHERE peer = ? AND heard > 0", (peer,))

    def write_revisions_sent(self, leases: Collection[LeaseId]) -> None:
        """Write that the peers were sent these revisions."""
        with self.db.transaction() as db:
            db.executemany("UPDATE revisions SET told = 1 WHERE lease = ?", [(lease,) for lease in leases])


def _write_audit(db: sqlite3.Connection, row: AuditRow, records: Sequence[bytes] | None = None) -> None:
    """Write one audit. `records`: the signed records, if the table of records does not have them."""
    counts = json.dumps([[counted.above, counted.trials] for counted in row.counts])
    db.execute(
        "INSERT INTO audits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.lease, row.peer, row.at_ms, row.tokens, counts, row.worst, row.evidence,
            int(row.passed), row.detail,
        ),
    )  # fmt: skip
    if not row.passed:
        _keep_evidence(db, row, records)


def _keep_evidence(db: sqlite3.Connection, row: AuditRow, records: Sequence[bytes] | None) -> None:
    """Keep the signed records. They are still there, since payloads are kept until the audit is over
    (`learner.ledger.training`)."""
    if records is None:
        sql = "SELECT envelope FROM records WHERE lease = ? AND envelope IS NOT NULL ORDER BY idx"
        records = [envelope for (envelope,) in db.execute(sql, (row.lease,))]
    if not records:
        return
    db.execute(
        "INSERT INTO evidence SELECT l.lease, l.envelope, ? FROM leases l WHERE l.lease = ? AND l.envelope IS NOT NULL",
        (msgspec.msgpack.encode(records), row.lease),
    )
    db.execute(
        "DELETE FROM evidence WHERE lease IN (SELECT e.lease FROM evidence e JOIN audits a USING (lease)"
        " WHERE a.peer = ? ORDER BY a.at_ms DESC, a.lease LIMIT -1 OFFSET ?)",
        (row.peer, MAX_EVIDENCE),
    )


def _values_text(group: Sequence[CompletionValue]) -> str:
    return json.dumps(
        [[one.tokens, one.reward, None if one.gains is None else [one.gains.tokens, one.gains.value]] for one in group]
    )


def _finite(value: float) -> float | None:
    """Return the value, or None for an infinite one, since JSON has no infinity."""
    return None if math.isinf(value) else value


def margins_text(margins: Sequence[Margin]) -> str:
    """Return margins as the ledger stores them; `margins_from` reads them."""
    return json.dumps(
        [[one.measure.value, one.above, one.rate, _finite(one.over), _finite(one.upto)] for one in margins]
    )


def _write_margins(db: sqlite3.Connection, in_force: Sequence[Margin], now_ms: int) -> None:
    """Write the margins that are in force, if they differ from the last ones."""
    margins = margins_text(in_force)
    last = db.execute("SELECT margins FROM margins ORDER BY since_ms DESC LIMIT 1").fetchone()
    if last != (margins,):
        db.execute("INSERT OR REPLACE INTO margins VALUES (?, ?)", (now_ms, margins))


def _write_confidence(db: sqlite3.Connection, peer: PeerId, known: AuditHistory, now_ms: int) -> None:
    db.execute(
        "INSERT OR REPLACE INTO confidence VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            peer, known.passed, known.failed, known.history.audits, json.dumps(known.history.log_wealth),
            known.banned, now_ms,
        ),
    )  # fmt: skip


def _revise(db: sqlite3.Connection, revised: Mapping[LeaseId, tuple[Rule, str, bytes]], now_ms: int) -> None:
    for lease, (rule, detail, receipt) in revised.items():
        db.execute(
            f"UPDATE record_rows SET rule = ?, detail = ? WHERE lease = {NUMBER} AND rule = 'admitted'"
            " AND step IS NULL",
            (rule.value, detail, lease),
        )
        put_receipt(db, lease, receipt)
        db.execute(
            "INSERT OR REPLACE INTO revisions SELECT lease, peer, ?, 0 FROM leases WHERE lease = ?", (now_ms, lease)
        )


def _drop(db: sqlite3.Connection, dropped: Mapping[LeaseId, str]) -> None:
    """Drop these groups for good: at the step of the oldest checkpoint that a restart can go back to."""
    (oldest,) = db.execute("SELECT coalesce(min(step), 0) FROM checkpoints").fetchone()
    db.executemany(
        "INSERT INTO dropped SELECT lease, ?, ? FROM leases WHERE lease = ?"
        " ON CONFLICT (lease) DO UPDATE SET step = min(step, excluded.step)",
        [(oldest, why, root) for root, why in dropped.items()],
    )
