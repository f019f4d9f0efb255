"""Groups of several peers' turns: only the guilty peer is blamed, and the others' turns are reported as dropped.

This holds through restarts as well.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import trio

from learner.ledger.reputation import observed_days
from learner.ledger.sqlite.database import snapshot
from learner.rollouts.environment import Answered, Ended, Reply, Said
from learner.trust.audit_history import AuditHistory, TrustLevel
from node.reports.explain.why import why_in_ledger
from node.reports.model.verdict_meanings import JUDGING
from protocol.core.ids import PeerId, PolicyVersion
from protocol.work import Lease, LeaseRequest, Rule, open_lease, open_receipt
from tests.support.learner_fixture import FakePeer, Judge, Learner, Settings, hello, open_learner, until
from tests.support.trainer_fixture import NOW_MS, OTHER, SWARM

pytestmark = pytest.mark.usefixtures("mock_clock")

SHARED = Settings(audits=True, staleness=3, ahead=1.0, prompts=1)
ANSWER = 61


def two_turns(index: int, said: Said, transcript: int) -> Reply:
    return Answered(tokens=(ANSWER,)) if len(said) == 1 else Ended(reward=float(said[0][0]))


def alike(seed: int, version: PolicyVersion) -> tuple[int, ...]:
    """Return the same tokens for every seed, so that the episodes of a group go on together, in one lease."""
    return (9, 2, 0)


def made_up(seed: int, version: PolicyVersion) -> tuple[int, ...]:
    """Return made-up tokens: four in a group of six, in three contexts."""
    return (1 + (seed + 30) % 60, 7, 0)


def half_wrong() -> Callable[[int, PolicyVersion], tuple[int, ...]]:
    """Return a function with three wrong tokens in a group of six: the group fails by itself, and does not convict."""
    said = cycle([(8, 3, 0), (8, 2, 0)])
    return lambda seed, version: next(said)


@asynccontextmanager
async def working(root: Path) -> AsyncIterator[Learner]:
    """Yield a learner that judges deliveries, and does not train."""
    judge = Judge(draws=alike)
    async with (
        open_learner(root, SHARED, environment=two_turns, judge=judge) as learner,
        trio.open_nursery() as nursery,
    ):
        await learner.training.begin()
        nursery.start_soon(learner.intake.run, learner.arriving)
        nursery.start_soon(learner.operator.run)
        yield learner
        nursery.cancel_scope.cancel()


async def lend(learner: Learner, peer: FakePeer) -> list[Lease]:
    grant = await learner.sessions.grant(peer.id, LeaseRequest(rollouts=2))
    return [open_lease(raw, SWARM.authority.swarm, learner=SWARM.learner.peer_id) for raw in grant.leases]


async def make(learner: Learner, opener: FakePeer, follower: FakePeer) -> None:
    """Make a group of two turns: the peers answer all their leases, one after the other."""
    for peer in (opener, follower):
        await learner.sessions.welcome(peer.id, hello())
        for lease in await lend(learner, peer):
            await peer.answer(learner, lease)


async def audit(learner: Learner) -> None:
    """Run every audit on the agenda."""
    assert learner.audits is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(learner.audits.run)
        await until(lambda: learner.log[-1][0] == "audits_made" and not len(learner.trust.agenda))
        nursery.cancel_scope.cancel()
    assert not learner.trust.under_audit(), "audited records were kept too long"


def rows(root: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(root / "ledger.sqlite")) as db:
        return db.execute(sql, values).fetchall()


def rules_of(root: Path, peer: PeerId) -> set[str]:
    return {rule for (rule,) in rows(root, "SELECT rule FROM records WHERE peer = ?", peer)}


def blamed(root: Path, peer: PeerId) -> int:
    with snapshot(root / "ledger.sqlite") as db:
        return sum(day.groups_blamed for day in observed_days(db, NOW_MS, JUDGING)[peer])


def require_only_one_is_blamed(root: Path, guilty: PeerId, partner: FakePeer) -> None:
    """Check that the other peer's receipts are unchanged, and that its work is reported as dropped."""
    given = {lease: receipt.tokens for lease, receipt in partner.receipts.items()}
    assert given
    assert rules_of(root, partner.id) == {"admitted"}
    assert blamed(root, partner.id) == 0
    assert rows(root, "SELECT DISTINCT peer FROM revisions") == [(guilty,)]
    for lease, peer, raw in rows(root, "SELECT lease, peer, receipt FROM leases WHERE receipt IS NOT NULL"):
        receipt = open_receipt(raw, SWARM.authority)
        assert receipt.peer == peer
        assert receipt.tokens == (0 if peer == guilty else given[lease])
        if peer != guilty:
            told = why_in_ledger(root / "ledger.sqlite", lease.hex()).text
            assert "not trained on: its group was dropped (" in told


async def require_nothing_is_left(root: Path) -> None:
    """Check that after a restart nothing waits either."""
    async with working(root) as learner:
        assert len(learner.capacity.buffer) == learner.capacity.buffer.held == len(learner.capacity.episodes) == 0
        assert len(learner.trust.agenda) == 0


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize(("draw", "standing"), [(half_wrong(), TrustLevel.SUSPECT), (made_up, TrustLevel.BANNED)])
async def test_for_a_failed_audit_only_its_peer_is_blamed(
    tmp_path: Path, opens: bool, draw: Callable[[int, PolicyVersion], tuple[int, ...]], standing: TrustLevel
) -> None:
    honest, cheat = FakePeer(draw=alike), FakePeer(key=OTHER, draw=draw)
    async with working(tmp_path) as learner:
        await make(learner, *((cheat, honest) if opens else (honest, cheat)))
        assert learner.capacity.buffer.held == 2
        await audit(learner)
        assert learner.trust.failed >= 1
        assert learner.trust.standings.remember(cheat.id).standing is standing
        assert learner.capacity.buffer.held == len(learner.capacity.buffer) == 0
        told = [open_receipt(raw, SWARM.authority) for _, raw in learner.ledger.trust.untold_revisions(cheat.id, 10)]
        assert {verdict.rule for one in told for verdict in one.verdicts} <= {Rule.AUDIT, Rule.BANNED}
        assert learner.ledger.trust.untold_revisions(honest.id, 10) == []
    assert "audit" in rules_of(tmp_path, cheat.id)
    require_only_one_is_blamed(tmp_path, cheat.id, honest)
    await require_nothing_is_left(tmp_path)


async def test_who_fails_after_another_of_its_group_did_is_refused_as_well(tmp_path: Path) -> None:
    first, second = FakePeer(draw=made_up), FakePeer(key=OTHER, draw=made_up)
    async with working(tmp_path) as learner:
        await make(learner, first, second)
        await audit(learner)
        assert learner.trust.failed >= 2
    assert rules_of(tmp_path, first.id) == rules_of(tmp_path, second.id) == {"audit"}
    for peer, raw in rows(tmp_path, "SELECT peer, receipt FROM leases WHERE receipt IS NOT NULL"):
        receipt = open_receipt(raw, SWARM.authority)
        assert (receipt.peer, receipt.tokens) == (peer, 0)


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("is_audited", [True, False])
async def test_a_ban_takes_every_turn_of_its_peer_and_blames_nobody_else(
    tmp_path: Path, opens: bool, is_audited: bool
) -> None:
    honest, banned = FakePeer(draw=alike), FakePeer(key=OTHER, draw=alike)
    async with working(tmp_path) as learner:
        await make(learner, *((banned, honest) if opens else (honest, banned)))
        if is_audited:
            await audit(learner)
            assert len(learner.capacity.buffer) == 2, "a record of the group still waits for an audit"
        await learner.bans.convict(banned.id, "the operator has seen it")
        assert len(learner.capacity.buffer) == learner.capacity.buffer.held == 0
    assert rules_of(tmp_path, banned.id) == {"banned"}
    require_only_one_is_blamed(tmp_path, banned.id, honest)
    await require_nothing_is_left(tmp_path)


async def test_a_ban_takes_what_goes_on(tmp_path: Path) -> None:
    honest, banned = FakePeer(draw=alike), FakePeer(key=OTHER, draw=alike)
    async with working(tmp_path) as learner:
        await learner.sessions.welcome(banned.id, hello())
        for lease in await lend(learner, banned):
            await banned.answer(learner, lease)
        await audit(learner)
        assert len(learner.capacity.episodes) == 2
        await learner.bans.convict(banned.id, "the operator has seen it")
        await learner.sessions.welcome(honest.id, hello())
        for lease in await lend(learner, honest):
            await honest.answer(learner, lease)
        assert len(learner.capacity.buffer) == learner.capacity.buffer.held == len(learner.capacity.episodes) == 0
    assert rules_of(tmp_path, banned.id) == {"banned"}
    require_only_one_is_blamed(tmp_path, banned.id, honest)


@pytest.mark.parametrize("opens", [True, False])
async def test_what_comes_of_a_peer_that_was_just_banned_blames_nobody_else(tmp_path: Path, opens: bool) -> None:
    honest, late = FakePeer(draw=alike), FakePeer(key=OTHER, draw=alike)
    async with working(tmp_path) as learner:
        if opens:
            await learner.sessions.welcome(late.id, hello())
            [lease] = await lend(learner, late)
            learner.trust.standings._known[late.id] = AuditHistory(banned="made up")
            await late.answer(learner, lease)
            await learner.sessions.welcome(honest.id, hello())
            for lease in await lend(learner, honest):
                await honest.answer(learner, lease)
        else:
            learner.trust.standings._known[late.id] = AuditHistory()
            await learner.sessions.welcome(honest.id, hello())
            [lease] = await lend(learner, honest)
            await honest.answer(learner, lease)
            await learner.sessions.welcome(late.id, hello())
            leases = await lend(learner, late)
            learner.trust.standings._known[late.id] = AuditHistory(banned="made up")
            for lease in leases:
                await late.answer(learner, lease)
        await until(lambda: rules_of(tmp_path, late.id) == {"banned"})
        assert len(learner.capacity.buffer) == learner.capacity.buffer.held == 0
    require_only_one_is_blamed(tmp_path, late.id, honest)
    await require_nothing_is_left(tmp_path)


@pytest.mark.parametrize("opens", [True, False])
async def test_a_ban_that_a_restart_finds_blames_nobody_else(tmp_path: Path, opens: bool) -> None:
    honest, banned = FakePeer(draw=alike), FakePeer(key=OTHER, draw=alike)
    async with working(tmp_path) as learner:
        await make(learner, *((banned, honest) if opens else (honest, banned)))
        known = learner.ledger.trust.confidence_of([banned.id]).get(banned.id, AuditHistory())
        learner.ledger.trust.confidence_written(banned.id, replace(known, banned="made up"), NOW_MS)
    async with working(tmp_path) as learner:
        await until(lambda: rules_of(tmp_path, banned.id) == {"banned"})
        assert len(learner.capacity.buffer) == learner.capacity.buffer.held == len(learner.capacity.episodes) == 0
    require_only_one_is_blamed(tmp_path, banned.id, honest)
    await require_nothing_is_left(tmp_path)


async def test_a_run_goes_on_after_a_group_was_dropped_by_an_audit(tmp_path: Path) -> None:
    """The step after it is told of the same group."""
    honest, cheat = FakePeer(), FakePeer(key=OTHER, draw=made_up)
    async with open_learner(tmp_path, replace(SHARED, steps=3), environment=two_turns) as learner:
        await learner.train(honest, cheat)
    assert rows(tmp_path, "SELECT max(step) FROM steps") == [(3,)]
    assert rows(tmp_path, "SELECT count(*) FROM dropped WHERE reason = 'audit'") != [(0,)]
    assert rules_of(tmp_path, honest.id) == {"admitted"}
    assert blamed(tmp_path, honest.id) == 0
