"""What the learner's own copy of the teacher says of scores that a teacher node delivered, and what follows.

The sequential test is that of rollouts (`learner.trust.ban_evidence`), of log probabilities alone: a teacher draws no
tokens. What always holds: what an audit found is on disk before anything follows from it; scores that failed are never
learnt from; of a peer that is banned, for whatever reason, nothing is learnt from any more that no batch has taken.
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
"""What an audit of rollouts compares with, as its detail says it, and what this one does."""


def found_of(scored: Scored, ours: Sequence[Sequence[float]], temperature: float) -> list[Found]:
    """How far each score is from the learner's own, in nats as margins have them: of temperature 1 or below
    (`node.learner_role.trust.auditor`)."""
    heat = min(1.0, temperature)
    return [
        Found(gap=0.0, lead=math.inf, apart=heat * abs(max(own, MIN_SCORE) - said))
        for mine, theirs in zip(ours, scored.scores, strict=True)
        for own, said in zip(mine, theirs, strict=True)
    ]


@dataclass(kw_only=True, eq=False)
class TeacherAudits(Service):
    """See the module's paragraph. `disown` takes back all that a peer said, and returns the leases of that; `margins`
    are those of a model of the teacher's size; `temperature` is that of the sampling."""

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
        """The audit is over: the learner's teacher gives the tokens the log probabilities `ours`. Write what that came
        to, and do what follows."""
        work = scored.work
        async with self.standings.lock:
            before = await self.standings.recall(work.peer)
            if before.banned:
                self.leases.put_back(work)
            if work.id not in self.leases.waiting:  # its ban has taken it back
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
        """What the audit came to. Nothing changes by that."""
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
        """On a thread: the audit, and receipts that say what is refused after all. Returns those."""
        revised = self.revisions.refusals(gone, Rule.BANNED, banned_detail(known.banned), row.at_ms)
        if not row.passed:
            revised |= self.revisions.refusals([row.lease], Rule.AUDIT, row.detail, row.at_ms)
        outcome = AuditOutcome(row=row, known=known, revised=revised)
        self.ledger.trust.scores_audited(outcome, self.margins, scored.work.raw, scored.raw)
        return {lease: raw for lease, (_, _, raw) in revised.items()}

    def _follow(
        self, scored: Scored, known: AuditHistory, finding: Finding, row: AuditRow, receipts: dict[LeaseId, bytes]
    ) -> None:
        """It is written: tell the peer, and go by it."""
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
        """It is banned. What it said is learnt from no more; what was not taken back with the ban is refused soon."""
        if gone := self.disown(news.peer):
            for lease in gone:
                self.revisions.refuse_late(Late(lease=lease, root=None, why=banned_detail(news.why)))
            self.state.notify(leasable=False)
