"""Teacher nodes at a learner: leased, delivered, acknowledged, audited; failed work goes to others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from learner.ledger.rows import LeaseRow
from learner.rollouts.score_leases import ScoreLeases
from learner.trust.audit_history import NEWCOMER_GROUPS
from learner.trust.margins import margins_of
from node.learner_role.distillation.teacher_audits import TeacherAudits
from node.learner_role.distillation.teacher_leases import IDLE_S, TeacherLeases
from node.learner_role.distillation.teacher_sessions import BACK_WITHIN_S, TeacherSessions
from protocol.accounting.claims import CostClaim, Price
from protocol.core.codec import unpack_tokens
from protocol.core.envelope import sign
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId, PeerId
from protocol.core.limits import PROTOCOL_VERSION
from protocol.scores import TEACHER, ScoreLease, ScoreRecord, open_score_lease, pack_scores
from protocol.work import (
    IN_GOOD_ORDER,
    Acknowledgement,
    Delivery,
    FromLearner,
    Heartbeat,
    Hello,
    LeaseRequest,
    LeaseReturn,
    Receipt,
    Refused,
    Rule,
    Welcome,
    open_receipt,
)
from swarm.work.server import Incoming
from tests.learner.rollouts.test_buffer import group
from tests.support.learner_fixture import Learner, Settings, fast_directory, open_learner
from tests.support.trainer_fixture import SWARM

DIGEST = b"\x07" * 32
ALPHA, BETA = Keypair(b"\x11" * 32), Keypair(b"\x12" * 32)
Says = Callable[[int], float]


def honest(place: int) -> float:
    """What the learner's copy says of a token, too."""
    return -1.0 - place


@dataclass(kw_only=True)
class Scene:
    """A learner with teacher services, and groups that wait."""

    learner: Learner
    under_way: ScoreLeases
    leases: TeacherLeases
    sessions: TeacherSessions
    audits: TeacherAudits
    answers: list[FromLearner] = field(default_factory=list)

    async def join(self, key: Keypair, **changes: Any) -> Welcome | Refused:
        said: dict[str, Any] = {
            "protocol": PROTOCOL_VERSION,
            "name": "t",
            "engine": "transformers",
            "price": Price(micros_per_hour=0, currency="EUR"),
            "ext": {TEACHER: DIGEST},
        }
        return await self.sessions.welcome(key.peer_id, Hello(**{**said, **changes}))

    async def ask(self, key: Keypair, rollouts: int = 64) -> list[ScoreLease]:
        grant = await self.sessions.grant(key.peer_id, LeaseRequest(rollouts=rollouts))
        return [open_score_lease(raw, SWARM.authority.swarm, learner=SWARM.learner.peer_id) for raw in grant.leases]

    async def deliver(self, key: Keypair, lease: ScoreLease, says: Says = honest, **changes: Any) -> Receipt:
        scores = [pack_scores([says(place) for place in range(len(unpack_tokens(one)))]) for one in lease.completions]
        said: dict[str, Any] = {"lease": lease.id, "scores": scores, "cost": CostClaim(engine_s=0.5)}
        return await self.hand_in(key, lease, [sign(key, SWARM.authority.swarm, ScoreRecord(**{**said, **changes}))])

    async def hand_in(self, key: Keypair, lease: ScoreLease, records: list[bytes]) -> Receipt:
        said = Delivery(lease=lease.id, records=records)
        self.sessions.note_delivery(key.peer_id, LeaseId(lease.id))
        await self.leases._hear(Incoming(peer=key.peer_id, delivery=said, answer=self.answers.append))
        answer = self.answers[-1]
        assert isinstance(answer, Acknowledgement)
        return open_receipt(answer.receipt, SWARM.authority)

    async def audit_all(self) -> None:
        while (scored := self.under_way.next_audit()) is not None:
            ours = [tuple(honest(place) for place in range(len(one))) for one in scored.scores]
            await self.audits.conclude(scored, ours)

    @property
    def trainable(self) -> int:
        """Rollouts that wait for their batch."""
        return len(self.learner.capacity.buffer)


@asynccontextmanager
async def opened(root: Path, groups: int, *, tokens: int = 8) -> AsyncIterator[Scene]:
    async with open_learner(root, Settings(audits=True)) as learner:
        context, trust = learner.context, learner.trust
        buffer = learner.capacity.buffer
        buffer.needs_scores = True
        for number in range(1, groups + 1):
            one = group(number, "1.0")
            longer = replace(
                one.completions[0],
                tokens=(1,) * tokens,
                logprobs=(-1.0,) * tokens,
                spans=((tokens, min(one.behaviour)),),
            )
            buffer.add(replace(one, completions=(longer,) * 2))
            row = LeaseRow(
                lease=one.lease, peer=PeerId("r"), task="t", prompt=number, rollouts=2, issued_ms=1, deadline_ms=2,
                envelope=b"",
            )  # fmt: skip
            learner.ledger.work.leases_issued([row])
            learner.ledger.work.leases_closed([one.lease], "returned", 3)
        under_way = ScoreLeases(buffer=buffer)
        leases = TeacherLeases(
            context=context, leases=under_way, standings=trust.standings, revisions=trust.revisions, digest=DIGEST,
            temperature=1.0, deadline_s=60.0, floor=0.03,
        )  # fmt: skip
        sessions = TeacherSessions(
            context=context, leases=leases, trust=trust, token="", heartbeat_s=1.0, digest=DIGEST
        )
        audits = TeacherAudits(
            context=context, leases=under_way, disown=leases.disown, standings=trust.standings,
            revisions=trust.revisions,
            margins=margins_of(1000), temperature=1.0,
        )  # fmt: skip
        yield Scene(learner=learner, under_way=under_way, leases=leases, sessions=sessions, audits=audits)


@pytest.fixture
def root() -> Any:
    with fast_directory() as directory:
        yield directory


async def test_what_a_newcomer_scores_is_used_after_its_audit_and_is_in_the_ledger(root: Path) -> None:
    async with opened(root, groups=2) as scene:
        assert isinstance(await scene.join(ALPHA), Welcome)
        first, second = await scene.ask(ALPHA)
        receipt = await scene.deliver(ALPHA, first)
        assert [verdict.rule for verdict in receipt.verdicts] == [Rule.ADMITTED]
        assert receipt.tokens == 16
        assert scene.trainable == 0
        await scene.deliver(ALPHA, second)
        await scene.audit_all()
        assert scene.trainable == 4
        [row] = scene.learner.ledger.work.teachers()
        assert (row.peer, row.groups, row.tokens, row.engine_s) == (ALPHA.peer_id, 2, 32, 1.0)
        assert scene.learner.ledger.trust.audits_of([LeaseId(first.id)]) == {LeaseId(first.id): True}
        assert [event["passed"] for event in scene.learner.logged("scores_audited")] == [True, True]


async def test_a_delivery_that_is_repeated_gets_the_same_receipt_and_counts_once(root: Path) -> None:
    async with opened(root, groups=1) as scene:
        await scene.join(ALPHA)
        [lease] = await scene.ask(ALPHA)
        await scene.deliver(ALPHA, lease)
        await scene.deliver(ALPHA, lease, lambda place: -9.0)
        assert scene.answers[0] == scene.answers[1]
        assert scene.learner.ledger.work.teachers()[0].groups == 1


@pytest.mark.parametrize(
    ("changes", "signer", "rule"),
    [
        ({"scores": [pack_scores([-1.0])]}, ALPHA, Rule.INCOMPLETE),
        ({"lease": b"\x09" * 16}, ALPHA, Rule.INCOMPLETE),
        ({"scores": [b"\0" * 5]}, ALPHA, Rule.MALFORMED),
        ({}, BETA, Rule.WRONG_PEER),
    ],
    ids=["too few", "another lease", "no scores", "another's"],
)
async def test_what_is_wrong_is_said_and_the_group_is_for_others(
    root: Path, changes: dict[str, Any], signer: Keypair, rule: Rule
) -> None:
    async with opened(root, groups=1) as scene:
        await scene.join(ALPHA)
        [lease] = await scene.ask(ALPHA)
        scores = [pack_scores([-1.0] * 8)] * 2
        said: dict[str, Any] = {"lease": lease.id, "scores": scores, "cost": CostClaim(engine_s=0.5)}
        raw = sign(signer, SWARM.authority.swarm, ScoreRecord(**{**said, **changes}))
        receipt = await scene.hand_in(ALPHA, lease, [raw])
        assert (receipt.verdicts[0].rule, receipt.tokens) == (rule, 0)
        await scene.join(BETA)
        assert len(await scene.ask(BETA)) == 1


async def test_who_says_other_scores_is_banned_and_nothing_of_it_is_learnt(root: Path) -> None:
    async with opened(root, groups=12) as scene:
        await scene.join(ALPHA)
        delivered: dict[LeaseId, bytes] = {}
        while leases := [] if ALPHA.peer_id not in scene.learner.run.teachers else await scene.ask(ALPHA):
            for lease in leases:
                receipt = await scene.deliver(ALPHA, lease, lambda place: -0.001)
                delivered[LeaseId(lease.id)] = receipt.verdicts[0].record
            await scene.audit_all()
        assert scene.trainable == 0
        banned = scene.learner.ledger.trust.confidence_of([ALPHA.peer_id])[ALPHA.peer_id].banned
        assert "those of the teacher" in banned
        refused = await scene.join(ALPHA)
        assert isinstance(refused, Refused)
        assert "banned" in refused.reason
        told = {lease: open_receipt(raw, SWARM.authority) for lease, raw in revised(scene)}
        assert told
        assert {lease: one.verdicts[0].record for lease, one in told.items()}.items() <= delivered.items()
        assert {one.verdicts[0].rule for one in told.values()} <= {Rule.AUDIT, Rule.BANNED}
        await scene.join(BETA)
        assert len(await scene.ask(BETA)) == NEWCOMER_GROUPS


def revised(scene: Scene) -> list[tuple[LeaseId, bytes]]:
    return scene.learner.ledger.trust.untold_revisions(ALPHA.peer_id, 64)


async def test_whoever_was_trusted_and_lies_loses_what_no_batch_has_taken(root: Path) -> None:
    """Scores that were believed without an audit are taken back with its ban."""
    async with opened(root, groups=40) as scene:
        await scene.join(ALPHA)
        while scene.trainable < 2 * NEWCOMER_GROUPS:
            for lease in await scene.ask(ALPHA, 4):
                await scene.deliver(ALPHA, lease)
            await scene.audit_all()
        believed = scene.trainable
        for lease in await scene.ask(ALPHA):
            await scene.deliver(ALPHA, lease, lambda place: -0.001)
        assert scene.trainable > believed, "some of it is believed"
        assert revised(scene) == []
        await scene.learner.bans.convict(ALPHA.peer_id, "the operator knows better")
        assert scene.trainable == 0
        delivered = scene.learner.ledger.query("SELECT lease FROM teacher_leases WHERE engine_s IS NOT NULL")
        told = {lease: open_receipt(raw, SWARM.authority) for lease, raw in revised(scene)}
        assert told.keys() == {LeaseId(lease) for (lease,) in delivered}, "a batch took scores of the rejected teacher"
        for receipt in told.values():
            assert receipt.tokens == 0
            [verdict] = receipt.verdicts
            assert verdict.rule is Rule.BANNED
            assert "the operator knows better" in verdict.detail
        scene.sessions.unwritten()()
        [(still_open,)] = scene.learner.ledger.query(
            "SELECT count(*) FROM leases JOIN teacher_leases USING (lease) WHERE status = 'open'"
        )
        assert still_open == 0
        [row] = scene.learner.ledger.work.teachers()
        assert (row.groups, row.refused) == (0, len(told)), "scores that are rejected later must not be counted"
        await scene.join(BETA)
        assert await scene.ask(BETA)


async def test_what_a_teacher_delivers_while_it_is_banned_is_refused(root: Path) -> None:
    async with opened(root, groups=1) as scene:
        await scene.join(ALPHA)
        [lease] = await scene.ask(ALPHA)
        judge = scene.leases._judge

        def ban_meanwhile(*args: Any) -> Any:
            judged = judge(*args)
            trio.from_thread.run(scene.learner.bans.convict, ALPHA.peer_id, "the operator knows better")
            return judged

        scene.leases._judge = ban_meanwhile  # type: ignore[method-assign]
        receipt = await scene.deliver(ALPHA, lease)
        assert receipt.verdicts[0].rule is Rule.ADMITTED, "it was under way"
        await scene.learner.trust.revisions.settle()
        [(_, raw)] = revised(scene)
        assert open_receipt(raw, SWARM.authority).verdicts[0].rule is Rule.BANNED
        await scene.join(BETA)
        assert len(await scene.ask(BETA)) == 1


async def test_leases_end_with_their_deadline_their_return_and_their_line(root: Path) -> None:
    async with opened(root, groups=3) as scene:
        await scene.join(ALPHA)
        late, returned, lost = await scene.ask(ALPHA)
        scene.sessions.take_return(ALPHA.peer_id, LeaseReturn(leases=[returned.id], reason="paused"))
        scene.sessions.note_departure(ALPHA.peer_id, IN_GOOD_ORDER)
        assert len(scene.under_way.unscored(1 << 20)) == 3
        await scene.join(ALPHA)
        [again] = await scene.ask(ALPHA)
        assert await no_answer(scene, ALPHA), "a teacher whose leases expired must have one at a time"
        scene.learner.wall.ms += 61_000
        scene.leases.expire()
        assert len(scene.under_way.unscored(1 << 20)) == 3
        receipt = await scene.deliver(ALPHA, again)
        assert receipt.verdicts[0].rule is Rule.UNKNOWN_LEASE
        scene.sessions.unwritten()()
        rows = dict(scene.learner.ledger.query("SELECT lease, status FROM leases JOIN teacher_leases USING (lease)"))
        assert rows == {late.id: "returned", returned.id: "returned", lost.id: "returned", again.id: "expired"}


async def test_whose_line_broke_goes_on_when_it_is_back_in_time(root: Path, autojump_clock: MockClock) -> None:
    async with opened(root, groups=3) as scene:
        await scene.join(ALPHA)
        kept, lost, third = await scene.ask(ALPHA)
        scene.sessions.note_departure(ALPHA.peer_id, "reset")
        await trio.sleep(BACK_WITHIN_S - 5)
        scene.sessions.look()
        assert scene.under_way.unscored(1 << 20) == []
        await scene.join(ALPHA, leases=[kept.id, third.id])
        assert len(scene.under_way.unscored(1 << 20)) == 1, "a lease that it forgot must go to another teacher"
        assert (await scene.deliver(ALPHA, kept)).verdicts[0].rule is Rule.ADMITTED
        scene.sessions.note_departure(ALPHA.peer_id, "reset")
        await trio.sleep(BACK_WITHIN_S + 5)
        scene.sessions.look()
        assert len(scene.under_way.unscored(1 << 20)) == 2, "it stays away"
        scene.sessions.unwritten()()
        statuses = scene.learner.ledger.query("SELECT lease, status FROM leases JOIN teacher_leases USING (lease)")
        assert dict(statuses) == {kept.id: "delivered", lost.id: "returned", third.id: "lost"}


async def no_answer(scene: Scene, key: Keypair) -> bool:
    """Whether nothing is leased now."""
    asked: list[list[ScoreLease]] = []

    async def ask() -> None:
        asked.append(await scene.ask(key))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return not asked


async def test_teachers_are_at_work_while_they_ask_or_score_and_a_moment_longer(
    root: Path, autojump_clock: MockClock
) -> None:
    async with opened(root, groups=1) as scene:
        assert not scene.leases.is_at_work
        await scene.join(ALPHA)
        assert not scene.leases.is_at_work, "it is here, and may be paused"
        [lease] = await scene.ask(ALPHA)
        await trio.sleep(IDLE_S + 1)
        assert scene.leases.is_at_work, "it scores"
        await scene.deliver(ALPHA, lease)
        assert not scene.leases.is_at_work
        assert await no_answer(scene, ALPHA)
        assert scene.leases.is_at_work, "it has just asked"
        await trio.sleep(IDLE_S + 1)
        assert not scene.leases.is_at_work


async def test_a_request_waits_for_groups(root: Path) -> None:
    async with opened(root, groups=0) as scene:
        await scene.join(ALPHA)
        assert await no_answer(scene, ALPHA)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"protocol": PROTOCOL_VERSION + 1}, "protocol"),
        ({"token": "guess"}, "join token"),
        ({"ext": {TEACHER: bytes(32)}}, "is not this swarm's teacher"),
        ({"ext": {}}, "Your teacher (none) is not this swarm's"),
    ],
)
async def test_who_cannot_join_hears_why(root: Path, changes: dict[str, Any], says: str) -> None:
    async with opened(root, groups=1) as scene:
        refused = await scene.join(ALPHA, **changes)
        assert isinstance(refused, Refused)
        assert says in refused.reason
        assert scene.learner.run.teachers == {}


async def test_a_stay_is_in_the_ledger_with_what_it_cost(root: Path) -> None:
    async with opened(root, groups=1) as scene:
        await scene.join(ALPHA, price=Price(micros_per_hour=700_000, currency="EUR"))
        scene.sessions.take_heartbeat(ALPHA.peer_id, Heartbeat(engine_s=12.5))
        scene.sessions.note_departure(ALPHA.peer_id, "gone")
        scene.sessions.unwritten()()
        [row] = scene.learner.ledger.query(
            "SELECT role, engine, micros_per_hour, s.engine_s, reason FROM peers JOIN presence s USING (peer)"
        )
        assert tuple(row) == ("rollout", "teacher, transformers", 700_000, 12.5, "gone")


async def test_after_a_restart_nothing_is_held_against_a_teacher(root: Path) -> None:
    async with opened(root, groups=2) as scene:
        await scene.join(ALPHA)
        assert len(await scene.ask(ALPHA)) == 2
    async with open_learner(root) as again:
        again.sessions.recover_leases()
        [(status, number)] = again.ledger.query(
            "SELECT status, count(*) FROM leases JOIN teacher_leases USING (lease) JOIN recalled USING (lease)"
            " GROUP BY status"
        )
        assert (status, number) == ("returned", 2)
        assert again.ledger.work.group_sizes() <= {2}
