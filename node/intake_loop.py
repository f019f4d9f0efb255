"""From the inbox to the buffer: check deliveries in batches, ask what they are worth, write, then acknowledge.

What always holds: a receipt leaves only after its verdicts are on disk; a delivery that was answered before is answered
with the same receipt, so a repeated one counts nothing twice; only complete, admitted groups reach the buffer, of which
every episode is over; nothing is judged before the chain is known, or a learner that was just restarted would refuse
its own versions. Checking and writing happen on a worker thread, one batch at a time, so that a flood of records never
stops the node from talking; what a completion is worth is asked of whoever `ask` is, who has as long as it takes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import trio

from learner.buffer import UNINFORMATIVE, VOID
from learner.environment import Environment, Question, Reply, Said
from learner.episodes import utterance_of
from learner.intake import CheckedDelivery, GrantedLease, JudgedDelivery, Terms, check_delivery
from learner.ledger import Ledger
from learner.ledger_rows import RecordRow
from node.events import EventLog
from node.learner_run import LearnerRun
from node.witness import Witness
from protocol.identity import Keypair
from protocol.ids import LeaseId, ManifestHash, PeerId, PolicyVersion, RecordId, SwarmId, short
from protocol.work import Acknowledgement, Receipt, SignedRecord, Verdict, sign_receipt
from swarm.reception import Incoming

MAX_BATCH = 32
"""Deliveries judged and committed together: one fsync for all of them."""


ALIKE_TOLD = 256
"""So many groups in a row that teach nothing, 16 batches of 16, are no chance: the operator is told, and again."""


Ask = Callable[[Sequence[Question]], Awaitable[Sequence[Reply]]]
"""What comes back to what was said, in order: asked of an environment, wherever that is."""


def asked_on_a_thread(environment: Environment) -> Ask:
    """Ask an environment in this process."""

    async def ask(questions: Sequence[Question]) -> Sequence[Reply]:
        return await trio.to_thread.run_sync(
            lambda: [environment(one.index, one.said, one.transcript) for one in questions]
        )

    return ask


@dataclass(frozen=True, kw_only=True)
class _HandedIn:
    """A delivery, its lease if that is open, and what was said before in the episodes that it goes on with."""

    incoming: Incoming
    granted: GrantedLease | None
    said: Said | None


@dataclass(frozen=True, kw_only=True)
class _Checked:
    """A delivery that was checked; one that was answered before has the `receipt` of then instead."""

    handed_in: _HandedIn
    delivery: CheckedDelivery | None
    receipt: bytes = b""


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What a delivery is told; `judged` is None when it was judged before, `granted` when its lease is not open."""

    incoming: Incoming
    granted: GrantedLease | None
    judged: JudgedDelivery | None
    receipt: bytes

    @property
    def lease(self) -> LeaseId:
        return LeaseId(self.incoming.delivery.lease)


@dataclass(frozen=True, kw_only=True)
class IntakeLoop:
    """See the module's paragraph. `observe` is told the mean reward of each complete group, by the index of its prompt,
    `used` of which versions a peer has just had records admitted; `expected` is asked what was known of a group's
    prompt before."""

    run: LearnerRun
    witness: Witness
    ledger: Ledger
    keypair: Keypair
    swarm: SwarmId
    certificate: bytes
    ask: Ask
    observe: Callable[[int, float], None]
    expected: Callable[[int], float | None]
    used: Callable[[PeerId, Collection[ManifestHash]], None]
    now_ms: Callable[[], int]
    events: EventLog

    async def work(self, inbox: trio.MemoryReceiveChannel[Incoming]) -> None:
        """Judge what arrives until cancelled or the inbox is closed."""
        await self.run.opened.wait()
        async for first in inbox:
            batch = [first]
            while len(batch) < MAX_BATCH:
                try:
                    batch.append(inbox.receive_nowait())
                except (trio.WouldBlock, trio.EndOfChannel):
                    break
            async with self.run.judging:
                await self._judge(batch)

    async def _judge(self, batch: list[Incoming]) -> None:
        terms = Terms(
            swarm=self.swarm,
            chain=self.run.chain,
            window=self.run.window,
            manifests=dict(self.run.manifests),
            vocab_size=self.run.vocab_size,
        )
        handed_in = [self._handed_in(incoming) for incoming in batch]
        now_ms = self.now_ms()
        checked = await trio.to_thread.run_sync(self._check_all, handed_in, terms, now_ms)
        questions = [question for one in checked if one.delivery for question in one.delivery.questions]
        self.run.asked = len(questions)
        try:
            replies = await self.ask(questions) if questions else []
        finally:
            self.run.asked = 0
        answers, judged = await trio.to_thread.run_sync(self._write_all, checked, replies, terms, now_ms)
        # No await until the curriculum has heard of all of them, or a checkpoint would be between two verdicts.
        self.run.judged, dropped = judged, False
        for answer in answers:
            dropped = self._admit(answer) or dropped
            answer.incoming.answer(Acknowledgement(lease=answer.lease, receipt=answer.receipt))
        # Rollouts that wait to be trained on take the room that they took while they were leased.
        leasable = dropped or self.run.episodes.waits or any(_frees_room(answer) for answer in answers)
        self.run.notify(leasable=leasable)

    def _handed_in(self, incoming: Incoming) -> _HandedIn:
        granted = self.run.leasing.take(LeaseId(incoming.delivery.lease), incoming.peer)
        said = None if granted is None else self.run.episodes.said(granted)
        return _HandedIn(incoming=incoming, granted=granted, said=said)

    def _check_all(self, deliveries: list[_HandedIn], terms: Terms, now_ms: int) -> list[_Checked]:
        """All that can be said of them without asking what anything is worth."""
        return [self._check(one, terms, now_ms) for one in deliveries]

    def _check(self, one: _HandedIn, terms: Terms, now_ms: int) -> _Checked:
        incoming, granted = one.incoming, one.granted
        lease, records = LeaseId(incoming.delivery.lease), incoming.delivery.records
        if granted is None and (given := self.ledger.receipt_of(lease, incoming.peer)) is not None:
            return _Checked(handed_in=one, delivery=None, receipt=given)
        checked = check_delivery(granted, incoming.peer, records, terms, now_ms=now_ms, lease=lease, said=one.said)
        return _Checked(handed_in=one, delivery=checked)

    def _write_all(
        self, checked: list[_Checked], replies: Sequence[Reply], terms: Terms, now_ms: int
    ) -> tuple[list[_Answer], int]:
        """Put checked deliveries and replies together, and write; return the answers, and how many records the ledger
        has with them."""
        answers: list[_Answer] = []
        receipts: dict[LeaseId, bytes] = {}
        rows: list[RecordRow] = []
        orphaned: dict[LeaseId, int] = {}
        waiting = iter(replies)
        for one in checked:
            incoming, granted = one.handed_in.incoming, one.handed_in.granted
            if one.delivery is None:
                answers.append(_Answer(incoming=incoming, granted=None, judged=None, receipt=one.receipt))
                continue
            heard = list(islice(waiting, len(one.delivery.questions)))
            answer = self._repeated(incoming, granted, answers) or self._answer(one, heard, terms, now_ms)
            answers.append(answer)
            if granted is not None:
                receipts[granted.id] = answer.receipt
                rows += _rows(answer, now_ms)
                if answer.judged is not None and answer.judged.orphaned_tokens:
                    orphaned[granted.id] = answer.judged.orphaned_tokens
        if receipts:
            self.ledger.deliveries_judged(rows, receipts, now_ms, orphaned)
        return answers, self.ledger.counts()[1]

    def _repeated(self, incoming: Incoming, granted: GrantedLease | None, before: list[_Answer]) -> _Answer | None:
        """The answer to a delivery that repeats one of the same batch."""
        if granted is not None:
            return None
        lease = LeaseId(incoming.delivery.lease)
        for answer in before:
            if answer.granted is not None and answer.lease == lease and answer.incoming.peer == incoming.peer:
                return _Answer(incoming=incoming, granted=None, judged=None, receipt=answer.receipt)
        return None

    def _answer(self, checked: _Checked, replies: list[Reply], terms: Terms, now_ms: int) -> _Answer:
        assert checked.delivery is not None
        incoming, granted = checked.handed_in.incoming, checked.handed_in.granted
        judged = checked.delivery.answered(replies)
        receipt = Receipt(
            lease=judged.lease,
            peer=incoming.peer,
            version=terms.chain.head,
            issued_ms=now_ms,
            tokens=judged.credited_tokens,
            verdicts=list(judged.verdicts),
            certificate=self.certificate,
        )
        raw = sign_receipt(self.keypair, self.swarm, receipt)
        return _Answer(incoming=incoming, granted=granted, judged=judged, receipt=raw)

    def _admit(self, answer: _Answer) -> bool:
        """Do what the verdicts say; whether a group was admitted and dropped at once."""
        judged, granted = answer.judged, answer.granted
        if granted is not None:
            self.run.leasing.close(granted.id)
            self.run.delivered(granted.peer, granted.id, self.now_ms())
        if judged is None:
            return False
        dropped, why = self._go_on(granted, judged) if granted is not None else (0, None)
        if granted is not None:
            self.witness.judged(granted, judged, dropped=dropped)
        rewards = [record.reward for record in judged.group if record.reward is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        refused = next((verdict for verdict in judged.verdicts if not verdict.admitted), None)
        self.events.emit(
            "delivery_judged",
            peer=answer.incoming.peer,
            lease=short(judged.lease),
            admitted=len(judged.group),
            refused=sum(not verdict.admitted for verdict in judged.verdicts),
            reason=refused.rule.value if refused else None,
            detail=refused.detail if refused else None,
            lag=judged.lag,
            reward=None if mean is None else round(mean, 4),
            tokens=judged.credited_tokens,
            dropped=why,
        )
        if why == UNINFORMATIVE and self.run.buffer.alike % ALIKE_TOLD == 0:
            self.events.emit(
                "trouble",
                text=f"The last {self.run.buffer.alike} groups each had one reward for all, {mean:.2g} in the newest, "
                "so no batch takes them. The task is too hard or too easy for this model: change [task], or warm up.",
            )
        return bool(dropped)

    def _go_on(self, granted: GrantedLease, judged: JudgedDelivery) -> tuple[int, str | None]:
        """What was admitted ends episodes, or lets them go on; a group of which all have ended waits for its batch.

        Return how many rollouts were dropped at once, and why: their group teaches nothing, or is void.
        """
        if not judged.group:
            self.run.episodes.lost(granted)
            return 0, None
        self.used(granted.peer, manifests_of(judged))
        said = [utterance_of(one.signed, one.reply) for one in judged.group if one.reply is not None]
        if not said or (group := self.run.episodes.admitted(granted, said)) is None:
            return 0, None
        rewards = [completion.reward for completion in group.completions if not completion.void]
        is_void = len(rewards) < len(group.completions)
        # Before its own rewards are known of: what they say of the policy is not to be laid to the problem.
        group = replace(group, expected=self.expected(group.prompt_index))
        if not is_void:
            self.observe(group.prompt_index, sum(rewards) / len(rewards))
        if self.run.buffer.add(group):
            return 0, None
        return len(group.completions), VOID if is_void else UNINFORMATIVE


def _frees_room(answer: _Answer) -> bool:
    """Whether less than was leased waits in the buffer now."""
    judged, granted = answer.judged, answer.granted
    return judged is not None and granted is not None and len(judged.group) < len(granted.lease.seeds)


def manifests_of(judged: JudgedDelivery) -> set[ManifestHash]:
    """The manifests of all versions that made tokens of the admitted group."""
    return {ManifestHash(span.manifest) for record in judged.group for span in record.signed.record.spans}


def _rows(answer: _Answer, now_ms: int) -> list[RecordRow]:
    judged = answer.judged
    assert judged is not None
    return [
        _row(answer.lease, answer.incoming.peer, verdict, record, judged.lag, now_ms)
        for verdict, record in zip(judged.verdicts, judged.records, strict=True)
    ]


def _row(
    lease: LeaseId, peer: PeerId, verdict: Verdict, record: SignedRecord | None, lag: int, now_ms: int
) -> RecordRow:
    return RecordRow(
        record=RecordId(verdict.record),
        lease=lease,
        index=verdict.index,
        peer=peer,
        rule=verdict.rule,
        reward=verdict.reward,
        tokens=len(record.tokens) if record else 0,
        version=min(record.behaviour) if record else PolicyVersion(0, 0),
        lag=lag,
        received_ms=now_ms,
        generation_ms=record.record.timing.generation_ms if record else 0,
        detail=verdict.detail,
        envelope=record.raw if record and verdict.admitted else None,
    )
