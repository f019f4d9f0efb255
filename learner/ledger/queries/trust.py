"""Read what a ledger has of trust: audits, evidence, checks of selective delivery, decisions of the operator."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from learner.ledger.queries.receipts import whole_receipt
from learner.ledger.queries.work import has_payload
from learner.ledger.reputation import BAN, PARDON
from learner.ledger.rows import AdmittedRow, AuditRow, SelectionRow
from learner.ledger.sqlite.column_values import (
    counts_from,
    margins_from,
    outcome_from,
    packed_in,
    values_from,
    wealth_from,
)
from learner.ledger.sqlite.files import Queries, Row
from learner.trust.audit_history import AuditHistory
from learner.trust.ban_evidence import Audited, History, Margin
from learner.trust.margins import BETS, margins_of
from protocol.core.ids import LeaseId, PeerId, RecordId

AUDITS = "SELECT lease, peer, at_ms, tokens, above, worst, evidence, passed, detail FROM audits"

SELECTION_ROWS = "SELECT lease, peer, at_ms, choice, withheld, theirs, ours, heard, log_wealth FROM choices"


class AuditSums(Row, frozen=True):
    """All audits of a peer: how many, how many failed, over how many tokens, and the largest gap in nats."""

    audits: int = 0
    failed: int = 0
    tokens: int = 0
    worst: float = 0.0


class Confidence(NamedTuple):
    """The audit history of a peer, and since when it stands."""

    known: AuditHistory
    since_ms: int


class OperatorDecision(Row, frozen=True):
    """A decision of the operator about a peer: BAN or PARDON."""

    at_ms: int
    what: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class KeptLease:
    """A lease that failed its audit, as it was signed, and what the audit counted beyond which margins."""

    lease: bytes
    records: tuple[bytes, ...]
    counted: Audited
    margins: tuple[Margin, ...]


@dataclass(frozen=True)
class TrustQueries:
    """The queries about trust."""

    db: Queries

    def has_audits(self) -> bool:
        """Return whether the program that wrote the ledger made audits."""
        return self.db.has_table("audits")

    def audit_sums(self) -> dict[PeerId, AuditSums]:
        """Return the sums over each peer's audits."""
        rows = self.db.query(
            "SELECT peer, count(*), sum(passed = 0), sum(tokens), max(worst) FROM audits GROUP BY peer", of="audits"
        )
        return {peer: AuditSums(*sums) for peer, *sums in rows}

    def unaudited(self) -> dict[PeerId, int]:
        """Return, by peer, how many records were trained on without an audit."""
        return dict(
            self.db.query(
                "SELECT r.peer, count(*) FROM records r WHERE r.step IS NOT NULL"
                " AND NOT EXISTS (SELECT 1 FROM audits a WHERE a.lease = r.lease) GROUP BY r.peer",
                of="audits",
            )
        )

    def confidence(self, peers: Collection[PeerId] | None = None, bets: int | None = None) -> dict[PeerId, Confidence]:
        """Return what is known of all peers that were ever audited or banned, or of those among `peers`. `bets` is as
        in `wealth_from`."""
        rows = self.db.query(
            "SELECT peer, passed, failed, audits, log_wealth, banned, since_ms FROM confidence"
            " WHERE ?1 IS NULL OR peer IN (SELECT value FROM json_each(?1))",
            (None if peers is None else json.dumps(list(peers)),),
            of="confidence",
        )
        found = {}
        for one, passed, failed, audits, log_wealth, banned, since_ms in rows:
            history = History(audits=audits, log_wealth=wealth_from("confidence.log_wealth", log_wealth, bets))
            known = AuditHistory(passed=passed, failed=failed, history=history, banned=banned)
            found[PeerId(one)] = Confidence(known, since_ms)
        return found

    def confidence_of(self, peers: Collection[PeerId]) -> dict[PeerId, AuditHistory]:
        """Return what audits continue from, for those of `peers` that were ever audited or banned."""
        return {peer: known for peer, (known, _) in self.confidence(peers, BETS).items()}

    def audits(self, peer: PeerId) -> list[AuditRow]:
        """Return the audits of a peer, in the order in which they were made."""
        return [_audit(row) for row in self.db.query(f"{AUDITS} WHERE peer = ? ORDER BY rowid", (peer,), of="audits")]

    def audit(self, lease: LeaseId) -> AuditRow | None:
        """Return the audit of a lease; None if it was not audited."""
        rows = self.db.query(f"{AUDITS} WHERE lease = ?", (lease,), of="audits")
        return _audit(rows[0]) if rows else None

    def audits_of(self, leases: Collection[LeaseId]) -> dict[LeaseId, bool]:
        """Return those of `leases` that were audited, and whether they passed."""
        found = {one: self.db.query("SELECT passed FROM audits WHERE lease = ?", (one,)) for one in leases}
        return {lease: bool(rows[0][0]) for lease, rows in found.items() if rows}

    def kept_lease(self, lease: LeaseId) -> KeptLease | None:
        """Return a lease that failed its audit, as it was signed. None if it was not audited, passed, or is not among
        the newest of its peer that are kept."""
        rows = self.db.query("SELECT envelope, records FROM evidence WHERE lease = ?", (lease,), of="evidence")
        if not rows or (audit := self.audit(lease)) is None:
            return None
        return KeptLease(
            lease=rows[0][0],
            records=tuple(packed_in("evidence.records", rows[0][1], list[bytes])),
            counted=audit.counted,
            margins=tuple(self.margins()(audit)),
        )

    def selections(self, *, peer: PeerId | None = None, lease: LeaseId | None = None) -> list[SelectionRow]:
        """Return the checks for selective delivery: all of a peer that were not forgiven, in order, or that of a
        lease."""
        rows = self.db.query(
            f"{SELECTION_ROWS} WHERE lease = ?1 OR (peer = ?2 AND heard > 0) ORDER BY heard",
            (lease, peer),
            of="choices",
        )
        return [
            SelectionRow(
                lease=LeaseId(one), peer=PeerId(who), at_ms=at_ms, outcome=outcome_from("choices.choice", outcome),
                withheld=withheld, theirs=tuple(values_from("choices.theirs", theirs)),
                ours=tuple(values_from("choices.ours", ours)), heard=heard,
                log_wealth=wealth_from("choices.log_wealth", log_wealth),
            )
            for one, who, at_ms, outcome, withheld, theirs, ours, heard, log_wealth in rows
        ]  # fmt: skip

    def selection_history(self, peer: PeerId) -> History:
        """Return the evidence from all checks of this peer for selective delivery."""
        rows = self.db.query(
            "SELECT heard, log_wealth FROM choices WHERE peer = ? AND heard > 0 ORDER BY heard DESC LIMIT 1", (peer,)
        )
        for heard, log_wealth in rows:
            return History(audits=heard, log_wealth=wealth_from("choices.log_wealth", log_wealth))
        return History()

    def decisions(self, peer: PeerId) -> list[OperatorDecision]:
        """Return the operator's decisions about a peer, newest first."""
        return self.db.rows(OperatorDecision, "FROM decisions WHERE peer = ? ORDER BY id DESC", (peer,), of="decisions")

    def pardons_ms(self, peer: PeerId) -> list[int]:
        """Return when the operator pardoned the peer, in order."""
        return [one.at_ms for one in reversed(self.decisions(peer)) if one.what == PARDON]

    def banned_by_operator(self) -> set[PeerId]:
        """Return the peers for which the operator's last decision is a ban."""
        rows = self.db.query("SELECT peer, what, max(id) FROM decisions GROUP BY peer", of="decisions")
        return {PeerId(peer) for peer, what, _ in rows if what == BAN}

    def admitted_of(self, leases: Collection[LeaseId]) -> list[AdmittedRow]:
        """Return those of `leases` with admitted records that no step has consumed."""
        found: list[AdmittedRow] = []
        for lease in leases:
            rows = self.db.query(
                "SELECT l.peer, r.record, r.idx FROM records r JOIN leases l USING (lease)"
                " WHERE r.lease = ? AND r.rule = 'admitted' AND r.step IS NULL ORDER BY r.idx",
                (lease,),
            )
            if rows:
                records = tuple((RecordId(record), index) for _, record, index in rows)
                found.append(AdmittedRow(lease=lease, peer=PeerId(rows[0][0]), records=records))
        return found

    def scores_of(self, leases: Collection[LeaseId]) -> list[tuple[LeaseId, PeerId, bytes]]:
        """Return those of `leases` for which a teacher delivered scores, each with its receipt."""
        if not self.db.has_table("teacher_leases"):
            return []
        return [
            (LeaseId(lease), PeerId(peer), whole_receipt(self.db, LeaseId(lease), receipt))
            for one in leases
            for lease, peer, receipt in self.db.query(
                "SELECT lease, peer, receipt FROM leases JOIN teacher_leases USING (lease)"
                " WHERE lease = ? AND engine_s IS NOT NULL",
                (one,),
            )
        ]

    def parts_of(self, peer: PeerId, roots: Collection[LeaseId]) -> set[LeaseId]:
        """Return the leases of `peer` that opened or continued the groups `roots`."""
        found: set[LeaseId] = set()
        for root in roots:
            rows = self.db.query(
                "SELECT lease FROM leases WHERE peer = ?"
                " AND lease IN (SELECT ? UNION SELECT lease FROM continuations WHERE root = ?)",
                (peer, root, root),
            )
            found.update(LeaseId(lease) for (lease,) in rows)
        return found

    def untrained_of(self, peer: PeerId) -> set[LeaseId]:
        """Return the leases that opened groups with an admitted part of `peer`, except groups that were trained on or
        dropped."""
        rows = self.db.query(
            "SELECT DISTINCT coalesce(c.root, r.lease) AS opener FROM records r LEFT JOIN continuations c USING (lease)"
            f" WHERE {has_payload(self.db)} AND r.step IS NULL AND r.rule = 'admitted' AND r.peer = ?"
            " AND NOT EXISTS (SELECT 1 FROM dropped d WHERE d.lease = coalesce(c.root, r.lease))",
            (peer,),
        )
        return {LeaseId(root) for (root,) in rows}

    def is_dropped(self, root: LeaseId) -> bool:
        """Return whether the group that this lease opened was dropped."""
        return bool(self.db.query("SELECT 1 FROM dropped WHERE lease = ?", (root,)))

    def untold_revisions(self, peer: PeerId, most: int) -> list[tuple[LeaseId, bytes]]:
        """Return (lease, receipt) of revisions that the peer has not been sent, the oldest first."""
        rows = self.db.query(
            "SELECT v.lease, l.receipt FROM revisions v JOIN leases l USING (lease)"
            " WHERE v.peer = ? AND v.told = 0 ORDER BY v.at_ms, v.lease LIMIT ?",
            (peer, most),
        )
        return [(LeaseId(lease), whole_receipt(self.db, LeaseId(lease), receipt)) for lease, receipt in rows]

    def margins(self) -> Callable[[AuditRow], Sequence[Margin]]:
        """Return a function that gives the margins by which an audit was judged: those in force at that time or, for a
        teacher's scores, its own. Before margins were recorded, they depended on the newest version's size, at two
        bytes a parameter."""
        rows = self.db.query("SELECT since_ms, margins FROM margins ORDER BY since_ms", of="margins")
        kept = [(at_ms, margins_from("margins.margins", text)) for at_ms, text in rows]
        sizes = self.db.query("SELECT published_ms, total_bytes FROM versions ORDER BY published_ms")
        since, times = [at_ms for at_ms, _ in kept], [published_ms for published_ms, _ in sizes]

        of_teachers = {
            lease: margins_from("teacher_leases.margins", text)
            for lease, text in self.db.query(
                "SELECT lease, margins FROM teacher_leases WHERE margins IS NOT NULL", of="teacher_leases"
            )
        }

        def of(audit: AuditRow) -> Sequence[Margin]:
            if audit.lease in of_teachers:
                return of_teachers[audit.lease]
            if place := bisect_right(since, audit.at_ms):
                return kept[place - 1][1]
            return margins_of(sizes[max(0, bisect_right(times, audit.at_ms) - 1)][1] // 2 if sizes else 0)

        return of


def _audit(row: tuple[Any, ...]) -> AuditRow:
    """Return the audit in a row of AUDITS."""
    return AuditRow(
        lease=LeaseId(row[0]), peer=PeerId(row[1]), at_ms=row[2], tokens=row[3],
        counts=counts_from("audits.above", row[4]), worst=row[5], evidence=row[6], passed=bool(row[7]), detail=row[8],
    )  # fmt: skip
