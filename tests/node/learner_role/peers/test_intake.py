"""Deliveries judged beside each other: acknowledged after they are written, once, by the chain that is in force."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from learner.ledger.rows import LeaseRow
from learner.ledger.sqlite.database import LedgerError
from learner.rollouts.admission import GrantedLease
from learner.rollouts.environment import Ended, Question, Reply, Said
from learner.rollouts.overlong import Overlong, OverlongMode
from learner.rollouts.reward_parts import RewardPart, total
from node.learner_role.peers.intake import MAX_REPEATS, MAX_UNDER_WAY
from node.learner_role.scheduling.recovery import read_unconsumed
from node.reports import as_text, own_report, swarm_report
from node.state.receipts import Receipts
from protocol.core.envelope import sign
from protocol.core.ids import PeerId
from protocol.versions.staleness import Chain
from protocol.work import (
    IN_GOOD_ORDER,
    Acknowledgement,
    Delivery,
    FromLearner,
    InboxFull,
    LeaseReturn,
    Rule,
    open_receipt,
)
from swarm.work.server import Incoming
from tests.support.learner_fixture import FakePeer, Learner, Settings, hand_in, hello, open_learner, told_little
from tests.support.trainer_fixture import (
    NOW_MS,
    OTHER,
    PEER,
    SWARM,
    VOCABULARY,
    granted,
    group,
    lease_id,
    manifest,
    record,
    version,
)

pytestmark = pytest.mark.usefixtures("mock_clock")


def open_chain(learner: Learner, head: str = "1.3") -> None:
    """As if the trainer were loaded and versions up to `head` published."""
    run, last = learner.run, version(head)
    learner.ledger.training.begin_incarnation(0, NOW_MS)
    run.capacity.chain = Chain(bases=(0,) * last.incarnation, head=last)
    run.capacity.collecting, run.vocab_size = last.version, VOCABULARY
    versions = [version(f"{last.incarnation}.{number}") for number in range(last.version + 1)]
    run.capacity.manifests = {
        one: manifest(one) for one in versions if one.version >= last.version - run.capacity.window
    }
    run.open(NOW_MS)


def lend(learner: Learner, *numbers: int, **changes: Any) -> list[GrantedLease]:
    """Leases of PEER, open in memory and in the ledger."""
    leases = [granted(number, **{"minimum": version("1.0"), **changes}) for number in numbers]
    for lease in leases:
        learner.capacity.leasing.recover(lease)
    learner.ledger.work.leases_issued(
        [
            LeaseRow(
                lease=one.id, peer=one.peer, task="even", prompt=one.prompt_index, rollouts=len(one.lease.seeds),
                issued_ms=NOW_MS, deadline_ms=one.lease.deadline_ms,
                envelope=sign(SWARM.learner, SWARM.authority.swarm, one.lease),
            )
            for one in leases
        ]
    )  # fmt: skip
    return leases


def rules(raw: bytes) -> list[Rule]:
    return [verdict.rule for verdict in open_receipt(raw, SWARM.authority).verdicts]


def send(learner: Learner, delivery: Delivery, peer: PeerId = PEER.peer_id) -> list[FromLearner]:
    """Put a delivery into the inbox; return where its answers will be."""
    answers: list[FromLearner] = []
    learner.inbox.send_nowait(Incoming(peer=peer, delivery=delivery, answer=answers.append))
    return answers


def delivery(lease: GrantedLease, raws: Sequence[bytes] | None = None, made_by: str = "1.3") -> Delivery:
    return Delivery(lease=lease.id, records=list(raws) if raws is not None else group(lease, made_by=made_by))


async def test_a_group_is_written_then_acknowledged_then_ready_to_be_trained_on(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        observed: list[tuple[int, float]] = []
        object.__setattr__(learner.intake.problems, "observe", lambda index, mean: observed.append((index, mean)))
        problems = learner.intake.problems
        object.__setattr__(problems, "expected_reward", lambda index: index / 10 if not observed else 1.0)
        open_chain(learner)
        [lease] = lend(learner, 1)
        nursery.start_soon(learner.intake.run, learner.arriving)
        answer = await hand_in(learner, PEER.peer_id, delivery(lease))
        receipt = open_receipt(answer.receipt, SWARM.authority)
        assert [verdict.rule for verdict in receipt.verdicts] == [Rule.ADMITTED] * 2
        assert (receipt.peer, receipt.version, receipt.tokens) == (PEER.peer_id, version("1.3"), 6)
        assert learner.ledger.work.receipt_of(lease.id, PEER.peer_id) == answer.receipt
        assert len(learner.ledger.work.unconsumed()) == 2
        assert learner.capacity.leasing.open_rollouts == 0
        batch = learner.capacity.buffer.take(2, learner.capacity.chain)
        assert batch is not None
        [waiting] = batch.groups
        assert waiting.prompt == (5, 6, 7)
        assert waiting.expected == 0.7, "the expected reward must be the one before its own rewards"
        assert batch.difficulty == pytest.approx(0.3)
        assert waiting.behaviour == {version("1.3")}
        assert [one.reward for one in waiting.completions] == [pytest.approx(2 / 3)] * 2
        assert observed == [(7, pytest.approx(2 / 3))]
        [event] = learner.logged("delivery_judged")
        assert (event["admitted"], event["refused"], event["lag"], event["tokens"]) == (2, 0, 0, 6)
        nursery.cancel_scope.cancel()


async def test_an_orphaned_group_is_credited_in_receipt_and_ledger_and_not_trained_on(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        open_chain(learner)
        learner.capacity.chain = Chain(bases=(0, 2), head=version("2.3"))
        [lease] = lend(learner, 1)
        nursery.start_soon(learner.intake.run, learner.arriving)
        answer = await hand_in(learner, PEER.peer_id, delivery(lease))
        receipt = open_receipt(answer.receipt, SWARM.authority)
        assert [verdict.rule for verdict in receipt.verdicts] == [Rule.ORPHANED] * 2
        assert receipt.tokens == 6
        assert (len(learner.capacity.buffer), learner.capacity.leasing.open_rollouts) == (0, 0)
        assert learner.ledger.work.unconsumed() == []
        with closing(sqlite3.connect(learner.root / "ledger.sqlite")) as db:
            assert db.execute("SELECT lease, tokens FROM orphans").fetchall() == [(lease.id, 6)]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("made_by", "rule"), [("1.3", Rule.ADMITTED), ("1.2", Rule.ADMITTED), ("1.1", Rule.STALE)])
async def test_a_delivery_that_crosses_its_recall_is_judged_like_any_other(
    tmp_path: Path, made_by: str, rule: Rule
) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        open_chain(learner)
        [lease] = lend(learner, 1)
        learner.capacity.manifests[version("1.1")] = manifest(version("1.1"))
        learner.capacity.leasing.recall(lease.id)
        nursery.start_soon(learner.intake.run, learner.arriving)
        answer = await hand_in(learner, PEER.peer_id, delivery(lease, made_by=made_by))
        assert rules(answer.receipt) == [rule] * 2
        assert learner.capacity.leasing.recalled == {}
        assert (learner.capacity.leasing.open_rollouts, learner.capacity.leasing.pending(PEER.peer_id)) == (
            0,
            0,
        )
        nursery.cancel_scope.cancel()


async def test_those_who_wait_for_leases_are_looked_at_when_a_delivery_frees_room_and_not_else(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        open_chain(learner)
        good, old, halved = lend(learner, 1, 2, 3)
        looked: list[int] = []

        async def look() -> None:
            while True:
                await learner.run.wait_leasable()
                looked.append(len(learner.capacity.leasing.open))

        nursery.start_soon(look)
        nursery.start_soon(learner.intake.run, learner.arriving)
        await hand_in(learner, PEER.peer_id, delivery(good))
        await hand_in(learner, PEER.peer_id, delivery(good))  # again: it changes nothing
        await wait_all_tasks_blocked()
        assert looked == []
        await hand_in(learner, PEER.peer_id, delivery(old, made_by="1.0"))
        await wait_all_tasks_blocked()
        assert looked == [1]
        await hand_in(learner, PEER.peer_id, delivery(halved, group(halved)[:1]))
        await wait_all_tasks_blocked()
        assert looked == [1, 0]
        nursery.cancel_scope.cancel()


async def test_nothing_leaves_when_nothing_could_be_written(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner:
        open_chain(learner)
        [lease] = lend(learner, 1)

        def full(*args: object) -> None:
            raise LedgerError("the disk is full")

        learner.ledger.work.deliveries_judged = full  # type: ignore[method-assign]
        answers = send(learner, delivery(lease))
        with pytest.raises(LedgerError):
            await learner.intake.run(learner.arriving)
        assert answers == []
        assert len(learner.capacity.buffer) == 0


async def test_a_repeated_delivery_gets_the_same_receipt_and_counts_nothing(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        open_chain(learner)
        first, second = lend(learner, 1, 2)
        # Twice at once (the line broke and the node was quick), once later, and once by somebody else.
        answers = [send(learner, delivery(lease)) for lease in (first, first, second, first)]
        nursery.start_soon(learner.intake.run, learner.arriving)
        later = await hand_in(learner, PEER.peer_id, delivery(first))
        while not all(answers):
            await learner.run.wait_changed()
        assert [rules(answer[0].receipt) for answer in answers] == [[Rule.ADMITTED] * 2] * 4  # type: ignore[union-attr]
        assert answers[0] == answers[1] == answers[3] == [later]
        assert len(learner.capacity.buffer) == 4
        assert len(learner.ledger.work.unconsumed()) == 4
        thief = await hand_in(learner, OTHER.peer_id, delivery(first))
        assert rules(thief.receipt) == [Rule.UNKNOWN_LEASE] * 2
        assert len(learner.capacity.buffer) == 4
        nursery.cancel_scope.cancel()


class Slow:
    """Stands in for the environment: each question waits until `gates` has opened for its delivery, in the order of
    asking.
    """

    def __init__(self, learner: Learner) -> None:
        self.gates: list[trio.Event] = []
        self._ask = learner.intake.ask
        object.__setattr__(learner.intake, "ask", self.ask)

    async def ask(self, questions: Sequence[Question]) -> Sequence[Reply]:
        self.gates.append(trio.Event())
        await self.gates[-1].wait()
        return await self._ask(questions)

    async def asked(self, number: int) -> None:
        while len(self.gates) < number:
            await trio.lowlevel.checkpoint()


async def test_a_reward_that_takes_long_holds_up_no_other(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        slow = Slow(learner)
        open_chain(learner)
        [first] = lend(learner, 1)
        nursery.start_soon(learner.intake.run, learner.arriving)
        waiting = send(learner, delivery(first))
        await slow.asked(1)
        assert learner.run.asked == 2
        for number in range(2, 6):  # these come meanwhile
            [lease] = lend(learner, number)
            answers = send(learner, delivery(lease))
            again = send(learner, delivery(first))
            await slow.asked(number)
            slow.gates[-1].set()
            while not answers:
                await learner.run.wait_changed()
            assert rules(answers[0].receipt) == [Rule.ADMITTED] * 2  # type: ignore[union-attr]
            assert waiting == again == []
        assert (learner.run.asked, len(learner.capacity.buffer), len(learner.ledger.work.unconsumed())) == (2, 8, 8)
        slow.gates[0].set()
        while not again:
            await learner.run.wait_changed()
        assert again == waiting
        assert rules(waiting[0].receipt) == [Rule.ADMITTED] * 2  # type: ignore[union-attr]
        assert (learner.run.asked, len(learner.capacity.buffer), len(learner.ledger.work.unconsumed())) == (0, 10, 10)
        assert learner.run.judged == 10
        nursery.cancel_scope.cancel()


async def test_who_repeats_what_is_being_judged_takes_no_room(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        slow = Slow(learner)
        open_chain(learner)
        first, second = lend(learner, 1, 2)
        nursery.start_soon(learner.intake.run, learner.arriving)
        answers = [send(learner, delivery(first))]
        await slow.asked(1)
        answers += [send(learner, delivery(first)) for _ in range(2 * MAX_UNDER_WAY)]
        answers.append(send(learner, delivery(second)))
        await slow.asked(2)
        told_to_come_again = answers[1 : -1 - MAX_REPEATS]
        assert all(isinstance(*told, InboxFull) for told in told_to_come_again)
        for gate in slow.gates:
            gate.set()
        while not all(answers):
            await learner.run.wait_changed()
        assert [answers[0]] * MAX_REPEATS == answers[-1 - MAX_REPEATS : -1]
        assert len(learner.capacity.buffer) == 4
        nursery.cancel_scope.cancel()


async def test_so_many_are_under_way_and_no_more(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        slow = Slow(learner)
        open_chain(learner)
        answers = [send(learner, delivery(lease)) for lease in lend(learner, *range(1, MAX_UNDER_WAY + 9))]
        nursery.start_soon(learner.intake.run, learner.arriving)
        await slow.asked(MAX_UNDER_WAY)
        await wait_all_tasks_blocked()
        assert (len(slow.gates), learner.arriving.statistics().current_buffer_used) == (MAX_UNDER_WAY, 8)
        learner.inbox.close()
        while not all(answers):
            for gate in slow.gates:
                gate.set()
            await trio.lowlevel.checkpoint()
        assert len(learner.capacity.buffer) == 2 * len(answers)


async def test_who_wants_another_chain_waits_for_what_was_begun_with_and_no_longer(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        slow = Slow(learner)
        open_chain(learner)
        leases = lend(learner, 1, 2, 3)
        nursery.start_soon(learner.intake.run, learner.arriving)
        answers = [send(learner, delivery(leases[0]))]
        await slow.asked(1)
        has_it = trio.Event()

        async def put_another_chain_in_place() -> None:
            async with learner.run.judging:
                has_it.set()
                await trio.sleep_forever()

        nursery.start_soon(put_another_chain_in_place)
        await wait_all_tasks_blocked()
        answers.append(send(learner, delivery(leases[1])))  # it was waited for already
        await slow.asked(2)
        answers.append(send(learner, delivery(leases[2])))
        slow.gates[0].set()
        slow.gates[1].set()
        while not (answers[0] and answers[1]):
            await learner.run.wait_changed()
        await has_it.wait()
        await wait_all_tasks_blocked()
        assert len(slow.gates) == 2
        assert answers[2] == []
        nursery.cancel_scope.cancel()


async def test_the_same_receipt_after_a_restart_too(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        open_chain(learner)
        [lease] = lend(learner, 1)
        nursery.start_soon(learner.intake.run, learner.arriving)
        before = await hand_in(learner, PEER.peer_id, delivery(lease))
        nursery.cancel_scope.cancel()
    async with open_learner(tmp_path) as again, trio.open_nursery() as nursery:
        again.sessions.recover_leases()
        nursery.start_soon(again.intake.run, again.arriving)
        nursery.start_soon(again.training.begin)
        assert await hand_in(again, PEER.peer_id, delivery(lease)) == before
        nursery.cancel_scope.cancel()


async def test_what_was_in_time_when_it_arrived_is_not_late_for_having_waited(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        open_chain(learner)
        answers = []
        for lease, late_ms in zip(lend(learner, 1, 2), (0, 1), strict=True):
            learner.wall.ms = lease.lease.deadline_ms + late_ms
            answers.append(send(learner, delivery(lease)))
            learner.sessions.note_delivery(PEER.peer_id, lease.id)
        learner.wall.ms += 3_600_000
        nursery.start_soon(learner.intake.run, learner.arriving)
        while not all(answers):
            await learner.run.wait_changed()
        for [answer], rule in zip(answers, (Rule.ADMITTED, Rule.LATE), strict=True):
            assert isinstance(answer, Acknowledgement)
            assert set(rules(answer.receipt)) == {rule}
        assert learner.capacity.leasing.arrived == {}
        nursery.cancel_scope.cancel()


async def test_a_learner_that_was_just_restarted_judges_nothing_before_it_knows_its_versions(tmp_path: Path) -> None:
    """The trainer takes seconds to load, a node is back in half a second."""
    loading = trio.Event()

    async with open_learner(tmp_path, Settings(steps=1)) as learner:
        await learner.training.begin()
        made_by = learner.ledger.training.manifests()[-1]
        [lease] = lend(learner, 1)
    raws = group(lease, made_by=str(made_by[0]), manifests=dict([made_by]))
    async with open_learner(tmp_path) as again, trio.open_nursery() as nursery:
        again.sessions.recover_leases()
        call = again.trainer.call

        async def slow(*args: Any, **options: Any) -> Any:
            await loading.wait()
            return await call(*args, **options)

        again.trainer.call = slow  # type: ignore[method-assign]
        answers = send(again, delivery(lease, raws))
        nursery.start_soon(again.intake.run, again.arriving)
        nursery.start_soon(again.training.begin)
        await wait_all_tasks_blocked()
        assert answers == []
        loading.set()
        while not answers:
            await again.run.wait_changed()
        assert rules(answers[0].receipt) == [Rule.ADMITTED] * 2  # type: ignore[union-attr]
        nursery.cancel_scope.cancel()


async def test_a_new_chain_and_a_batch_that_is_being_judged_wait_for_each_other(tmp_path: Path) -> None:
    """Else what was written, but not yet in the buffer, would come into it twice: from the ledger and from us."""
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        await learner.training.begin()
        [made_by] = learner.ledger.training.manifests()
        leases = lend(learner, *range(1, 9))
        answers = [
            send(learner, delivery(one, group(one, made_by=str(made_by[0]), manifests=dict([made_by]))))
            for one in leases
        ]
        nursery.start_soon(learner.intake.run, learner.arriving)
        nursery.start_soon(learner.training.begin)
        while not all(answers) or learner.capacity.chain.head != version("2.0"):
            await trio.lowlevel.checkpoint()
        await learner.run.judging.acquire()
        assert len(learner.capacity.buffer) == 16
        batch = learner.capacity.buffer.take(16, learner.capacity.chain)
        assert batch is not None
        assert {one.lease for one in batch.groups} == {one.id for one in leases}
        nursery.cancel_scope.cancel()


async def test_a_lease_whose_delivery_is_being_judged_is_nobody_elses_any_more(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        open_chain(learner)
        [lease] = lend(learner, 1)
        answers = send(learner, delivery(lease))
        nursery.start_soon(learner.intake.run, learner.arriving)
        while lease.id in learner.capacity.leasing.open:
            await trio.lowlevel.checkpoint()
        learner.sessions.take_return(PEER.peer_id, LeaseReturn(leases=[lease.id], reason="changed my mind"))
        while not answers:
            await learner.run.wait_changed()
        assert rules(answers[0].receipt) == [Rule.ADMITTED] * 2  # type: ignore[union-attr]
        returned = {"peer": PEER.peer_id, "leases": 0, "recalled": 0, "reason": "changed my mind"}
        assert learner.logged("leases_returned") == [returned]
        nursery.cancel_scope.cancel()


async def test_what_was_refused_is_in_the_ledger_and_not_in_the_buffer(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(staleness=0)) as learner, trio.open_nursery() as nursery:
        open_chain(learner)
        stale, half, empty = lend(learner, 1, 2, 3)
        nursery.start_soon(learner.intake.run, learner.arriving)
        assert rules((await hand_in(learner, PEER.peer_id, delivery(stale, made_by="1.2"))).receipt) == [Rule.STALE] * 2
        one = [record(half.lease, 0, made_by="1.3")]
        assert rules((await hand_in(learner, PEER.peer_id, delivery(half, one))).receipt) == [Rule.INCOMPLETE]
        assert rules((await hand_in(learner, PEER.peer_id, delivery(empty, []))).receipt) == []
        unknown = granted(9)
        assert rules((await hand_in(learner, PEER.peer_id, delivery(unknown))).receipt) == [Rule.UNKNOWN_LEASE] * 2
        assert len(learner.capacity.buffer) == 0
        assert learner.ledger.work.unconsumed() == []
        with learner.ledger.transaction() as db:
            rows = db.execute("SELECT lease, rule, lag, envelope FROM records ORDER BY lease, idx").fetchall()
        assert rows == [
            (lease_id(1), "stale", 1, None),
            (lease_id(1), "stale", 1, None),
            (lease_id(2), "incomplete", 0, None),
        ]
        assert learner.capacity.leasing.open_rollouts == 0
        nursery.cancel_scope.cancel()


async def test_what_came_before_a_goodbye_is_judged_as_if_the_peer_were_here(tmp_path: Path) -> None:
    """Who stops a node in good order loses nothing that it had sent."""
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        await learner.sessions.welcome(PEER.peer_id, hello())
        open_chain(learner)
        sent, unfinished = lend(learner, 1, 2)
        learner.sessions.note_delivery(PEER.peer_id, sent.id)
        learner.sessions.note_departure(PEER.peer_id, IN_GOOD_ORDER)
        assert list(learner.capacity.leasing.open) == [sent.id]
        nursery.start_soon(learner.intake.run, learner.arriving)
        assert rules((await hand_in(learner, PEER.peer_id, delivery(sent))).receipt) == [Rule.ADMITTED] * 2
        assert rules((await hand_in(learner, PEER.peer_id, delivery(unfinished))).receipt) == [Rule.UNKNOWN_LEASE] * 2
        assert learner.capacity.leasing.open_rollouts == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("end", ["lost", "expired", "returned"])
async def test_what_comes_after_its_lease_has_ended_is_rejected_in_the_books_of_both(tmp_path: Path, end: str) -> None:
    """The learner's report and the volunteer's own have one figure; the lease stays what it was."""
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        await learner.sessions.welcome(PEER.peer_id, hello())
        open_chain(learner)
        first, second = lend(learner, 1, 2)
        match end:
            case "lost":
                learner.sessions.leases.release(PEER.peer_id)
            case "expired":
                learner.wall.ms = first.lease.deadline_ms + 60_000
                learner.sessions.leases.expire()
            case _:
                learner.sessions.take_return(PEER.peer_id, LeaseReturn(leases=[first.id, second.id], reason="tired"))
        nursery.start_soon(learner.intake.run, learner.arriving)
        answers = [await hand_in(learner, PEER.peer_id, delivery(first)) for _ in range(2)]
        thief = await hand_in(learner, OTHER.peer_id, delivery(second))
        assert rules(answers[0].receipt) == rules(thief.receipt) == [Rule.UNKNOWN_LEASE] * 2
        assert answers[0] == answers[1], "it is judged once"
        receipts = Receipts(tmp_path / "receipts.sqlite")
        receipts.add(open_receipt(answers[0].receipt, SWARM.authority), answers[0].receipt, engine_s=0.0)
        own = own_report(receipts, peer=PEER.peer_id)
        receipts.close()
        [peer] = [one for one in swarm_report(learner.ledger.path).peers if one.peer == PEER.peer_id]
        assert peer.rejected == own.peer.rejected == 2
        assert peer.verdicts == own.peer.verdicts == {Rule.UNKNOWN_LEASE: 2}
        assert (getattr(peer.leases, end), peer.leases.delivered, peer.leases.late) == (2, 0, 0)
        assert learner.ledger.work.receipt_of(second.id, PEER.peer_id) is None, (
            "a receipt for another peer must not be written"
        )
        assert "2" in as_text(swarm_report(learner.ledger.path)).partition("Rejected records, by rule")[2]
        nursery.cancel_scope.cancel()


async def test_a_late_delivery_hears_that_it_is_late(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner, trio.open_nursery() as nursery:
        open_chain(learner)
        [lease] = lend(learner, 1)
        learner.wall.ms = lease.lease.deadline_ms + 1500
        nursery.start_soon(learner.intake.run, learner.arriving)
        answer = await hand_in(learner, PEER.peer_id, delivery(lease))
        assert rules(answer.receipt) == [Rule.LATE] * 2
        nursery.cancel_scope.cancel()


async def test_the_loop_ends_when_its_inbox_is_closed(tmp_path: Path) -> None:
    async with open_learner(tmp_path) as learner:
        open_chain(learner)
        lease, last = lend(learner, 1, 2)
        answers = [send(learner, delivery(lease)), send(learner, delivery(last))]
        learner.inbox.close()
        await learner.intake.run(learner.arriving)
        assert all(answers)


async def test_a_void_group_is_credited_and_dropped_and_asked_about_again_after_a_restart(tmp_path: Path) -> None:
    told: list[str] = []

    def environment(index: int, said: Said, transcript: int) -> Reply:
        return Ended(reward=0.5) if told else Ended(reward=0.0, failure="timed out", void=True)

    async with open_learner(tmp_path, environment=environment) as learner, trio.open_nursery() as nursery:
        observed: list[int] = []
        object.__setattr__(learner.intake.problems, "observe", lambda index, mean: observed.append(index))
        open_chain(learner)
        [lease] = lend(learner, 1)
        nursery.start_soon(learner.intake.run, learner.arriving)
        answer = await hand_in(learner, PEER.peer_id, delivery(lease))
        receipt = open_receipt(answer.receipt, SWARM.authority)
        assert [(verdict.rule, verdict.reward) for verdict in receipt.verdicts] == [(Rule.ADMITTED, None)] * 2
        assert receipt.tokens == 6, "it is not the peer's fault"
        assert (len(learner.capacity.buffer), learner.capacity.leasing.open_rollouts, observed) == (0, 0, [])
        [event] = learner.logged("delivery_judged")
        assert (event["dropped"], event["admitted"]) == ("void", 2)
        told.append("the verifiers are back")
        ask_one = told_little(environment)
        found = await trio.to_thread.run_sync(read_unconsumed, learner.ledger, ask_one, SWARM.authority.swarm)
        assert [one.reward for one in found.groups[0].completions] == [0.5, 0.5]
        nursery.cancel_scope.cancel()


async def test_what_is_dropped_since_nobody_could_judge_it_is_leased_again(tmp_path: Path) -> None:
    asked: list[int] = []

    def environment(index: int, said: Said, transcript: int) -> Reply:
        asked.append(index)
        return Ended(reward=0.0, failure="timed out", void=index % 3 == 0)

    settings = Settings(steps=4, staleness=0, ahead=1.0)
    async with open_learner(tmp_path, settings, environment=environment) as learner:
        await learner.train(FakePeer())
        assert learner.capacity.chain.head.version == 4
        assert any(index % 3 == 0 for index in asked)
        trained = [int(arrays["group_sizes"].sum()) for arrays in learner.trainer.trained]
        assert trained == [4] * 4
        dropped = [one["dropped"] for one in learner.logged("delivery_judged") if one["dropped"]]
        assert set(dropped) == {"void"}


def cutting_off(index: int, said: Said, transcript: int) -> Reply:
    """The second of each two is cut off, and worth something all the same."""
    return Ended(reward=0.25 + said[-1][0] / 64, cut_off=said[-1][0] % 2 == 1)


async def test_what_was_cut_off_is_known_after_a_restart(tmp_path: Path) -> None:
    async with open_learner(tmp_path, environment=cutting_off) as learner, trio.open_nursery() as nursery:
        open_chain(learner)
        [lease] = lend(learner, 1)
        nursery.start_soon(learner.intake.run, learner.arriving)
        await hand_in(learner, PEER.peer_id, delivery(lease))
        batch = learner.capacity.buffer.take(2, learner.capacity.chain)
        assert batch is not None
        cut = [(one.reward, one.cut_off) for one in batch.groups[0].completions]
        assert any(is_cut for _, is_cut in cut)
        nursery.cancel_scope.cancel()

        def unasked(index: int, said: Said, transcript: int) -> Reply:
            raise AssertionError("a reward that was written is what it was")

        found = await trio.to_thread.run_sync(read_unconsumed, learner.ledger, unasked, SWARM.authority.swarm)
        assert [(one.reward, one.cut_off) for one in found.groups[0].completions] == cut


def of_two(index: int, said: Said, transcript: int) -> Reply:
    """Two rewards, of which nobody can say the second of every other completion."""
    token = said[-1][0]
    parts = (
        RewardPart(name="right", value=token / 64),
        RewardPart(name="style", value=math.nan if token % 2 else 0.5, weight=0.25),
    )
    return Ended(reward=total(parts), parts=parts)


async def test_rewards_with_names_are_known_after_a_restart(tmp_path: Path) -> None:
    async with open_learner(tmp_path, environment=of_two) as learner, trio.open_nursery() as nursery:
        seen: list[tuple[int, float]] = []
        object.__setattr__(learner.intake.problems, "observe", lambda index, mean: seen.append((index, mean)))
        learner.capacity.buffer.decides = "right"
        open_chain(learner)
        [lease] = lend(learner, 1)
        nursery.start_soon(learner.intake.run, learner.arriving)
        await hand_in(learner, PEER.peer_id, delivery(lease))
        batch = learner.capacity.buffer.take(2, learner.capacity.chain)
        assert batch is not None
        given = [repr(one.parts) for one in batch.groups[0].completions]  # in which NaN is as NaN
        assert any("nan" in parts for parts in given)
        nursery.cancel_scope.cancel()

        def unasked(index: int, said: Said, transcript: int) -> Reply:
            raise AssertionError("a reward that was written is what it was")

        found = await trio.to_thread.run_sync(read_unconsumed, learner.ledger, unasked, SWARM.authority.swarm)
        assert [repr(one.parts) for one in found.groups[0].completions] == given
        _, again = learner.ledger.work.since(0, 0, "right")
        assert [index for index, _ in again] == [index for index, _ in seen]
        assert [mean for _, mean in again] == pytest.approx([mean for _, mean in seen])


@pytest.mark.parametrize("mode", ["task", "zero", "mask", "soft"])
async def test_whatever_is_trained_on_the_task_says_what_is_credited_and_reported(
    tmp_path: Path, mode: OverlongMode
) -> None:
    overlong = Overlong(mode=mode, budget=8, buffer=2, penalty=0.5)
    settings = Settings(steps=2, staleness=0, ahead=1.0, overlong=overlong)
    async with open_learner(tmp_path, settings, environment=cutting_off) as learner:
        await learner.train(FakePeer())
        rows = learner.ledger.training.newest_steps(2)
        with learner.ledger.transaction() as db:
            credited = db.execute(
                "SELECT reward FROM records WHERE step IS NOT NULL ORDER BY step, lease, idx"
            ).fetchall()
            cut = db.execute("SELECT count(*) FROM cut_off JOIN records USING (lease, idx) WHERE step IS NOT NULL")
            share = cut.fetchone()[0] / len(credited)
    trained = learner.trainer.trained
    rewards = [float(one) for arrays in trained for one in arrays["rewards"]]
    assert sum(row.reward for row in rows) / 2 == pytest.approx(sum(one for (one,) in credited) / len(credited))
    assert sum(row.metrics["cut_off"] for row in rows) / 2 == pytest.approx(share)
    assert 0 < share < 1
    taken_off = sum(one for (one,) in credited) - sum(rewards)
    assert sum(row.metrics["overlong_penalty"] for row in rows) / 2 == pytest.approx(taken_off / len(rewards), abs=1e-6)
    assert (taken_off > 0.01) == (mode in ("zero", "soft"))
    left_out = sum(int((arrays["trained"] == 0).sum()) for arrays in trained)
    assert left_out == (round(share * len(rewards)) if mode == "mask" else 0)
