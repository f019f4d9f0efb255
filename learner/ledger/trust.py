"""The ledger of trust: what audits found, what they add up to of each peer, who is banned, which verdicts were revised.

What always holds: an audit, what it says of its peer, and what becomes of the records that failed it, are on disk
together; a lease is audited once; a verdict is revised only while no training step has taken its record, and the
receipt that says so replaces the one before; a group that is dropped here stays dropped, to whichever checkpoint a
restart goes back, so that what others made of it is not left waiting. What failed is kept as it was signed, so that
anybody with the weights can look again, the newest MAX_EVIDENCE of each peer.
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
from learner.ledger.rows import AuditRow, ChoiceRow
from learner.ledger.sqlite.database import LedgerFile
from learner.ledger.work_tables import NUMBER, put_lease_payload, put_receipt
from learner.trust.audit_history import AuditHistory
from learner.trust.ban_evidence import Margin
from learner.trust.selection_test import CompletionValue
from protocol.core.ids import LeaseId, PeerId
from protocol.work import Rule

MAX_EVIDENCE = 16
"""Leases that failed whose lease and records are kept, of each peer: the first of them convicts most who cheat."""

EMPTY: Mapping[LeaseId, tuple[Rule, str, bytes]] = MappingProxyType({})

NONE: Mapping[LeaseId, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class AuditOutcome:
    """One audit, what is known of its peer after it, and what it takes back.

    Args:
        revised: lease -> (rule, detail, receipt): the admitted records of these leases are refused after all, unless a
            training step has taken them.
        dropped: lease that opened a group -> reason: these groups are not trained on, whoever made parts of them.
    """

    row: AuditRow
    known: AuditHistory
    revised: Mapping[LeaseId, tuple[Rule, str, bytes]] = field(default_factory=dict)
    dropped: Mapping[LeaseId, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TrustLedger(TrustQueries):
    """See the module's paragraph. Raises LedgerError."""

    db: LedgerFile

    def scores_audited(self, audit: AuditOutcome, margins: Sequence[Margin], lease: bytes, record: bytes) -> None:
        """Write the audit of what a teacher said, the `margins` that it went by, and, of one that failed, `lease` and
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
        """Write these audits in their order, all or none, and the `margins` that they went by."""
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
        """What was admitted of these leases, and no step has taken, is refused after all, as in `AuditOutcome`."""
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
        """Write what is known of a peer, which `decision` of the operator's it rests on if any (BAN, PARDON of
        `learner.ledger.reputation`), and what is refused therefore, as in `AuditOutcome`."""
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
        """An engine was used for so long, for "audits" or "choices", or the teacher's for its "scores"."""
        with self.db.transaction() as db:
            db.execute(
                "INSERT INTO engine_time VALUES (?, ?)"
                " ON CONFLICT (what) DO UPDATE SET seconds = seconds + excluded.seconds",
                (what, seconds),
            )

    def choice_drawn(self, row: ChoiceRow) -> None:
        """Write what a group was worth that its peer may have chosen. A lease is drawn once."""
        with self.db.transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO choices VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    row.lease, row.peer, row.at_ms, row.choice.value, row.withheld, _worth(row.theirs),
                    _worth(row.ours), row.heard,
                    json.dumps(row.log_wealth),
                ),
            )  # fmt: skip

    def choices_forgiven(self, peer: PeerId) -> None:
        """What was drawn so far counts no more for this peer; it stays to be read, with `heard` below 0."""
        with self.db.transaction() as db:
            db.execute("UPDATE choices SET heard = -heard WHERE peer = ? AND heard > 0", (peer,))

    def revisions_told(self, leases: Collection[LeaseId]) -> None:
        """Their peers were told."""
        with self.db.transaction() as db:
            db.executemany("UPDATE revisions SET told = 1 WHERE lease = ?", [(lease,) for lease in leases])


def _write_audit(db: sqlite3.Connection, row: AuditRow, records: Sequence[bytes] | None = None) -> None:
    """`records`: what was signed, where the table of records has it not."""
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
    """What was signed is there for as long as the audit was not over (`learner.ledger.training`)."""
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


def _worth(group: Sequence[CompletionValue]) -> str:
    return json.dumps(
        [[one.tokens, one.reward, None if one.gains is None else [one.gains.tokens, one.gains.worth]] for one in group]
    )


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return None if math.isinf(value) else value


def margins_text(margins: Sequence[Margin]) -> str:
    """As the ledger has margins: `margins_from` reads it."""
    return json.dumps(
        [[one.measure.value, one.above, one.rate, _finite(one.over), _finite(one.upto)] for one in margins]
    )


def _write_margins(db: sqlite3.Connection, in_force: Sequence[Margin], now_ms: int) -> None:
    """Where others were in force."""
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
    """For good: as what had been dropped before the oldest state that a restart can go back to."""
    (oldest,) = db.execute("SELECT coalesce(min(step), 0) FROM checkpoints").fetchone()
    db.executemany(
        "INSERT INTO dropped SELECT lease, ?, ? FROM leases WHERE lease = ?"
        " ON CONFLICT (lease) DO UPDATE SET step = min(step, excluded.step)",
        [(oldest, why, root) for root, why in dropped.items()],
    )
