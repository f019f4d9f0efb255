"""Judge deliveries, from the inbox to the rollout buffer: check them, get rewards, write verdicts, acknowledge.

Checking and writing happen on a worker thread, one after the other, so that a flood of records never stops the learner
from communicating. Rewards are requested from `ask`, which may take as long as it needs. Other deliveries are judged
meanwhile, up to MAX_UNDER_WAY at a time, and each is written once its rewards are known.

Invariants:

- A receipt is sent only after its verdicts are on disk.
- A delivery that was answered before, or is being judged, gets the same receipt. So a repeated delivery counts once.
- Only complete, admitted groups reach the buffer, and each of their episodes is over.
- If a lease is returned, its completions count, and the rest waits for another peer.
- A delivery that arrived in time does not become late by waiting here.
- Nothing is judged before the chain is known. Otherwise a restarted learner would reject records of its own versions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import trio

from learner.ledger.rows import RecordRow
from learner.rollouts.admission import (
    CheckedDelivery,
    GrantedLease,
    JudgedDelivery,
    Terms,
    check_delivery,
    manifests_of,
)
from learner.rollouts.buffer import UNINFORMATIVE, VOID
from learner.rollouts.environment import Ask, Question, Reply, Said
from learner.rollouts.episodes import utterance_of
from learner.rollouts.reward_parts import decisive
from learner.scheduling import lease_backoff
from node.learner_role.scheduling.lease_service import LeaseService
from node.learner_role.scheduling.peer_recorder import PeerRecorder
from node.learner_role.shared.context import Service
from node.learner_role.shared.signals import LeaseClosed, RecordsBelieved
from node.learner_role.trust.audit_service import AUDIT_REASON, AuditService, GroupDecision
from node.reports.model.verdict_meanings import BLAMED
from node.tasks.task_suite import TaskSuite
from protocol.core.envelope import sign
from protocol.core.ids import LeaseId, PeerId, PolicyVersion, RecordId, short
from protocol.versions.formats import STORED
from protocol.work import Acknowledgement, Handback, InboxFull, Receipt, Rule
from swarm.transport.error_groups import first_cause
from swarm.work.server import INBOX_RETRY_MS, Incoming

MAX_UNDER_WAY = 32
"""Most deliveries that are checked, rewarded or written at a time. A slow delivery delays others only if there are this
many slow ones. Verdicts that are known at the time of a write are committed together, with one fsync."""

MAX_REPEATS = 4
"""Most repeats of a delivery that is being judged: more than a node sends whose connection breaks sometimes. Repeats
take no room, because otherwise a peer could block all others with them. Beyond this, the oldest must be sent again."""


@dataclass(frozen=True, kw_only=True)
class _HandedIn:
    """A delivery, and what is known of its lease.

    Args:
        incoming: the delivery.
        granted: its lease, if that is open.
        said: the turns before, in the episodes that the lease continues.
        digests: digests of the environments' answers in those episodes.
        before: the tokens that others generated of the turn that the lease continues.
        begun: the version with which the lease was begun.
        was_recalled: whether the lease was recalled.
        arrived_ms: the time at which the delivery arrived.
    """

    incoming: Incoming
    granted: GrantedLease | None
    said: Said | None
    digests: tuple[str, ...]
    before: tuple[int, ...]
    begun: PolicyVersion | None
    was_recalled: bool
    arrived_ms: int

    @property
    def is_handback(self) -> bool:
        """Return whether its peer returns the lease unfinished."""
        return isinstance(self.incoming.delivery, Handback)


@dataclass(frozen=True, kw_only=True)
class _Checked:
    """A delivery that was checked at `checked_ms` against `terms`.

    A delivery that was answered before has that `receipt` instead. `sketches` are those of the admitted records.
    """

    handed_in: _HandedIn
    delivery: CheckedDelivery | None
    terms: Terms
    checked_ms: int
    receipt: bytes = b""
    sketches: tuple[frozenset[int], ...] = ()

    @property
    def questions(self) -> Sequence[Question]:
        return self.delivery.questions if self.delivery else ()


_Key = tuple[LeaseId, PeerId]


def _key(incoming: Incoming) -> _Key:
    return LeaseId(incoming.delivery.lease), incoming.peer


def _debt_of(judged: JudgedDelivery, *, was_recalled: bool) -> int:
    """Return how many leases the peer owes for this one if nothing of it was admitted."""
    rules = {verdict.rule for verdict in judged.verdicts}
    if rules & BLAMED - {Rule.INCOMPLETE} or rules == {Rule.INCOMPLETE}:  # records beside a rejected one get INCOMPLETE
        return lease_backoff.BLAMED
    return 0 if was_recalled else 1


@dataclass(kw_only=True, eq=False)
class _UnderWay:
    """The deliveries that are being judged while `judging` is held. There is `room` for so many more.

    `heard`: deliveries that may be written. `repeats`: the repeated deliveries of each open lease that is being judged.
    """

    room: int = MAX_UNDER_WAY
    heard: list[tuple[_Checked, Sequence[Reply]]] = field(default_factory=list)
    repeats: dict[_Key, deque[Incoming]] = field(default_factory=dict)
    is_closed: bool = False
    waits: trio.CancelScope = field(default_factory=trio.CancelScope)

    def is_repeat(self, incoming: Incoming) -> bool:
        """Return whether it repeats a delivery that is being judged. If so, it will get the same answer."""
        if (repeats := self.repeats.get(_key(incoming))) is None:
            return False
        if len(repeats) == MAX_REPEATS:
            oldest = repeats.popleft()
            oldest.answer(InboxFull(lease=oldest.delivery.lease, retry_after_ms=INBOX_RETRY_MS))
        repeats.append(incoming)
        return True

    def hear(self, checked: _Checked, replies: Sequence[Reply]) -> None:
        """Note that a delivery may be written, and wake the loop."""
        self.heard.append((checked, replies))
        self.waits.cancel()


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The answer to a delivery. `judged` is None if the delivery was judged before."""

    handed_in: _HandedIn
    judged: JudgedDelivery | None
    receipt: bytes
    sketches: tuple[frozenset[int], ...] = ()

    @property
    def incoming(self) -> Incoming:
        return self.handed_in.incoming

    @property
    def granted(self) -> GrantedLease | None:
        """Return its lease, if the lease is open and this is the first delivery for it."""
        return self.handed_in.granted

    @property
    def is_withheld(self) -> bool:
        """Return whether the peer delivered nothing that is admitted, and neither a recall nor a restart of the learner
        is the reason."""
        if self.judged is None or self.judged.group or self.handed_in.was_recalled:
            return False
        return all(verdict.rule is not Rule.ORPHANED for verdict in self.judged.verdicts)

    @property
    def is_taken_back(self) -> bool:
        """Return whether it returns a lease and was admitted, so that the rest goes to another peer."""
        return self.judged is not None and self.judged.returned and bool(self.judged.group)

    @property
    def lease(self) -> LeaseId:
        return LeaseId(self.incoming.delivery.lease)


@dataclass(kw_only=True, eq=False)
class IntakeLoop(Service):
    """Judges deliveries.

    Args:
        witness: records deliveries for plans.
        leases: the leases of the run.
        ask: returns rewards and answers.
        problems: the tasks, whose curriculum learns from rewards.
        trust: decides which groups wait for an audit; None: no group does.
        formats: the formats of weights with which records may be generated.
    """

    witness: PeerRecorder
    leases: LeaseService
    ask: Ask
    problems: TaskSuite
    trust: AuditService | None
    formats: tuple[str, ...] = (STORED,)

    async def run(self, inbox: trio.MemoryReceiveChannel[Incoming]) -> None:
        """Judge deliveries until cancelled or the inbox is closed."""
        await self.state.opened.wait()
        async for first in inbox:
            async with self.state.judging:
                await self._judge([first, *_at_hand(inbox, MAX_UNDER_WAY - 1)], inbox)

    async def _judge(self, batch: list[Incoming], inbox: trio.MemoryReceiveChannel[Incoming]) -> None:
        """Judge `batch`, and deliveries that arrive before all of them are answered."""
        way = _UnderWay()
        with first_cause():
            async with trio.open_nursery() as nursery:
                while batch or way.room < MAX_UNDER_WAY:
                    for checked in await self._begin(batch, way):
                        if checked.questions:
                            nursery.start_soon(self._ask, checked, way)
                        else:
                            way.hear(checked, ())
                    if way.heard:
                        await self._finish(way)
                    batch = await self._next(inbox, way)

    async def _next(self, inbox: trio.MemoryReceiveChannel[Incoming], way: _UnderWay) -> list[Incoming]:
        """Return the deliveries to begin with now; empty if one may be written, or if all are answered.

        Waits until there are some, or until one may be written.
        """
        batch: list[Incoming] = []
        # A task that wants to replace the chain waits for the deliveries that were begun, and for no others.
        takes_more = way.room > 0 and not way.is_closed and not self.state.judging.statistics().tasks_waiting
        if not takes_more or not (batch := _at_hand(inbox, way.room)):
            if way.heard or way.room == MAX_UNDER_WAY:
                return []
            with trio.CancelScope() as way.waits:
                if not takes_more:
                    await trio.sleep_forever()
                try:
                    batch = [await inbox.receive()]
                except trio.EndOfChannel:
                    way.is_closed = True
            batch += _at_hand(inbox, way.room - 1) if batch else []
        return batch

    async def _begin(self, batch: list[Incoming], way: _UnderWay) -> list[_Checked]:
        """Check deliveries as far as that is possible without rewards."""
        handed_in = []
        for incoming in batch:
            if way.is_repeat(incoming):
                continue
            way.room -= 1
            one = self._take_in(incoming)
            if one.granted is not None:
                way.repeats[_key(incoming)] = deque()
            handed_in.append(one)
        if not handed_in:
            return []
        terms = Terms(
            swarm=self.identity.swarm,
            chain=self.capacity.chain,
            window=self.capacity.window,
            manifests=dict(self.capacity.manifests),
            vocab_size=self.state.vocab_size,
            forgotten=self.state.forgotten,
            formats=self.formats,
            routing=self.capacity.leasing.terms.routing,
        )
        now_ms = self.context.signing_ms()
        return await trio.to_thread.run_sync(lambda: [self._check(one, terms, now_ms) for one in handed_in])

    def _take_in(self, incoming: Incoming) -> _HandedIn:
        lease = LeaseId(incoming.delivery.lease)
        begun, was_recalled = self.capacity.leasing.begun([lease]).get(lease), lease in self.capacity.leasing.recalled
        granted = self.capacity.leasing.take(lease, incoming.peer)
        arrived_ms = self.capacity.leasing.arrived.get(lease, self.context.signing_ms())
        said = None if granted is None else self.capacity.episodes.said(granted)
        digests = () if granted is None else self.capacity.episodes.digests(granted)
        before = () if granted is None else self.capacity.episodes.begun(granted)
        return _HandedIn(
            incoming=incoming,
            granted=granted,
            said=said,
            digests=digests,
            before=before,
            begun=begun,
            was_recalled=was_recalled,
            arrived_ms=arrived_ms,
        )

    def _check(self, one: _HandedIn, terms: Terms, now_ms: int) -> _Checked:
        incoming, granted = one.incoming, one.granted
        lease, records = LeaseId(incoming.delivery.lease), incoming.delivery.records
        if granted is None and (given := self.ledger.work.receipt_of(lease, incoming.peer)) is not None:
            return _Checked(handed_in=one, delivery=None, terms=terms, checked_ms=now_ms, receipt=given)
        checked = check_delivery(
            granted,
            incoming.peer,
            records,
            terms,
            arrived_ms=one.arrived_ms,
            lease=lease,
            said=one.said,
            digests=one.digests,
            begun=one.begun,
            before=one.before,
            returned=one.is_handback,
        )
        sketches = () if self.trust is None else self.trust.sketches(checked.admitted)
        return _Checked(handed_in=one, delivery=checked, terms=terms, checked_ms=now_ms, sketches=sketches)

    async def _ask(self, checked: _Checked, way: _UnderWay) -> None:
        self.state.asked += len(checked.questions)
        try:
            replies = await self.ask(checked.questions)
        finally:
            self.state.asked -= len(checked.questions)
        way.hear(checked, replies)

    async def _finish(self, way: _UnderWay) -> None:
        """Write the deliveries whose rewards are known, act on their verdicts, and acknowledge them."""
        heard, way.heard = way.heard, []
        if any(one.delivery is not None and one.handed_in.granted is None for one, _ in heard):
            with trio.CancelScope(shield=True):  # changes that were taken out must be written
                await trio.to_thread.run_sync(self.leases.write())
        answers, judged = await trio.to_thread.run_sync(self._write_all, heard, self.context.signing_ms())
        # No await until the curriculum has all verdicts: a checkpoint must not be between two of them.
        self.state.judged, dropped = judged, False
        for answer in answers:
            dropped = self._admit(answer) or dropped
            incoming = answer.incoming
            repeats = way.repeats.pop(_key(incoming)) if answer.granted is not None else ()
            for one in (incoming, *repeats):
                one.answer(Acknowledgement(lease=answer.lease, receipt=answer.receipt))
            way.room += 1
        # Rollouts that wait to be trained on take the same room as before, when they were leased.
        leasable = dropped or self.capacity.episodes.waits or any(_frees_room(answer) for answer in answers)
        self.state.notify(leasable=leasable)

    def _write_all(self, heard: Sequence[tuple[_Checked, Sequence[Reply]]], now_ms: int) -> tuple[list[_Answer], int]:
        """Judge checked deliveries with their replies, and write them.

        Returns the answers, and how many records the ledger then has.
        """
        answers: list[_Answer] = []
        receipts: dict[LeaseId, bytes] = {}
        rows: list[RecordRow] = []
        too_late: dict[LeaseId, tuple[PeerId, bytes]] = {}
        too_late_rows: list[RecordRow] = []
        orphaned: dict[LeaseId, int] = {}
        returned: set[LeaseId] = set()
        for one, replies in heard:
            granted = one.handed_in.granted
            if one.delivery is None:
                answers.append(_Answer(handed_in=one.handed_in, judged=None, receipt=one.receipt))
                continue
            answer = self._answer(one, one.delivery.answered(replies), now_ms)
            answers.append(answer)
            if granted is not None:
                receipts[granted.id] = answer.receipt
                rows += _rows(answer, one.checked_ms)
                if answer.is_taken_back:
                    returned.add(granted.id)
                if answer.judged is not None and answer.judged.orphaned_tokens:
                    orphaned[granted.id] = answer.judged.orphaned_tokens
            elif answer.lease not in too_late:
                too_late[answer.lease] = (answer.incoming.peer, answer.receipt)
                too_late_rows += _rows(answer, one.checked_ms)
        if receipts:
            self.ledger.work.deliveries_judged(rows, receipts, now_ms, orphaned, returned)
        if too_late:  # its peer counts these verdicts, and so do our reports
            self.ledger.work.rejected_after_the_end(too_late_rows, too_late)
        return answers, self.ledger.work.counts()[1]

    def _answer(self, checked: _Checked, judged: JudgedDelivery, now_ms: int) -> _Answer:
        receipt = Receipt(
            lease=judged.lease,
            peer=checked.handed_in.incoming.peer,
            version=checked.terms.chain.head,
            issued_ms=now_ms,
            tokens=judged.credited_tokens,
            verdicts=list(judged.verdicts),
            certificate=self.identity.certificate,
        )
        raw = sign(self.identity.keypair, self.identity.swarm, receipt)
        return _Answer(handed_in=checked.handed_in, judged=judged, receipt=raw, sketches=checked.sketches)

    def _admit(self, answer: _Answer) -> bool:
        """Act on the verdicts, and return whether a group was admitted and dropped at once."""
        judged, granted = answer.judged, answer.granted
        if granted is not None:
            self.capacity.leasing.close(granted.id)
            used = (version for one in judged.group for version in one.signed.behaviour) if judged else ()
            now_ms, was_recalled = self.context.signing_ms(), answer.handed_in.was_recalled
            newest, is_whole = max(used, default=None), not answer.is_taken_back
            self.scheduler.delivered(granted.peer, granted.id, now_ms, newest, is_whole=is_whole)
            if answer.is_taken_back:
                self.scheduler.returned_begun(granted.peer, now_ms, was_recalled=was_recalled)
            elif judged is not None and not judged.orphaned_tokens:  # otherwise our restart has made it useless
                self.scheduler.judged_lease(
                    granted.peer,
                    is_admitted=bool(judged.group),
                    owed=_debt_of(judged, was_recalled=was_recalled),
                    now_ms=now_ms,
                )
        if judged is None:
            return False
        if granted is not None and answer.is_withheld:
            closed = LeaseClosed(granted=granted, begun=answer.handed_in.begun, status="refused")
            self.signals.lease_closed.emit(closed)
        elif granted is not None and answer.is_taken_back and not answer.handed_in.was_recalled:
            # The missing rollouts keep their seeds. But a newer version may generate others from them, so handing back
            # can be selective delivery as well, and is checked.
            closed = LeaseClosed(granted=granted, begun=answer.handed_in.begun, status="returned")
            self.signals.lease_closed.emit(closed)
        dropped, why = self._go_on(granted, judged, answer.sketches) if granted is not None else (0, None)
        if granted is not None:
            self.witness.note_delivery(granted, judged, dropped=dropped)
        if granted is not None and not answer.is_taken_back:
            self.scheduler.learn_length(granted, [len(record.signed.tokens) for record in judged.group])
        rewards = [record.reward for record in judged.group if record.reward is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        rejected = next((verdict for verdict in judged.verdicts if not verdict.admitted), None)
        self.events.emit(
            "delivery_judged",
            peer=answer.incoming.peer,
            lease=short(judged.lease),
            admitted=len(judged.group),
            refused=sum(not verdict.admitted for verdict in judged.verdicts),
            reason=rejected.rule.value if rejected else None,
            detail=rejected.detail if rejected else None,
            lag=judged.lag,
            reward=None if mean is None else round(mean, 4),
            tokens=judged.credited_tokens,
            dropped=why,
        )
        if granted is not None and answer.is_taken_back:
            self._note_return(answer, granted, judged)
        return bool(dropped)

    def _note_return(self, answer: _Answer, granted: GrantedLease, judged: JudgedDelivery) -> None:
        """Log what was returned, and give up groups that no peer may continue."""
        delivery = answer.incoming.delivery
        self.events.emit(
            "lease_handed_back",
            peer=answer.incoming.peer,
            lease=short(judged.lease),
            finished=judged.finished,
            begun=len(judged.group) - judged.finished,
            left=len(granted.lease.seeds) - judged.finished,
            tokens=judged.tokens,
            reason=delivery.reason if isinstance(delivery, Handback) else "",
        )
        if self.scheduler.give_up():
            self.state.notify()

    def _go_on(
        self, granted: GrantedLease, judged: JudgedDelivery, sketches: Sequence[frozenset[int]]
    ) -> tuple[int, str | None]:
        """Add admitted records to their episodes. A group whose episodes are all over goes to the buffer.

        Returns how many rollouts were dropped at once, and why: the group's rewards are all equal, or it is void, or an
        audit decided so.
        """
        if not judged.group:
            self.capacity.episodes.lost(granted)
            return 0, None
        waits = self.trust is not None and self.trust.admit(granted, judged.group, sketches, returned=judged.returned)
        if not waits:
            believed = RecordsBelieved(peer=granted.peer, manifests=manifests_of(judged.group))
            self.signals.records_believed.emit(believed)
        said = {
            index: utterance_of(one.signed, one.reply)
            for index, one in judged.by_index.items()
            if one.reply is not None
        }
        if not said or (group := self.capacity.episodes.returned(granted, said)) is None:
            return 0, None
        is_void = any(completion.void for completion in group.completions)
        decides = self.capacity.buffer.decides
        told = [decisive(one.reward, one.parts, decides) for one in group.completions if not one.void]
        rewards = [reward for reward in told if reward is not None]
        # Asked before the group's own rewards are noted: they show the policy, and must not change the expectation.
        expected = self.problems.expected_reward(group.prompt_index)
        group = replace(group, expected=expected, came_ms=self.context.signing_ms())
        if rewards and not is_void:
            self.problems.observe(group.prompt_index, sum(rewards) / len(rewards))
        fate = GroupDecision.ACCEPT if self.trust is None else self.trust.decide(group.lease)
        if fate is GroupDecision.DROP:
            self.capacity.buffer.give_up(group.lease, AUDIT_REASON, len(group.completions))
            return len(group.completions), AUDIT_REASON
        if self.capacity.buffer.add(group, hold=fate is GroupDecision.HOLD):
            return 0, None
        return len(group.completions), VOID if is_void else UNINFORMATIVE


def _at_hand(inbox: trio.MemoryReceiveChannel[Incoming], most: int) -> list[Incoming]:
    """Return the deliveries that are in the inbox, without waiting."""
    batch: list[Incoming] = []
    with suppress(trio.WouldBlock, trio.EndOfChannel):
        while len(batch) < most:
            batch.append(inbox.receive_nowait())
    return batch


def _frees_room(answer: _Answer) -> bool:
    """Return whether fewer rollouts wait in the buffer than were leased."""
    judged, granted = answer.judged, answer.granted
    return judged is not None and granted is not None and len(judged.group) < len(granted.lease.seeds)


def _rows(answer: _Answer, now_ms: int) -> list[RecordRow]:
    judged = answer.judged
    assert judged is not None
    known = judged.by_index
    return [
        RecordRow(
            record=RecordId(verdict.record),
            lease=answer.lease,
            index=verdict.index,
            peer=answer.incoming.peer,
            rule=verdict.rule,
            reward=verdict.reward,
            tokens=len(record.tokens) if record else 0,
            version=min(record.behaviour) if record else PolicyVersion(0, 0),
            lag=judged.lag,
            received_ms=now_ms,
            generation_ms=record.record.timing.generation_ms if record else 0,
            detail=verdict.detail,
            envelope=record.raw if record and verdict.admitted else None,
            cut_off=bool(verdict.admitted and known and known[verdict.index].cut_off),
            parts=known[verdict.index].parts if verdict.admitted and known else (),
        )
        for verdict, record in zip(judged.verdicts, judged.records, strict=True)
    ]
