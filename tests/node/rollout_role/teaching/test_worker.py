"""A teacher node scores, signs and delivers what it is leased, or returns it with the reason."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from node.engine.interface import EngineCrashed, EngineError
from node.rollout_role.retry_policy import RetryPolicy
from node.rollout_role.teaching.worker import NOT_LENT, OTHER_TEACHER, TeachingWorker
from node.rollout_role.worker import GaveUp
from node.runtime.events import EventLog
from node.state.receipts import Receipts
from protocol.core.codec import pack_tokens
from protocol.core.envelope import sign
from protocol.core.ids import LeaseId, PolicyVersion
from protocol.scores import ScoreLease, read_score_record
from protocol.work import Receipt, Rule, Verdict
from swarm.work.client import WorkClient
from tests.support.teachers import Teacher
from tests.support.trainer_fixture import NOW_MS, PEER, SWARM

DIGEST = b"\x07" * 32
SWARM_ID = SWARM.authority.swarm


def lease(number: int, *, teacher: bytes = DIGEST) -> ScoreLease:
    return ScoreLease(
        id=number.to_bytes(16, "big"), peer=PEER.peer_id, teacher=teacher, prompt=pack_tokens((1,)),
        completions=[pack_tokens((2, 3)), pack_tokens((4,))], temperature=1.0, issued_ms=0, deadline_ms=NOW_MS,
    )  # fmt: skip


@dataclass(kw_only=True)
class Line:
    """A learner that grants what is in `batches`, one after the other, and admits everything."""

    batches: list[list[ScoreLease]]
    delivered: dict[LeaseId, tuple[tuple[float, ...], ...]] = field(default_factory=dict)
    returned: list[tuple[LeaseId, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    changed: trio.Event = field(default_factory=trio.Event)

    async def request_scoring(self, rollouts: int) -> list[ScoreLease]:
        await trio.lowlevel.checkpoint()
        if not self.batches:
            await trio.sleep_forever()
        return self.batches.pop(0)

    async def deliver(self, one: LeaseId, records: Sequence[bytes]) -> tuple[Receipt, bytes]:
        [raw] = records
        signed = read_score_record(raw, SWARM_ID)
        signed.envelope.verify_signature()
        receipt = Receipt(
            lease=one, peer=PEER.peer_id, version=PolicyVersion(1, 1), issued_ms=NOW_MS, tokens=3,
            verdicts=[Verdict(record=signed.id, index=0, rule=Rule.ADMITTED)], certificate=SWARM.certificate,
        )  # fmt: skip
        await trio.lowlevel.checkpoint()
        self.delivered[one] = signed.scores
        self._stir()
        return receipt, sign(SWARM.learner, SWARM_ID, receipt)

    def return_leases(self, leases: Sequence[LeaseId], reason: str) -> None:
        self.returned += [(one, reason) for one in leases]
        self._stir()

    async def leave(self, reason: str) -> None:
        await trio.lowlevel.checkpoint()
        self.left.append(reason)

    def heartbeat_now(self) -> None:
        pass

    def _stir(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


@asynccontextmanager
async def working(
    tmp_path: Path, line: Line, teacher: Teacher, **changes: Any
) -> AsyncIterator[tuple[TeachingWorker, trio.Nursery]]:
    receipts = Receipts(tmp_path / "receipts.sqlite")
    worker = TeachingWorker(
        engine=teacher, digest=DIGEST, keypair=PEER, swarm=SWARM_ID, work_client=cast(WorkClient, line),
        receipts=receipts, batch_rollouts=8, events=EventLog(), **changes,
    )  # fmt: skip
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            yield worker, nursery
            nursery.cancel_scope.cancel()
    finally:
        receipts.close()


async def until(worker: TeachingWorker, holds: Callable[[], bool]) -> None:
    """Wait for something that the worker does."""
    while not holds():
        await worker._stirred.wait()


async def test_what_is_leased_is_scored_signed_and_delivered(tmp_path: Path) -> None:
    line = Line(batches=[[lease(1), lease(2)], [lease(3)]])
    async with working(tmp_path, line, Teacher()) as (worker, _):
        await until(worker, lambda: worker.counts.admitted == 3)
        assert set(line.delivered.values()) == {((-1.0, -1.0), (-1.0,))}
        assert (worker.counts.admitted, worker.counts.tokens, worker.counts.pending) == (3, 9, 0)
        sums = worker.receipts.sums()
        assert (sums.groups_scored, sums.tokens_scored, sums.verdicts) == (3, 9, {})
    assert line.returned == []


async def test_a_lease_of_another_teacher_goes_back(tmp_path: Path) -> None:
    line = Line(batches=[[lease(1, teacher=bytes(32)), lease(2)]])
    async with working(tmp_path, line, Teacher()) as (worker, _):
        await until(worker, lambda: worker.counts.admitted == 1)
    assert line.returned == [(LeaseId(lease(1).id), OTHER_TEACHER)]
    assert list(line.delivered) == [LeaseId(lease(2).id)]


async def test_while_the_machine_is_not_lent_nothing_is_scored_and_what_was_begun_goes_back(tmp_path: Path) -> None:
    line = Line(batches=[[lease(1), lease(2)]])
    slow = Teacher()
    began = trio.Event()

    async def wait(*_: Any) -> list[tuple[float, ...]]:
        began.set()
        await trio.sleep_forever()
        raise AssertionError

    slow.score = wait  # type: ignore[method-assign]
    async with working(tmp_path, line, slow) as (worker, _):
        await began.wait()
        worker.shift.hold("owner", "paused by its owner")
        while worker.holding:
            await line.changed.wait()
        assert line.delivered == {}
        assert {reason for _, reason in line.returned} == {NOT_LENT}
        slow.score = Teacher().score  # type: ignore[method-assign]
        line.batches.append([lease(4)])
        worker.shift.release("owner")
        while not line.delivered:
            await line.changed.wait()
    assert list(line.delivered) == [LeaseId(lease(4).id)]


async def test_what_goes_back_while_it_is_scored_is_not_delivered_afterwards(tmp_path: Path) -> None:
    line, slow = Line(batches=[[lease(1)]]), Teacher()
    began, goes_on = trio.Event(), trio.Event()

    async def wait(*asked: Any) -> list[tuple[float, ...]]:
        began.set()
        await goes_on.wait()
        return await Teacher().score(*asked)

    slow.score = wait  # type: ignore[method-assign]
    async with working(tmp_path, line, slow) as (worker, _):
        await began.wait()
        assert await worker.drain(0.0) == 1
        goes_on.set()
        await wait_all_tasks_blocked()
        assert (line.delivered, worker.holding) == ({}, set())


async def test_a_crash_costs_one_more_try_and_no_lease(tmp_path: Path) -> None:
    def crash_once(op: str, call: int, sequences: int) -> None:
        if call == 1:
            raise EngineCrashed("it ended")

    line = Line(batches=[[lease(1)]])
    async with working(tmp_path, line, Teacher(crash_once)) as (worker, _):
        await until(worker, lambda: worker.counts.admitted == 1)
    assert line.returned == []


async def test_an_engine_that_fails_again_and_again_ends_the_node_with_the_reason(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    def crash(op: str, call: int, sequences: int) -> None:
        raise EngineCrashed("its device is gone")

    line = Line(batches=[[lease(number)] for number in range(1, 9)])
    with pytest.raises(ExceptionGroup) as caught:
        async with working(tmp_path, line, Teacher(crash), retry_policy=RetryPolicy(give_up_s=30.0)):
            await trio.sleep(3600)
    assert caught.group_contains(GaveUp, match="its device is gone")
    assert line.left


async def test_an_engine_that_is_given_up_ends_the_node_at_once(tmp_path: Path) -> None:
    def broken(op: str, call: int, sequences: int) -> None:
        raise EngineError("it will not come back")

    line = Line(batches=[[lease(1)]])
    with pytest.raises(ExceptionGroup) as caught:
        async with working(tmp_path, line, Teacher(broken)):
            await trio.sleep_forever()
    assert caught.group_contains(EngineError, match="it will not come back")
    assert [one for one, _ in line.returned] == [LeaseId(lease(1).id)]


async def test_a_drain_delivers_what_is_held_and_leases_no_more(tmp_path: Path) -> None:
    line = Line(batches=[[lease(1), lease(2)]])
    async with working(tmp_path, line, Teacher()) as (worker, _):
        while not line.delivered:
            await line.changed.wait()
        line.batches.append([lease(3)])
        assert await worker.drain(None) == 0
        await worker.leave()
    assert len(line.delivered) == 2
    assert line.left == ["the node was stopped"]
