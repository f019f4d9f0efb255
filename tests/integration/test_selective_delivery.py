"""The learner regenerates undelivered rollouts and bans peers that withhold by taste, not those that must."""

from __future__ import annotations

import json
import math
import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from learner.ledger.rows import LeaseRow, SelectionRow
from learner.rollouts.admission import AdmittedRecord, GrantedLease
from learner.trust.audit_history import TrustLevel
from learner.trust.audit_queue import work_of
from learner.trust.ban_evidence import History, is_convicted, log_evidence
from learner.trust.selection_test import CompletionValue, DeliveryOutcome
from node.engine.interface import EngineRefused, InstalledVersion
from node.learner_role.shared.signals import LeaseClosed, RecordsAdmitted
from node.learner_role.trust.selection_checker import GIVES_WAY_S, SelectionLoop
from node.learner_role.trust.selection_service import (
    MAX_OF_A_PEER,
    MAX_ROUTINE,
    DeliveredCompletion,
    SelectionService,
    SelectionSuspect,
)
from node.reports.explain.why import why_in_ledger
from node.state.operator_orders import OperatorDecisions, Pardon
from protocol.core.codec import pack_logprobs
from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.versions.staleness import Admissibility, judge
from protocol.work import Delivery, Lease, Sampler, Span, read_record
from tests.support.learner_fixture import (
    FakePeer,
    Judge,
    Learner,
    Settings,
    hand_in,
    honest_tokens,
    open_learner,
    until,
)
from tests.support.trainer_fixture import OTHER, PEER, SWARM, even_share, granted, lease_id, manifest, record, version

pytestmark = pytest.mark.usefixtures("mock_clock")

LONG = Settings(audits=True, steps=240, staleness=3)
AS_LONG_AS_IT_TAKES = replace(LONG, steps=1000)
"""How much is regenerated between two steps depends on the machine's load; selective delivery is detected in some 100
to 300 steps."""


ALMOST_SURE = History(audits=50, log_wealth=(13.7,) * 6)
"""A history of audits after which one more failed group convicts the peer."""

OF_OTHER = f"WHERE peer = '{OTHER.peer_id}'"


def lease_row(of: GrantedLease) -> LeaseRow:
    return LeaseRow(
        lease=of.id, peer=of.peer, task="even", prompt=0, rollouts=len(of.lease.seeds), issued_ms=0, deadline_ms=1,
        envelope=b"",
    )  # fmt: skip


def close(desk: SelectionService, lease: GrantedLease, begun: PolicyVersion | None, status: str) -> None:
    desk.context.signals.lease_closed.emit(LeaseClosed(granted=lease, begun=begun, status=status))


def admit(desk: SelectionService, lease: GrantedLease, group: Sequence[AdmittedRecord]) -> None:
    desk.context.signals.records_admitted.emit(RecordsAdmitted(granted=lease, group=group))


def forget(desk: SelectionService) -> None:
    """Remove all suspects that wait there."""
    while waiting := desk.next():
        for one in waiting:
            desk.end(one)


def worth(lease: Lease) -> float:
    return sum(even_share(0, honest_tokens(seed)) for seed in lease.seeds)


def good_ones(lease: Lease) -> bool:
    """Return whether the completions are good; only a peer that knows their rewards could tell."""
    return worth(lease) > 5 / 3


def rows(root: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(root / "ledger.sqlite")) as db:
        return db.execute(sql).fetchall()


async def train_until_somebody_is_banned(learner: Learner, *peers: FakePeer) -> None:
    """Train until a peer is banned, and the ledger says so too, which a thread of its own writes."""

    def is_banned() -> bool:
        return bool(learner.ledger.query("SELECT 1 FROM confidence WHERE banned <> ''"))

    async with trio.open_nursery() as nursery:

        async def train() -> None:
            await learner.train(*peers)
            nursery.cancel_scope.cancel()

        nursery.start_soon(train)
        await until(lambda: bool(learner.logged("peer_banned")) and is_banned())
        nursery.cancel_scope.cancel()


async def test_who_gives_back_what_it_does_not_like_is_banned(tmp_path: Path) -> None:
    honest, picky = FakePeer(), FakePeer(key=OTHER, keeps=good_ones)
    async with open_learner(tmp_path, AS_LONG_AS_IT_TAKES) as learner:
        await train_until_somebody_is_banned(learner, honest, picky)
        [banned] = learner.logged("peer_banned")
        assert banned["peer"] == picky.id
        assert "so it delivers selectively" in str(banned["reason"])
    [(heard,)] = rows(tmp_path, f"SELECT count(*) FROM choices {OF_OTHER}")
    assert rows(tmp_path, "SELECT count(*) FROM decisions") == [(0,)], "the operator gave no order"
    said = why_in_ledger(tmp_path / "ledger.sqlite", OTHER.peer_id, replay=True)
    assert said.agrees
    assert "It was banned by the test for selective delivery: " in said.text
    assert "The learner regenerated " in said.text
    assert heard > 10
    assert "the operator's ban" not in said.text
    assert said.text.endswith("but the test for selective delivery does, as the ledger says.")
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db, db:
        db.execute(f"UPDATE choices SET ours = theirs, theirs = ours {OF_OTHER} AND heard = 2")
    changed = why_in_ledger(tmp_path / "ledger.sqlite", OTHER.peer_id, replay=True)
    assert not changed.agrees
    assert "the ledger has another result for its test for selective delivery" in changed.text


def lively(seed: int, of: PolicyVersion) -> tuple[int, ...]:
    """Return tokens that depend on the version as well."""
    return (random.Random(f"{seed} {of}").randrange(60) + 1, 2, 0)


def best(lease: Lease, admitted: Sequence[PolicyVersion]) -> PolicyVersion:
    """Return the version with the highest reward; only a peer that generates the group with each version could tell."""
    return max(admitted, key=lambda of: sum(even_share(0, lively(seed, of)) for seed in lease.seeds))


async def test_who_sends_the_best_of_its_versions_is_banned(tmp_path: Path) -> None:
    honest, selective = FakePeer(draw=lively), FakePeer(key=OTHER, draw=lively, picks=best)
    async with open_learner(tmp_path, AS_LONG_AS_IT_TAKES, judge=Judge(draws=lively)) as learner:
        assert learner.selection is not None
        learner.selection.service.share = learner.selection.budget.routine = 1.0
        await train_until_somebody_is_banned(learner, honest, selective)
        [banned] = learner.logged("peer_banned")
        assert banned["peer"] == selective.id
        assert "so it delivers selectively" in str(banned["reason"])
        assert learner.logged("audit_failed") == [], "an audit failed, although each token is its version's"
    said = why_in_ledger(tmp_path / "ledger.sqlite", OTHER.peer_id, replay=True)
    assert said.agrees
    assert "owed more of them to the version that the peer used" in said.text


@pytest.mark.rest
async def test_who_always_takes_the_oldest_version_is_not(tmp_path: Path) -> None:
    slow = FakePeer(key=OTHER, draw=lively, picks=lambda lease, admitted: min(admitted))
    async with open_learner(tmp_path, LONG, judge=Judge(draws=lively)) as learner:
        assert learner.selection is not None
        learner.selection.service.share = learner.selection.budget.routine = 1.0
        await learner.train(FakePeer(draw=lively), slow)
        assert learner.logged("peer_banned") == []
        assert learner.ledger.trust.selection_history(slow.id).audits > 5


async def test_who_gives_back_by_chance_is_not(tmp_path: Path) -> None:
    dice = random.Random(1)
    honest, busy = FakePeer(), FakePeer(key=OTHER, keeps=lambda lease: dice.random() < 0.3)
    async with open_learner(tmp_path, Settings(audits=True, steps=80, staleness=3)) as learner:
        await learner.train(honest, busy)
        assert learner.logged("peer_banned") == []
        history = learner.ledger.trust.selection_history(busy.id)
        assert history.audits > 20
        assert not is_convicted(history)
        assert not is_convicted(learner.ledger.trust.selection_history(honest.id))


async def test_what_was_heard_is_there_after_a_restart(tmp_path: Path) -> None:
    dice = random.Random(2)
    async with open_learner(tmp_path, Settings(audits=True, steps=8, staleness=3)) as learner:
        await learner.train(FakePeer(), FakePeer(key=OTHER, keeps=lambda lease: dice.random() < 0.3))
        before = learner.ledger.trust.selection_history(OTHER.peer_id)
    assert before.audits > 0
    async with open_learner(tmp_path, Settings(audits=True, steps=8, staleness=3)) as again:
        assert again.ledger.trust.selection_history(OTHER.peer_id) == before


@pytest.mark.rest
async def test_who_is_pardoned_begins_anew(tmp_path: Path) -> None:
    async with open_learner(tmp_path, LONG) as learner:
        await learner.train(FakePeer(), FakePeer(key=OTHER, keeps=good_ones))
        assert len(learner.logged("peer_banned")) == 1
    heard = rows(tmp_path, f"SELECT count(*) FROM choices {OF_OTHER}")
    OperatorDecisions(tmp_path).give(Pardon(peer=OTHER.peer_id))
    async with open_learner(tmp_path, LONG) as again:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(again.operator.run)
            await until(lambda: bool(again.logged("peer_pardoned")))
            await until(
                lambda: not again.trust or again.trust.standings.remember(OTHER.peer_id).standing is TrustLevel.NEWCOMER
            )
            nursery.cancel_scope.cancel()
        assert again.ledger.trust.selection_history(OTHER.peer_id).audits == 0
    assert rows(tmp_path, "SELECT count(*) FROM choices WHERE heard < 0") == heard


async def test_who_is_pardoned_while_its_ban_waits_is_not_banned(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(audits=True, steps=2)) as learner:
        await learner.train(FakePeer())
        assert learner.selection is not None
        desk, peer = learner.selection.service, OTHER.peer_id
        await learner.trust.welcome(peer)
        desk._known[peer] = ALMOST_SURE
        lease = granted(999, size=2, peer=peer)
        learner.ledger.work.leases_issued([lease_row(lease)])
        of_other = InstalledVersion(name=version("1.1"), manifest=manifest(version("1.1")))
        suspect = SelectionSuspect(granted=lease, withheld=0.5, other=of_other)
        worst = [CompletionValue(tokens=2, reward=reward) for reward in (0.0, 0.0, *[1.0] * 6)]
        async with trio.open_nursery() as nursery, learner.trust.standings.lock:  # the operator's order is being obeyed
            nursery.start_soon(desk.conclude, suspect, worst)
            await until(lambda: bool(learner.logged("choice_drawn")))
            await desk.forgive(peer)
        assert learner.logged("peer_banned") == []
        assert learner.ledger.trust.selection_history(peer) == History()
        again = granted(998, size=2, peer=peer)
        learner.ledger.work.leases_issued([lease_row(again)])
        desk._known[peer] = ALMOST_SURE
        await desk.conclude(SelectionSuspect(granted=again, withheld=0.5, other=of_other), worst)
        assert learner.logged("peer_banned") == [], "a peer was banned that was pardoned since"
        await desk.conclude(SelectionSuspect(granted=again, withheld=0.5, other=of_other, pardons=1), worst)
        assert len(learner.logged("peer_banned")) == 1


async def test_of_who_is_banned_or_pardoned_nothing_waits_to_be_drawn(tmp_path: Path) -> None:
    async with running_selection(tmp_path, Settings(audits=True, steps=2)) as (learner, selection):
        desk, newest = selection.service, max(learner.capacity.manifests)
        for number, ends in ((901, "banned"), (902, "pardoned")):
            admit(desk, *delivered(learner, newest, newest, number=number))
            close(desk, granted(number + 50, size=2, peer=PEER.peer_id), newest, "lost")
            assert len(desk) == 2
            if ends == "banned":
                await learner.bans.convict(PEER.peer_id, "it chooses")
            else:
                await desk.forgive(PEER.peer_id)
            assert (len(desk), desk.next(), desk._withheld) == (0, [], {})


async def test_a_ban_that_a_crash_came_before_follows_with_the_next_group(tmp_path: Path) -> None:
    """The regenerated rollouts are on disk before the ban is; here they alone are."""
    async with open_learner(tmp_path, Settings(audits=True, steps=2)) as learner:
        await learner.train(FakePeer())
        lease = granted(998, size=2, peer=OTHER.peer_id)
        learner.ledger.work.leases_issued([lease_row(lease)])
        sure = SelectionRow(
            lease=lease.id,
            peer=OTHER.peer_id,
            at_ms=1,
            outcome=DeliveryOutcome.WITHHELD,
            withheld=0.5,
            theirs=(),
            ours=(),
            heard=50,
            log_wealth=(25.0,) * 6,
        )
        learner.ledger.trust.selection_tested(sure)
    async with open_learner(tmp_path, Settings(audits=True, steps=2)) as again:
        assert again.selection is not None
        desk, next_one = again.selection.service, granted(999, size=2, peer=OTHER.peer_id)
        await again.trust.welcome(OTHER.peer_id)
        best_ones = [CompletionValue(tokens=2, reward=reward) for reward in (1.0, 1.0, *[0.0] * 6)]
        await desk.conclude(SelectionSuspect(granted=next_one, withheld=0.5, other=None), best_ones)
        [banned] = again.logged("peer_banned")
        assert "in 50 checked groups" in str(banned["reason"])
        assert again.ledger.trust.selection_history(OTHER.peer_id).audits == 50


async def test_an_engine_that_cannot_draw_it_costs_nobody_anything(tmp_path: Path) -> None:
    def script(op: str) -> None:
        if op == "generate":
            raise EngineRefused("out_of_memory", "the prompt does not fit")

    judge = Judge(script=script)
    async with open_learner(tmp_path, Settings(audits=True, steps=8, staleness=3), judge=judge) as learner:
        await learner.train(FakePeer(), FakePeer(key=OTHER, keeps=good_ones))
        assert learner.logged("choice_impossible")
        assert learner.logged("peer_banned") == []
        assert learner.ledger.trust.selection_history(OTHER.peer_id).audits == 0


@asynccontextmanager
async def drawing_beside_an_audit(root: Path) -> AsyncIterator[tuple[Learner, SelectionLoop, LeaseId]]:
    """Yield a learner with a group to regenerate, while training waits for the audit of another lease, which never
    runs.
    """
    async with (
        running_selection(root, Settings(audits=True, steps=2)) as (learner, selection),
        trio.open_nursery() as nursery,
    ):
        newest = max(learner.capacity.manifests)
        admit(selection.service, *delivered(learner, newest))
        lease, group = delivered(learner, newest, number=1000, peer=OTHER.peer_id)
        learner.trust.agenda.add(work_of(lease, group, waits=True))
        selection.service.drawn = 0
        nursery.start_soon(selection.run)
        learner.run.notify()  # something else changed
        await trio.testing.wait_all_tasks_blocked()
        assert len(selection.service) == 1
        yield learner, selection, lease.id
        nursery.cancel_scope.cancel()


async def test_what_training_waits_for_is_audited_before_anything_is_drawn(tmp_path: Path) -> None:
    async with drawing_beside_an_audit(tmp_path) as (learner, selection, lease):
        learner.trust.give_up(lease)
        await until(lambda: selection.service.drawn == 1)


async def test_newcomers_without_end_do_not_end_draws(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    async with drawing_beside_an_audit(tmp_path) as (learner, selection, _):
        mock_clock.jump(GIVES_WAY_S)
        await until(lambda: selection.service.drawn == 1)
        assert learner.trust.agenda.waiting == 1


async def test_one_peer_cannot_crowd_out_the_others(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(audits=True, steps=2)) as learner:
        await learner.train(FakePeer())
        assert learner.selection is not None
        desk, published = learner.selection.service, learner.run.published
        assert published is not None
        for number in range(1, 2 * MAX_OF_A_PEER):
            lease = granted(number, minimum=published.version)
            close(desk, lease, published.version, "returned")
        assert len(desk) == MAX_OF_A_PEER
        close(desk, granted(99, minimum=published.version), published.version, "recalled")
        other = granted(100, minimum=published.version, peer=OTHER.peer_id)
        close(desk, other, None, "expired")
        assert len(desk) == MAX_OF_A_PEER + 1
        assert len(desk.next()) == MAX_OF_A_PEER + 1, "all suspects of one version must come together"
        for one in desk.next():
            desk.end(one)
        assert len(desk) == 0
        assert desk.next() == []


THIRD = PeerId("third")


def delivered(
    learner: Learner, *names: PolicyVersion, number: int = 999, peer: PeerId = PEER.peer_id
) -> tuple[GrantedLease, list[AdmittedRecord]]:
    """Return an admitted group with a completion of each of these versions."""
    lease = granted(number, size=len(names), minimum=names[0], prompt_index=0, peer=peer)
    learner.ledger.work.leases_issued([lease_row(lease)])
    raws = [
        record(
            lease.lease,
            index,
            tokens=honest_tokens(seed),
            logprobs=pack_logprobs([-0.5] * 3),
            spans=[Span(0, 3, name, learner.capacity.manifests[name])],
        )
        for index, (seed, name) in enumerate(zip(lease.lease.seeds, names, strict=True))
    ]
    return lease, [AdmittedRecord(signed=read_record(raw, SWARM.authority.swarm), reply=None) for raw in raws]


@asynccontextmanager
async def running_selection(
    root: Path, settings: Settings, *, share: float = 1.0
) -> AsyncIterator[tuple[Learner, SelectionLoop]]:
    """Yield a learner that has trained, which checks this share of the deliveries, and none yet."""
    async with open_learner(root, settings) as learner:
        await learner.train(FakePeer())
        assert learner.selection is not None
        learner.selection.service.share = share
        forget(learner.selection.service)
        yield learner, learner.selection


async def test_without_a_reason_the_newest_are_looked_at_and_no_more_than_a_few_wait(tmp_path: Path) -> None:
    async with running_selection(tmp_path, Settings(audits=True, steps=2)) as (learner, selection):
        desk = selection.service
        newest = max(learner.capacity.manifests)
        pinned = learner.store._pins[learner.capacity.manifests[newest]]
        for number in range(3 * MAX_ROUTINE):
            peer = PeerId(f"peer {number % 3}")
            admit(desk, *delivered(learner, newest, newest, number=number + 1000, peer=peer))
        assert [one.granted.id for one in desk.next()] == [
            lease_id(number + 1000) for number in range(2 * MAX_ROUTINE, 3 * MAX_ROUTINE)
        ]
        assert desk.next(routine=False) == [], "there is no evidence against these peers"
        begun = desk.next()[:3]
        desk.begin(begun)
        admit(desk, *delivered(learner, newest, newest, number=5000))
        assert [one for one in desk.next() if one in begun] == begun, "the store must keep versions in use"
        forget(desk)
        assert learner.store._pins[learner.capacity.manifests[newest]] == pinned


async def test_who_has_evidence_against_it_is_looked_at_as_many_times_more(tmp_path: Path) -> None:
    async with running_selection(tmp_path, Settings(audits=True, steps=2), share=1 / 8) as (learner, selection):
        desk = selection.service
        newest = max(learner.capacity.manifests)
        desk._known[OTHER.peer_id] = History(audits=50, log_wealth=(math.log(24.0), -math.inf))
        desk._known[THIRD] = History(audits=50, log_wealth=(-5.0, -5.0))
        assert 8 < math.exp(log_evidence(desk._known[OTHER.peer_id])) < 100
        looked_at = dict.fromkeys((PEER.peer_id, OTHER.peer_id, THIRD), 0)
        for place, peer in enumerate(looked_at):
            for number in range(1000 + 400 * place, 1200 + 400 * place):
                admit(desk, *delivered(learner, newest, newest, number=number, peer=peer))
                looked_at[peer] += len(desk)
                forget(desk)
        assert looked_at[OTHER.peer_id] == 200
        assert 10 < looked_at[PEER.peer_id] < 45
        assert 10 < looked_at[THIRD] < 45, "a peer that was honest for long must still be checked"


async def test_without_a_reason_who_has_least_against_it_makes_room(tmp_path: Path) -> None:
    async with running_selection(tmp_path, Settings(audits=True, steps=2)) as (learner, selection):
        desk = selection.service
        newest = max(learner.capacity.manifests)
        desk._known[OTHER.peer_id] = History(audits=50, log_wealth=(2.0, 2.0))
        number = iter(range(1000, 2000))

        def deliver(peer: PeerId) -> None:
            admit(desk, *delivered(learner, newest, newest, number=next(number), peer=peer))

        def waiting() -> list[PeerId]:
            return [one.granted.peer for one in desk._waiting]

        for _ in range(MAX_OF_A_PEER):
            deliver(OTHER.peer_id)
        for peer in (PEER.peer_id, THIRD):
            for _ in range(MAX_OF_A_PEER):
                deliver(peer)
        assert waiting() == [OTHER.peer_id] * 8 + [THIRD] * 8
        desk._known = dict.fromkeys((PEER.peer_id, OTHER.peer_id, THIRD), desk._known[OTHER.peer_id])
        deliver(FOURTH := PeerId("fourth"))
        assert FOURTH not in waiting(), "there is no evidence against it"


async def test_who_is_suspected_or_withholds_is_not_routine(tmp_path: Path) -> None:
    async with running_selection(tmp_path, Settings(audits=True, steps=2), share=0.999) as (learner, selection):
        desk = selection.service
        newest = max(learner.capacity.manifests)
        desk._known[OTHER.peer_id] = History(audits=50, log_wealth=(0.0, 12.0))
        for number in range(1000, 1020):
            close(desk, granted(number, minimum=newest, peer=THIRD), newest, "returned")
        for place, peer in enumerate((PEER.peer_id, OTHER.peer_id, THIRD)):
            forget(desk)
            desk.share = 1 / 8 if peer == THIRD else 1.0
            for number in range(2000 + 100 * place, 2040 + 100 * place):
                admit(desk, *delivered(learner, newest, newest, number=number, peer=peer))
            assert desk.next()
            assert bool(desk.next(routine=False)) is (peer != PEER.peer_id)


async def test_a_group_that_used_every_version_there_is_ends_nothing(tmp_path: Path) -> None:
    """The other version has then generated a part of the group as well."""
    async with running_selection(tmp_path, Settings(audits=True, steps=4, staleness=1)) as (learner, selection):
        desk, own = selection.service, learner.capacity
        could = [of for of in sorted(own.manifests) if judge(own.chain, [of], own.window) is Admissibility.ADMISSIBLE]
        assert len(could) == 2
        before = desk.drawn
        admit(desk, *delivered(learner, *could))
        [suspect] = desk.next()
        assert suspect.other in [one.version for one in suspect.made]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(selection.run)
            await until(lambda: desk.drawn > before)
            nursery.cancel_scope.cancel()


async def test_a_version_that_is_named_in_pieces_is_one_version(tmp_path: Path) -> None:
    async with running_selection(tmp_path, Settings(audits=True, steps=2)) as (learner, selection):
        newest = max(learner.capacity.manifests)
        lease, group = delivered(learner, newest, newest)
        cut = [Span(place, place + 1, newest, learner.capacity.manifests[newest]) for place in range(3)]
        raws = [record(lease.lease, one.signed.record.index, tokens=one.signed.tokens, spans=cut) for one in group]
        pieces = [AdmittedRecord(signed=read_record(raw, SWARM.authority.swarm), reply=None) for raw in raws]
        admit(selection.service, lease, pieces)
        [suspect] = selection.service.next()
        assert [made.index for made in suspect.made] == [0, 1]


@pytest.mark.parametrize(("rule", "looks"), [("settings", True), ("recalled", False), ("orphaned", False)])
async def test_what_is_answered_by_nothing_of_use_is_withheld(tmp_path: Path, rule: str, looks: bool) -> None:
    async with (
        running_selection(tmp_path, Settings(audits=True, steps=2)) as (learner, selection),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(learner.intake.run, learner.arriving)
        newest = max(learner.capacity.manifests)
        lease = granted(999, size=1, minimum=newest, prompt_index=0)
        learner.ledger.work.leases_issued([lease_row(lease)])
        learner.capacity.leasing.recover(lease)
        if rule == "recalled":
            learner.capacity.leasing.recall(lease.id)
        if rule == "orphaned":
            learner.capacity.chain = learner.capacity.chain.restart(newest.version - 1)
        spans = [Span(0, 3, newest, learner.capacity.manifests[newest])]
        raw = record(lease.lease, 0, spans=spans, sampler=Sampler(temperature=0.25))
        await hand_in(learner, PEER.peer_id, Delivery(lease=lease.id, records=[raw]))
        found = [suspect.granted.id for suspect in selection.service.next()]
        assert found == ([lease.id] if looks else [])
        nursery.cancel_scope.cancel()


async def test_what_is_put_together_again_is_not_looked_at_twice(tmp_path: Path) -> None:
    async with running_selection(tmp_path, Settings(audits=True, steps=2)) as (learner, selection):
        desk = selection.service
        newest = max(learner.capacity.manifests)
        group = delivered(learner, newest, newest)
        assert learner.trust.admit(*group)
        [suspect] = desk.next()
        desk.end(suspect)
        await learner.trust.recover([group])
        assert desk.next() == []
        assert learner.trust.agenda.next() is not None, "the audit must still be due"


async def test_completions_of_several_versions_are_each_regenerated_with_their_own(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(audits=True, steps=2)) as learner:
        await learner.train(FakePeer())
        assert learner.selection is not None
        desk, lease = learner.selection.service, granted(999, size=3, peer=OTHER.peer_id)
        older, newer, other = (
            InstalledVersion(name=version(name), manifest=manifest(version(name))) for name in ("1.1", "1.2", "1.3")
        )
        made = tuple(
            DeliveredCompletion(index=index, tokens=(index + 1, 0), version=of)
            for index, of in ((2, older), (0, newer), (1, newer))
        )
        suspect = SelectionSuspect(granted=lease, withheld=0.0, other=other, made=made)
        asked = desk.requests(suspect)
        assert list(suspect.versions) == [older, newer, other]
        assert [of for of, _ in asked] == [older, newer, other, older, newer]
        assert [len(requests) for _, requests in asked] == [2, 4, 9, 1, 2], "two of our completions for each of theirs"
        ours = [request.seed for _, requests in asked[:2] for request in requests]
        seeds = [lease.lease.seeds[index] for index in (2, 0, 1)]
        assert [request.seed for request in asked[2][1]] == [*seeds, *ours]
        assert [request.seed for _, requests in asked[3:] for request in requests] == seeds
        assert len({*ours, *seeds}) == 9
        said, ours_here = [1.0, 0.0, 1.0], [*(0.0, 0.0), *(0.0, 1.0), *(0.0, 0.0)]
        there, here = [0.0, 0.0, 1.0, *(0.0, 0.0, 1.0, 0.0, 0.0, 0.0)], [1.0, 0.0, 0.0]
        learner.ledger.work.leases_issued([lease_row(lease)])
        drawn = [CompletionValue(tokens=2, reward=reward) for reward in [*said, *ours_here, *there]]
        await desk.conclude(suspect, [*drawn, *(CompletionValue(tokens=3, reward=reward) for reward in here)])
    [(choice, theirs, ours_seen, heard)] = rows(tmp_path, f"SELECT choice, theirs, ours, heard FROM choices {OF_OTHER}")
    assert (choice, heard) == ("delivered", 1)
    gains = [[3, 1.0], [3, 0.0], [3, -1.0]]
    assert json.loads(theirs) == [[2, one, gain] for one, gain in zip(said, gains, strict=True)], (
        "both rewards must come from our own engine"
    )
    assert json.loads(ours_seen) == [
        [2, one, [2, one - other]] for one, other in zip(ours_here, there[3:], strict=True)
    ]
