"""Audit the scores of teacher nodes with the learner's own copy of the teacher.

The sequential test is that of rollouts (`learner.trust.ban_evidence`). It compares only log probabilities, because a
teacher generates no tokens.

Invariants:

- The result of an audit is on disk before anything follows from it.
- Scores that failed an audit are never trained on.
- After a ban for any reason, no scores of the peer are trained on, except those in a batch already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import trio

from learner.ledger.rows import AuditRow
from learner.ledger.trust import AuditOutcome
from learner.rollouts.score_leases import Scored, ScoreLeases
from learner.trust.audit_history import AuditHistory, Finding, after
from learner.trust.ban_evidence import Found, Margin, count_above, log_evidence
from node.learner_role.shared.context import Service
from node.learner_role.shared.signals import PeerBanned
from node.learner_role.trust.peer_standings import PeerStandings
from node.learner_role.trust.receipt_revisions import Late, ReceiptRevisions, banned_detail
from protocol.core.ids import LeaseId, PeerId, short
from protocol.scores import MIN_SCORE
from protocol.work import Rule

VERSION, TEACHER = "the version named", "the teacher"
"""What the detail of an audit of rollouts says that it compares with, and what this audit compares with."""


def found_of(scored: Scored, ours: Sequence[Sequence[float]], temperature: float) -> list[Found]:
    """Return the difference of each score from the learner's own, in nats, scaled as margins expect.

    Margins are for temperatures of 1 or below (`node.learner_role.trust.auditor`).
    """
    heat = min(1.0, temperature)
    return [
        Found(gap=0.0, lead=math.inf, apart=heat * abs(max(own, MIN_SCORE) - said))
        for mine, theirs in zip(ours, scored.scores, strict=True)
        for own, said in zip(mine, theirs, strict=True)
    ]


@dataclass(kw_only=True, eq=False)
class TeacherAudits(Service):
    """Judges the scores that wait for an audit.

    Args:
        leases: the scores of teacher nodes that are leased, or wait.
        disown: withdraws all scores of a peer that no batch has, and returns their leases.
        standings: what is known of each peer.
        revisions: revised receipts.
        margins: the margins for a model of the teacher's size.
        temperature: the sampling temperature.
    """

    leases: ScoreLeases
    disown: Callable[[PeerId], set[LeaseId]]
    standings: PeerStandings
    revisions: ReceiptRevisions
    margins: Sequence[Margin]
    temperature: float

    def __post_init__(self) -> None:
        self.revisions.takes_back = self.disown
        self.signals.peer_banned.subscribe(self._disown)

    async def conclude(self, scored: Scored, ours: Sequence[Sequence[float]]) -> None:
        """Judge an audit, write the result, and act on it. `ours`: the log probabilities of the learner's teacher."""
        work = scored.work
        async with self.standings.lock:
            before = await self.standings.recall(work.peer)
            if before.banned:
                self.leases.put_back(work)
            if work.id not in self.leases.waiting:  # a ban has withdrawn it
                return
            known, finding, row = self._judge(scored, before, ours)
            if not finding.passed:
                self.leases.put_back(work)
            gone = self.disown(work.peer) if finding.convicted else set[LeaseId]()
            self.standings.note(work.peer, known)
            receipts = await trio.to_thread.run_sync(self._write, scored, known, row, gone)
            self._follow(scored, known, finding, row, receipts)

    def _judge(
        self, scored: Scored, before: AuditHistory, ours: Sequence[Sequence[float]]
    ) -> tuple[AuditHistory, Finding, AuditRow]:
        """Return the result of the audit, and change nothing."""
        found = found_of(scored, ours, self.temperature)
        counted = count_above(found, self.margins)
        known, finding = after(before, counted, self.margins)
        finding = replace(finding, detail=finding.detail.replace(VERSION, TEACHER))
        known = replace(known, banned=known.banned.replace(VERSION, TEACHER))
        row = AuditRow(
            lease=scored.work.id,
            peer=scored.work.peer,
            at_ms=self.context.signing_ms(),
            tokens=counted.tokens,
            counts=counted.counts,
            worst=max((one.apart for one in found if math.isfinite(one.apart)), default=0.0),
            evidence=log_evidence(known.history),
            passed=finding.passed,
            detail=finding.detail,
        )
        return known, finding, row

    def _write(
        self, scored: Scored, known: AuditHistory, row: AuditRow, gone: Collection[LeaseId]
    ) -> dict[LeaseId, bytes]:
        """On a thread: write the audit, and receipts that reject what was admitted. Returns those receipts."""
        revised = self.revisions.rejections(gone, Rule.BANNED, banned_detail(known.banned), row.at_ms)
        if not row.passed:
            revised |= self.revisions.rejections([row.lease], Rule.AUDIT, row.detail, row.at_ms)
        outcome = AuditOutcome(row=row, known=known, revised=revised)
        self.ledger.trust.scores_audited(outcome, self.margins, scored.work.raw, scored.raw)
        return {lease: raw for lease, (_, _, raw) in revised.items()}

    def _follow(
        self, scored: Scored, known: AuditHistory, finding: Finding, row: AuditRow, receipts: dict[LeaseId, bytes]
    ) -> None:
        """After the result is written: tell the peer, and act on it."""
        work = scored.work
        self.events.emit(
            "scores_audited",
            peer=work.peer,
            lease=short(work.id),
            tokens=row.tokens,
            worst=round(row.worst, 5),
            evidence=round(row.evidence, 3),
            passed=finding.passed,
            standing=known.standing.value,
        )
        self.revisions.announce(work.peer, receipts)
        if finding.passed:
            self.leases.use(scored)
        if finding.convicted:
            self.events.emit("peer_banned", peer=work.peer, lease=short(work.id), reason=finding.detail)
            self.signals.peer_banned.emit(PeerBanned(peer=work.peer, why=known.banned))
        elif not finding.passed:
            self.events.emit("audit_failed", peer=work.peer, lease=short(work.id), reason=finding.detail)
        if not finding.passed:
            self.signals.peer_judged.emit(work.peer)
        self.state.notify()

    def _disown(self, news: PeerBanned) -> None:
        """Withdraw the scores of a banned peer. Those that its ban has not rejected yet are rejected soon."""
        if gone := self.disown(news.peer):
            for lease in gone:
                self.revisions.reject_late(Late(lease=lease, root=None, why=banned_detail(news.why)))
            self.state.notify(leasable=False)
