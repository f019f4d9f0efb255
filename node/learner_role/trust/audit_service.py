"""Decide which deliveries are audited, and act on the results: release, reject, quarantine or ban.

Invariants:

- A group of a peer that is not trusted yet, or that has used up its credit since its last audit
  (`learner.trust.unaudited_exposure`), is trained on only after its audit.
- The result of an audit is on disk before anything follows from it. One thing comes before: a group that failed is
  taken out of the buffer.
- A lease is audited once.
- The trio thread never waits for the disk.
"""

from __future__ import annotations

import hmac
import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

import trio

from learner.ledger.rows import AuditRow
from learner.ledger.trust import AuditOutcome
from learner.rollouts.admission import AdmittedRecord, GrantedLease, manifests_of
from learner.rollouts.buffer import Batch
from learner.trust.audit_history import SUSPICION_REASON, AuditHistory, Finding, after, is_audited
from learner.trust.audit_queue import Agenda, Work, work_of
from learner.trust.ban_evidence import Found, Margin, count_above, log_evidence
from learner.trust.margins import Arithmetic, Experts, margins_of
from learner.trust.near_duplicates import NearCopies, sketch
from learner.trust.outliers import Unusual
from learner.trust.unaudited_exposure import Exposure
from node.learner_role.shared.context import Service
from node.learner_role.shared.signals import PeerBanned, RecordsAdmitted, RecordsBelieved
from node.learner_role.trust.peer_standings import PeerStandings
from node.learner_role.trust.receipt_revisions import BANNED_REASON, Late, ReceiptRevisions, Rejection, banned_detail
from node.learner_role.trust.version_retention import RetentionReason, VersionRetention
from protocol.core.ids import LeaseId, ManifestHash, PeerId, short
from protocol.work import Rule, SignedRecord

AUDIT_REASON = "audit"
"""Why a group is dropped if one of its leases failed its audit, or was not audited in time."""

UNKNOWN_PARAMETERS = 1 << 62
"""Parameters of a model of unknown size, for which margins are the widest."""

SPOILED_REMEMBERED = 4096
"""Most groups that are known to be rejected before they are complete: more than are ever under way."""

WRITTEN_TOGETHER = 256
"""Most audits in one transaction. One request to the engine may end every audit on the agenda (MAX_WAITING). Other
writers of the ledger wait for one transaction, which takes some 10 ms with this many."""


class GroupDecision(Enum):
    """The decision about a complete group: it waits for its batch, or for an audit first, or is dropped."""

    ACCEPT = "accept"
    HOLD = "hold"
    DROP = "drop"


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """The result of one audit. `known`: the peer's history after it. `above`: contexts beyond their margins."""

    work: Work
    known: AuditHistory
    finding: Finding
    row: AuditRow
    above: int

    @property
    def is_dropped_on_suspicion(self) -> bool:
        """Return whether the group waited for this audit and passed, but its peer is suspected: no training on it."""
        return self.work.waits and self.finding.passed and self.finding.suspected

    @property
    def is_plain(self) -> bool:
        """Return whether the group passed and nothing is undone: no group withdrawn or dropped, no receipt revised."""
        return self.finding.passed and not self.is_dropped_on_suspicion


@dataclass(kw_only=True, eq=False)
class AuditService(Service):
    """Decides about audits, and acts on their results.

    Args:
        kept: the versions that are kept for audits.
        standings: what is known of each peer.
        revisions: revised receipts.
        floor: minimum fraction of each peer's groups to audit.
        arithmetic: the number format in which all engines of the swarm compute.
        experts: what is known of the experts that made a token.
        agenda: the audits that wait.
        copies: finds completions that repeat others.
        unusual: finds peers that differ from the swarm.
        exposure: counts groups that were accepted without an audit.
        added: set when an audit is added to the agenda.
    """

    kept: VersionRetention
    standings: PeerStandings
    revisions: ReceiptRevisions
    floor: float
    arithmetic: Arithmetic = Arithmetic.ANY
    experts: Experts = Experts.NONE
    agenda: Agenda = field(default_factory=Agenda)
    copies: NearCopies = field(default_factory=NearCopies)
    unusual: Unusual = field(default_factory=Unusual)
    exposure: Exposure = field(default_factory=Exposure)
    added: trio.Event = field(default_factory=trio.Event)
    _under_audit: set[LeaseId] = field(default_factory=set)
    """Leases on the agenda, or judged but not written yet: at most MAX_WAITING and those of one request."""
    _pending: dict[LeaseId, set[LeaseId]] = field(default_factory=dict)
    _unusual: set[PeerId] = field(default_factory=set)
    _spoiled: dict[LeaseId, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kept.version_lost.subscribe(self.lose)
        self._salt = int.from_bytes(hmac.digest(self.identity.secret, b"near copies", "sha256")[:8], "big")

    @property
    def audits(self) -> bool:
        return self.standings.audits

    # Who comes

    async def welcome(self, peer: PeerId) -> str:
        """Recall what is known of a peer that wants to join. Return why it is banned, empty if it is not."""
        async with self.standings.lock:
            banned = (await self.standings.recall(peer)).banned
            if not banned:
                await self.revisions.recall(peer)
            for gone in self.standings.forget_others({peer, *self.agenda.peers}):
                self.exposure.forget(gone)
                self._unusual.discard(gone)
        return banned

    def forget(self, peer: PeerId) -> None:
        self.revisions.forget(peer)
        self._unusual.discard(peer)

    def under_audit(self) -> frozenset[LeaseId]:
        """Return the leases whose audits are not over, or whose results are not written."""
        return frozenset(self._under_audit)

    # What comes

    def sketches(self, records: Sequence[SignedRecord]) -> tuple[frozenset[int], ...]:
        """Return the sketches of these completions, which reveal copies. May run on any thread."""
        return tuple(sketch(record.tokens, self._salt) for record in records) if self.audits else ()

    def admit(
        self,
        granted: GrantedLease,
        group: Sequence[AdmittedRecord],
        sketches: Sequence[frozenset[int]] = (),
        *,
        returned: bool = False,
    ) -> bool:
        """Take in a delivered lease of which every record was admitted, and put its audit on the agenda if it is due.

        Returns whether its group waits for the audit. If so, `records_believed` is emitted once it has passed.

        Args:
            granted: the lease.
            group: its records.
            sketches: the sketches of the records.
            returned: whether the lease was returned unfinished. Lengths and rewards of such a lease, or of one
                that continues it, say nothing about the peer.
        """
        if self._is_rejected(granted):
            is_part = granted.place is None or self.capacity.episodes.is_open(granted.root)
            self._reject_late(granted, is_part=is_part)
            return True
        if not self.audits:
            return False
        odd = self._is_odd(granted, group, sketches)
        if not returned:
            self.signals.records_admitted.emit(RecordsAdmitted(granted=granted, group=group))
            odd |= granted.lease.start == 0 and self._is_unusual(granted, group)
        return self._believe_or_audit(granted, group, odd=odd)

    def _is_rejected(self, granted: GrantedLease) -> bool:
        """Return whether the peer was banned after its records were taken from the inbox, so that they are rejected."""
        return bool(self.standings.remember(granted.peer).banned)

    def _reject_late(self, granted: GrantedLease, *, is_part: bool) -> None:
        """Reject the admitted records of a banned peer's lease, which is written soon.

        If the lease `is_part` of an unfinished group, that group is not trained on.
        """
        if is_part:
            self._spoil(granted.root)
        why = banned_detail(self.standings.remember(granted.peer).banned)
        root = granted.root if is_part else None
        self.revisions.reject_late(Late(lease=granted.id, root=root, why=why))

    def _believe_or_audit(self, granted: GrantedLease, group: Sequence[AdmittedRecord], *, odd: bool) -> bool:
        """Put the audit of a lease on the agenda if it is due. Return whether its group waits for the audit."""
        known = self.standings.remember(granted.peer)
        oldest = min((span for one in group for span in one.signed.record.spans), key=lambda span: span.version)
        version = ManifestHash(oldest.manifest)
        waits = known.waits or self.exposure.must_wait(granted.peer, known.passed)
        is_due = waits or (self.exposure.is_due(granted.peer, known.passed) and granted.peer not in self.agenda.peers)
        if not is_audited(known, self.identity.secret, granted.id, version, floor=self.floor, odd=odd or is_due):
            self.exposure.came(granted.peer, granted.id, believed=True)
            return False
        work = work_of(granted, group, waits=waits)
        self.exposure.came(granted.peer, granted.id, believed=not waits)
        if self.experts is Experts.TOLD and not all(passage.experts for passage in work.passages):
            # It was leased before a restart that began to request experts, and margins are narrower since.
            self._drop_unaudited([work])
            return work.waits
        if not self.kept.keep(work.manifests, _use_of(work)):
            self._drop_unaudited([work])
            return work.waits
        if work.waits:
            self._pending.setdefault(work.root, set()).add(work.lease)
        self._under_audit.add(work.lease)
        self._drop_unaudited(self._unlist(self.agenda.add(work)))
        self.added.set()
        return work.waits

    def _is_odd(
        self, granted: GrantedLease, group: Sequence[AdmittedRecord], sketches: Sequence[frozenset[int]]
    ) -> bool:
        """Return whether a completion repeats one of another lease, which the seeds of two honest peers never do.

        The peer that was copied looks like the one that copied, so neither is blamed: an audit decides.
        """
        found = None
        for one, mine in zip(group, sketches, strict=False):
            told = self.copies.seen(granted.id, one.signed.record.index, mine, sum(one.signed.logprobs))
            found = found or told
        if found is not None:
            self.events.emit("near_copy", peer=granted.peer, lease=short(granted.id), of=short(found))
        return found is not None

    def _is_unusual(self, granted: GrantedLease, group: Sequence[AdmittedRecord]) -> bool:
        """Return whether the peer's recent groups, including this one, are unlike the swarm's."""
        rewards = [one.reward for one in group if one.reward is not None]
        tokens = [len(one.signed.tokens) for one in group]
        self.unusual.delivered(granted.peer, granted.lease.task, rewards, tokens)
        return self._note_unusual(granted.peer)

    def note_trained(self, batch: Batch, apart: Sequence[float]) -> None:
        """Note the differences of a batch that was trained on.

        `apart`: for each completion, in order, the mean |log pi - log mu| over its tokens in nats, NaN if it had no
        gradient. A completion with turns of several peers says nothing about one of them.
        """
        if not self.audits:
            return
        begin = 0
        for group in batch.groups:
            begin, mine = begin + len(group.completions), apart[begin : begin + len(group.completions)]
            known = [value for value in mine if math.isfinite(value)]
            if known and all(one.turns == 1 for one in group.completions):
                self.unusual.trained(group.peer, batch.lags[group.lease], math.fsum(known) / len(known))
                self._note_unusual(group.peer)

    def _note_unusual(self, peer: PeerId) -> bool:
        """Return whether the peer is unusual. An event is emitted when it becomes so."""
        told = self.unusual.describe(peer)
        if told is None:
            self._unusual.discard(peer)
        elif peer not in self._unusual:
            self._unusual.add(peer)
            self.events.emit("peer_unusual", peer=peer, reason=told)
        return told is not None

    def decide(self, root: LeaseId) -> GroupDecision:
        """Return the decision about the complete group that this lease opened."""
        if root in self._spoiled:
            del self._spoiled[root]
            return GroupDecision.DROP
        return GroupDecision.HOLD if root in self._pending else GroupDecision.ACCEPT

    async def recover(self, leases: Sequence[tuple[GrantedLease, Sequence[AdmittedRecord]]]) -> None:
        """Clear the agenda, and take up these leases, because the chain was replaced.

        Their records were admitted and not trained on, or a step that was trained on them is undone. Groups that need
        an audit wait for it again, and those that failed are not trained on. For the others, `records_believed` is
        emitted. The checks for selective delivery and unusual peers do not count them a second time.
        """
        async with self.standings.lock:
            known, audited = await trio.to_thread.run_sync(self._recall_all, [granted for granted, _ in leases])
            self._unlist(self.agenda.clear())
            self.exposure.clear()
            self._pending.clear()
            self._spoiled.clear()
            self.standings.note_read(known)
            for granted, group in leases:
                if self._is_rejected(granted):
                    self._reject_late(granted, is_part=True)
                    continue
                if (passed := audited.get(granted.id, None if self.audits else True)) is None:
                    passed = not self._believe_or_audit(granted, group, odd=False)
                elif not passed:
                    self._spoil(granted.root)
                if passed:
                    self._believe(granted.peer, manifests_of(group))

    # What is found

    def lose(self, manifest: ManifestHash) -> None:
        """Drop the audits of a version that is gone, or will be evicted, since its records cannot be audited."""
        self._drop_unaudited(self._unlist(self.agenda.lost(manifest)))

    def give_up(self, lease: LeaseId) -> None:
        """Drop the audit of a lease that the engine cannot judge."""
        self._drop_unaudited(self._unlist(self.agenda.give_up(lease)))

    async def conclude(self, over: Sequence[tuple[Work, Sequence[Found]]]) -> None:
        """Write the results of audits, then act on them.

        Consecutive plain passes are written together. Before any other result, those ahead of it are written and acted
        on. If the ledger fails, or this is cancelled, nothing follows from results that were not written.
        """
        rest = deque(over)
        while rest:
            async with self.standings.lock:  # released between transactions, so that a joining peer need not wait long
                await self._conclude_next(rest)

    async def _conclude_next(self, rest: deque[tuple[Work, Sequence[Found]]]) -> None:
        """Take the audits out of `rest` up to and including the first that is no plain pass, and conclude them."""
        margins = await self._margins_in_force()
        taken, judged = await self._judge_next(rest, margins)
        last = judged.pop() if judged and not judged[-1].is_plain else None
        if judged:
            await self._write_passed(judged, margins)
        if last is not None:
            await self._take_back(last, margins)
        self._under_audit.difference_update(work.lease for work in taken if work.lease not in self.agenda)

    async def _judge_next(
        self, rest: deque[tuple[Work, Sequence[Found]]], margins: Sequence[Margin]
    ) -> tuple[list[Work], list[Conclusion]]:
        """Take the audits out of `rest` that are concluded together. Return them, and the conclusions to write.

        Only the last conclusion may be no plain pass.
        """
        leases = [work.lease for work, _ in islice(rest, WRITTEN_TOGETHER)]
        audited = set(await trio.to_thread.run_sync(self.ledger.trust.audits_of, leases))
        taken, judged = list[Work](), list[Conclusion]()
        known = dict[PeerId, AuditHistory]()  # includes audits that passed here and are not written yet
        while rest and len(taken) < WRITTEN_TOGETHER and (not judged or judged[-1].is_plain):
            await trio.lowlevel.checkpoint()  # an audit of many tokens takes some ms to count
            work, found = rest.popleft()
            taken.append(work)
            self._unpin(work)
            if work.lease in audited:
                continue  # it was put on the agenda again before it was written, when the chain was replaced
            before = known.get(work.peer) or await self.standings.recall(work.peer)
            if before.banned:  # its records were rejected with the ban
                self._reject_roots([work.root])
                continue
            judged.append(self._judge(work, found, before, margins))
            known[work.peer] = judged[-1].known
            audited.add(work.lease)
        return taken, judged

    def _judge(self, work: Work, found: Sequence[Found], before: AuditHistory, margins: Sequence[Margin]) -> Conclusion:
        """Return the result of an audit of a peer with the history `before`, and change nothing."""
        counted = count_above(found, margins)
        known, finding = after(before, counted, margins)
        row = AuditRow(
            lease=work.lease,
            peer=work.peer,
            at_ms=self.context.signing_ms(),
            tokens=counted.tokens,
            counts=counted.counts,
            worst=max((one.gap for one in found if math.isfinite(one.gap)), default=0.0),
            evidence=log_evidence(known.history),
            passed=finding.passed,
            detail=finding.detail,
        )
        return Conclusion(work=work, known=known, finding=finding, row=row, above=counted.above(margins))

    async def _write_passed(self, passed: Sequence[Conclusion], margins: Sequence[Margin]) -> None:
        """Write these plain passes together, and only then note and act on them."""
        audits = [AuditOutcome(row=one.row, known=one.known) for one in passed]
        await trio.to_thread.run_sync(lambda: self.ledger.trust.audited(audits, margins=margins))
        for one in passed:
            self._note(one)
            self._follow(one, {})

    async def _take_back(self, one: Conclusion, margins: Sequence[Margin]) -> None:
        """Write an audit that is no plain pass. Groups that must not be trained on leave the buffer first."""
        self._note(one)
        wrong = self._reject(one)
        if one.finding.convicted:
            wrong |= await self.withdraw_parts(one.work.peer)
        self._follow(one, await trio.to_thread.run_sync(self._write, one, wrong, margins))

    def _note(self, one: Conclusion) -> None:
        self.standings.note(one.work.peer, one.known)
        if one.finding.passed:
            self.exposure.passed(one.work.peer, one.work.lease)

    async def _margins_in_force(self) -> tuple[Margin, ...]:
        """Return the margins for the newest version; after a start, for the last one published before."""
        if (newest := self.state.published) is None:
            manifest = await trio.to_thread.run_sync(self.ledger.training.newest_manifest)
            newest = None if manifest is None else self.context.store.manifest(manifest)
        return margins_of(UNKNOWN_PARAMETERS if newest is None else newest.parameters, self.arithmetic, self.experts)

    def _reject(self, one: Conclusion) -> set[LeaseId]:
        """Take the groups out of the buffer that must not be trained on, and return the leases that opened them.

        They are the audited group, and all groups of the same peer that wait for no audit. Groups that a step has
        taken stay as they were.
        """
        peer, finding = one.work.peer, one.finding
        wrong = self._reject_roots([one.work.root], SUSPICION_REASON if finding.passed else AUDIT_REASON)
        if finding.convicted:
            return wrong | self.withdraw(peer)
        suspected = self.capacity.buffer.withdraw(
            lambda group: group.peer == peer and group.lease not in self._pending, SUSPICION_REASON
        )
        return wrong | {group.lease for group in suspected}

    def withdraw(self, peer: PeerId) -> set[LeaseId]:
        """Give up the groups of this peer that are known here, and return the leases that opened them."""
        gone = {group.lease for group in self.capacity.buffer.withdraw(lambda one: one.peer == peer, BANNED_REASON)}
        for lease in gone:
            self._pending.pop(lease, None)
        return gone | self._reject_roots([work.root for work in self._unlist(self.agenda.withdraw(peer))])

    async def withdraw_parts(self, peer: PeerId) -> set[LeaseId]:
        """Give up all groups that this peer contributed to, and return the leases that opened them.

        Its turns may be parts of groups that others opened, or that are not complete, which only the ledger knows.
        """
        return self._reject_roots(await trio.to_thread.run_sync(self.ledger.trust.untrained_of, peer))

    def _reject_roots(self, roots: Iterable[LeaseId], reason: str = AUDIT_REASON) -> set[LeaseId]:
        """Prevent that the groups which these leases opened are trained on, from the buffer or when they are complete.

        Returns the leases for which that worked. For the others it is too late.
        """
        wrong = set(roots)
        gone = {group.lease for group in self.capacity.buffer.withdraw(lambda one: one.lease in wrong, reason)}
        for root in wrong:
            was_pending = self._pending.pop(root, None) is not None
            if root not in gone and (was_pending or self.capacity.episodes.is_open(root)):
                self._spoil(root)
        return gone | {root for root in wrong if root in self._spoiled}

    def _write(self, one: Conclusion, wrong: Collection[LeaseId], margins: Sequence[Margin]) -> dict[LeaseId, bytes]:
        """On a thread: write an audit that is no plain pass. Return the revised receipts, all of the audited peer.

        `wrong`: the leases that opened the groups which are not trained on because of it.
        """
        root, row, known = one.work.root, one.row, one.known
        revised = dict[LeaseId, Rejection]()
        dropped = dict.fromkeys(wrong, BANNED_REASON if known.banned else SUSPICION_REASON)
        if not row.passed and (root in wrong or self.ledger.trust.is_dropped(root)):
            dropped[root] = AUDIT_REASON
            failed = {row.lease}
            if not known.banned:  # its other records in this group, unless they passed an audit of their own
                own = self.ledger.trust.parts_of(row.peer, [root])
                failed |= own - {lease for lease, has_passed in self.ledger.trust.audits_of(own).items() if has_passed}
            revised |= self.revisions.rejections(failed, Rule.AUDIT, row.detail, row.at_ms)
        if known.banned:
            others = self.ledger.trust.parts_of(row.peer, wrong) - set(revised)
            revised |= self.revisions.rejections(others, Rule.BANNED, banned_detail(row.detail), row.at_ms)
        outcome = AuditOutcome(row=row, known=known, revised=revised, dropped=dropped)
        self.ledger.trust.audited([outcome], margins=margins)
        return {lease: raw for lease, (_, _, raw) in revised.items()}

    def _follow(self, one: Conclusion, receipts: dict[LeaseId, bytes]) -> None:
        """Act on a result after it is written, and tell the peer about its revised `receipts`."""
        work, finding, row = one.work, one.finding, one.row
        self.events.emit(
            "audited",
            peer=work.peer,
            lease=short(work.lease),
            tokens=row.tokens,
            above=one.above,
            worst=round(row.worst, 5),
            evidence=round(row.evidence, 3),
            passed=finding.passed,
            standing=one.known.standing.value,
        )
        self.revisions.announce(work.peer, receipts)
        if finding.convicted:
            self.events.emit("peer_banned", peer=work.peer, lease=short(work.lease), reason=finding.detail)
            self.signals.peer_banned.emit(PeerBanned(peer=work.peer, why=one.known.banned))
        elif not finding.passed:
            self.events.emit("audit_failed", peer=work.peer, lease=short(work.lease), reason=finding.detail)
        elif one.is_dropped_on_suspicion:
            evidence = round(row.evidence, 3)
            self.events.emit("group_doubted", peer=work.peer, lease=short(work.lease), evidence=evidence)
        elif work.waits:
            self._believe(work.peer, work.manifests)
            self._release(work)
        if not one.is_plain:
            self.signals.peer_judged.emit(work.peer)
        self.standings.set_quota(work.peer)
        self.state.notify()

    def _believe(self, peer: PeerId, manifests: Collection[ManifestHash]) -> None:
        self.signals.records_believed.emit(RecordsBelieved(peer=peer, manifests=manifests))

    def _release(self, work: Work) -> None:
        """End the wait of this audit's group. If the group was given up, there is nothing to do."""
        if (pending := self._pending.get(work.root)) is None:
            return
        pending.discard(work.lease)
        if not pending:
            del self._pending[work.root]
            self.capacity.buffer.release(work.root)

    def _drop_unaudited(self, works: Iterable[Work]) -> None:
        """Drop audits that cannot be made, which is no peer's fault. Groups that waited for them are not trained on."""
        roots = set()
        for work in works:
            if work.waits:
                self.exposure.gone(work.peer, work.lease)
                roots.add(work.root)
                self._pending.setdefault(work.root, set())
        if roots:
            self._reject_roots(roots)
            self.state.notify()

    def _spoil(self, root: LeaseId) -> None:
        """Note that an incomplete group must not be trained on when it is complete."""
        self._spoiled[root] = None
        while len(self._spoiled) > SPOILED_REMEMBERED:
            del self._spoiled[next(iter(self._spoiled))]

    def _recall_all(self, leases: Sequence[GrantedLease]) -> tuple[dict[PeerId, AuditHistory], dict[LeaseId, bool]]:
        peers = {granted.peer for granted in leases}
        return self.ledger.trust.confidence_of(peers), self.ledger.trust.audits_of([granted.id for granted in leases])

    def _unlist(self, works: Iterable[Work]) -> list[Work]:
        """Return the same audits, after releasing the versions that were kept for them."""
        done = list(works)
        for work in done:
            self._unpin(work)
            self._under_audit.discard(work.lease)
        return done

    def _unpin(self, work: Work) -> None:
        self.kept.release(work.manifests, _use_of(work))


def _use_of(work: Work) -> RetentionReason:
    return RetentionReason.AWAITED if work.waits else RetentionReason.AUDIT
