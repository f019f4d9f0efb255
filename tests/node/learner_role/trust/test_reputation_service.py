"""Quarantine: a peer with soft strikes has a newcomer's quota until they expire, and the same pay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from learner.ledger.ledger import Ledger
from learner.trust.audit_history import NEWCOMER_GROUPS
from node.learner_role.trust.reputation_service import REVIEW_S, TOLD_EVERY_MS, ReputationService
from node.runtime.events import EventLog
from node.state.operator_orders import Pardon
from protocol.accounting.rank import Rank
from protocol.accounting.reputation import DAY_MS, Band
from protocol.accounting.reputation_note import open_reputation_note
from protocol.core.genesis import Authority
from protocol.core.ids import PeerId, PolicyVersion
from protocol.work import Rule
from tests.support.learner_fixture import FakePeer, Settings, context_of, hello, open_learner, until
from tests.support.ledgers import ALPHA, BETA, Story, open_story, peer_row
from tests.support.trainer_fixture import OTHER, SWARM

V0 = PolicyVersion(1, 0)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    story = open_story(tmp_path / "ledger.sqlite")
    story.join(peer_row(ALPHA, "atlas"))
    story.join(peer_row(BETA, "borealis"))
    yield story
    story.ledger.close()


def desk_of(
    story: Story, now_ms: Callable[[], int] | None = None
) -> tuple[ReputationService, list[tuple[str, dict[str, Any]]], list[str]]:
    log, changes, events = list[tuple[str, dict[str, Any]]](), list[str](), EventLog()
    events.listen(lambda name, fields: log.append((name, dict(fields))))
    context = context_of(
        ledger=cast(Ledger, SimpleNamespace(path=story.ledger.path)),
        state=SimpleNamespace(present={ALPHA}),
        now_ms=now_ms or (lambda: story.now_ms),
        events=events,
    )
    context.signals.quarantine_changed.subscribe(lambda _: changes.append("changed"))
    desk = ReputationService(context=context)
    return desk, log, changes


def abandon(story: Story, peer: PeerId, leases: int) -> None:
    story.ledger.work.leases_closed([story.lease(peer) for _ in range(leases)], "expired", story.now_ms)


async def test_who_is_here_is_told_how_it_stands_as_of_the_last_look_and_not_at_every_one(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, _, _ = desk_of(story)
    assert desk.note(ALPHA, 0) is None, "nobody has looked yet"
    abandon(story, ALPHA, 10)
    abandon(story, BETA, 10)
    await desk.review()
    raw = desk.note(ALPHA, 0)
    assert raw is not None
    monkeypatch.setattr(Authority, "require_learner", lambda *_: None)  # certified for another time than the story's
    note = open_reputation_note(raw, SWARM.authority)
    assert (note.peer, note.band, note.issued_ms) == (ALPHA, Band.QUARANTINED, story.now_ms)
    assert [day.leases_failed for day in note.days] == [10]
    assert desk.note(BETA, 0) is None, "it is not here"
    assert desk.note(OTHER.peer_id, 0) is None
    story.now_s += TOLD_EVERY_MS / 1000 - 1
    await desk.review()
    assert desk.note(ALPHA, note.issued_ms) is None
    story.now_s += 1
    await desk.review()
    assert desk.note(ALPHA, note.issued_ms) is not None


@pytest.mark.parametrize("tells_ranks", [False, True])
async def test_ranks_are_counted_at_a_review_if_the_operator_shows_them(story: Story, tells_ranks: bool) -> None:
    desk, _, _ = desk_of(story)
    desk.tells_ranks = tells_ranks
    story.deliver(story.lease(ALPHA), ALPHA, Rule.ADMITTED, Rule.STALE, Rule.ADMITTED, version=V0)
    story.deliver(story.lease(BETA), BETA, *[Rule.ADMITTED] * 6, version=V0)
    assert desk.rank(ALPHA) is None, "nobody has looked yet"
    await desk.review()
    expected = Rank(place=2, peers=2, admitted=2, admitted_by_all=8)
    assert desk.rank(ALPHA) == (expected if tells_ranks else None)
    assert desk.rank(OTHER.peer_id) is None, "it has done nothing"


async def test_who_abandons_leases_is_in_quarantine_until_it_has_worked_or_time_has_passed(story: Story) -> None:
    desk, log, changes = desk_of(story)
    await desk.review()
    assert (log, changes) == ([], [])
    abandon(story, ALPHA, 10)
    await desk.review()
    assert desk.is_quarantined(ALPHA)
    assert not desk.is_quarantined(BETA)
    [(name, told)] = log
    assert (name, told["peer"]) == ("peer_quarantined", ALPHA)
    assert told["reason"] == "leases are abandoned more often than chance explains"
    await desk.review()
    assert (len(log), len(changes)) == (1, 1), "it is told once"
    for _ in range(20):
        story.deliver(story.lease(ALPHA), ALPHA, Rule.ADMITTED, version=V0)
    await desk.review()
    assert log[1:] == [("quarantine_over", {"peer": ALPHA})]
    abandon(story, BETA, 10)
    await desk.review()
    assert desk.is_quarantined(BETA)
    story.now_s += 28 * DAY_MS / 1000
    await desk.review()
    assert not desk.is_quarantined(BETA)


async def test_a_restart_finds_the_same_and_a_ledger_that_cannot_be_read_changes_nothing(story: Story) -> None:
    abandon(story, ALPHA, 10)
    first, *_ = desk_of(story)
    await first.review()
    second, log, _ = desk_of(story)
    await second.review()
    assert first._quarantined == second._quarantined != {}
    second.ledger.path = story.ledger.path.with_name("gone.sqlite")
    await second.review()
    assert second.is_quarantined(ALPHA)
    assert log[-1][0] == "trouble"
    assert "stay as they were" in log[-1][1]["text"]


async def test_it_looks_again_when_called_and_when_time_has_passed(
    story: Story, mock_clock: trio.testing.MockClock
) -> None:
    looks: list[int] = []

    def now_ms() -> int:
        looks.append(len(looks))
        return story.now_ms

    desk, *_ = desk_of(story, now_ms)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.run)
        await until(lambda: len(looks) == 1)
        desk.signals.peer_judged.emit(ALPHA)
        await until(lambda: len(looks) == 2)
        while len(looks) == 2:  # it may not wait yet
            mock_clock.jump(REVIEW_S)
            await trio.to_thread.run_sync(int)
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("mock_clock")
async def test_a_quarantined_peer_has_a_newcomers_quota_and_a_pardon_asks_for_another_look(tmp_path: Path) -> None:
    async with (
        open_learner(tmp_path, Settings(audits=True, steps=8, staleness=3)) as learner,
        trio.open_nursery() as nursery,
    ):
        peer, struck, judged = FakePeer(key=OTHER, rollouts=8), learner.struck.peers, list[PeerId]()
        learner.context.signals.peer_judged.subscribe(judged.append)
        nursery.start_soon(learner.train, peer)
        await until(lambda: peer.id in learner.run.present and learner.scheduler.worker(peer.id).quota == math.inf)
        struck.add(peer.id)
        learner.trust.standings.reconsider()
        assert learner.scheduler.worker(peer.id).quota == NEWCOMER_GROUPS * learner.capacity.leasing.terms.group_size
        struck.clear()
        learner.trust.standings.reconsider()
        assert learner.scheduler.worker(peer.id).quota == math.inf
        assert not judged
        learner.operator.orders.give(Pardon(peer=peer.id))
        learner.trust.revisions.wakeup.set()
        await until(lambda: bool(judged))
        nursery.cancel_scope.cancel()
    assert learner.ledger.path.exists()


@pytest.mark.usefixtures("mock_clock")
async def test_where_everybody_is_believed_nobody_has_a_quota(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(audits=True)) as learner:
        learner.trust.standings.audits = False
        learner.struck.peers.add(OTHER.peer_id)
        assert not await learner.trust.welcome(OTHER.peer_id)
        await learner.sessions.welcome(OTHER.peer_id, hello())
        assert learner.scheduler.worker(OTHER.peer_id).quota == math.inf
