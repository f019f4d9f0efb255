"""Carry out plans: leases for active peers, and a reason for those on standby.

The planner decides what and when (tests/learner/provisioning/planner/test_planner.py); here its answers are fixed
beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from learner.provisioning.estimation.recording import Planned
from learner.provisioning.planner.constants import SOON_S
from learner.provisioning.planner.planner import Planner
from learner.provisioning.planner.review import Change, Decision, Situation
from learner.provisioning.planner.review import Settings as Planning
from learner.scheduling.peer_load import Held
from node.learner_role.scheduling.provisioner import Provisioner
from node.reports import swarm_report
from protocol.accounting.claims import Price
from protocol.core.ids import PeerId
from protocol.work import Grant, Heartbeat, LeaseRequest
from tests.support.learner_fixture import Learner, Settings, hello, open_learner, until
from tests.support.trainer_fixture import OTHER, PEER

HERE, THERE = PEER.peer_id, OTHER.peer_id
REVIEW_S = 5.0


class Written:
    """A planner whose decisions are written: who is on, and kappa. The last one stands."""

    def __init__(self, *decisions: tuple[set[PeerId], int]) -> None:
        self.decisions = list(decisions)
        self.seen: list[Situation] = []
        self._active: set[str] = set()

    def review(self, situation: Situation) -> Decision:
        self.seen.append(situation)
        active, kappa = self.decisions.pop(0) if len(self.decisions) > 1 else self.decisions[0]
        changes = [
            Change(peer=peer, active=peer in active, reason="it was written") for peer in sorted(active ^ self._active)
        ]
        self._active = set(active)
        return Decision(
            active=frozenset(active), kappa=kappa, changes=tuple(changes), share=1.1, price=0.5, next_review_s=REVIEW_S
        )

    def explain(self, name: str) -> str:
        return f"Standing by: {name[-4:]} is not on." * 40


@dataclass(kw_only=True, eq=False)
class CountingSteward(Provisioner):
    """One that tells how many reviews are over: only between two may a test move its clock."""

    reviews: int = 0

    async def review(self) -> None:
        await super().review()
        self.reviews += 1


def steward_of(learner: Learner, planner: Written | Planner) -> CountingSteward:
    return CountingSteward(
        context=learner.context,
        recorder=learner.recorder,
        planner=cast(Planner, planner),
        review_s=REVIEW_S,
    )


async def joined(learner: Learner) -> None:
    await learner.training.begin()
    for peer in (HERE, THERE):
        await learner.sessions.welcome(peer, hello(name=peer[-4:]))


def granted(learner: Learner, peer: PeerId) -> bool:
    """Whether a request of the peer is served now."""
    learner.scheduler.ask(peer, 2)
    served = any(one == peer for one, _ in learner.scheduler.serve(learner.wall.now_ms(), peer))
    learner.scheduler.withdraw(peer)
    return served


async def test_who_is_on_is_leased_to_and_who_stands_by_is_told_why(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(ahead=4.0)) as learner:
        await joined(learner)
        assert granted(learner, THERE), "until the first review everybody is served"
        planner = Written(({HERE}, 1), ({HERE, THERE}, 2), ({HERE, THERE}, 2))
        steward = steward_of(learner, planner)
        await steward.review()
        assert granted(learner, HERE)
        assert not granted(learner, THERE)
        assert learner.scheduler.held(THERE, learner.wall.now_ms()) is Held.STANDBY
        reason = learner.scheduler.worker(THERE).standby
        assert reason.startswith("Standing by")
        assert len(reason) <= 512, "it fits a message"
        assert learner.logged("peer_activated") == [{"peer": HERE, "name": HERE[-4:], "reason": "it was written"}]
        await steward.review()
        assert granted(learner, THERE)
        assert learner.run.kappa == 2
        assert [fields["kappa"] for fields in learner.logged("period_changed")] == [2]
        await steward.review()
        report = swarm_report(learner.ledger.path)
        assert [(plan.active, plan.kappa) for plan in report.plans] == [
            ((HERE,), 1),
            (tuple(sorted((HERE, THERE))), 2),
        ], "a review that changes nothing is no plan"
        plan = learner.recorder.observatory.plan
        assert plan is not None
        assert plan.active == sorted((HERE, THERE))
        assert {one.name for one in planner.seen[0].candidates} == {HERE, THERE}


async def test_who_is_switched_on_while_it_asks_is_served_at_once(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(ahead=4.0)) as learner, trio.open_nursery() as nursery:
        await joined(learner)
        nursery.start_soon(learner.sessions.leases.run)
        steward = steward_of(learner, Written(({HERE}, 1), ({HERE, THERE}, 1)))
        await steward.review()
        grants: list[Grant] = []

        async def ask() -> None:
            grants.append(await learner.sessions.grant(THERE, LeaseRequest(rollouts=2)))

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        assert grants == []
        await steward.review()
        await until(lambda: bool(grants))
        assert grants[0].leases
        nursery.cancel_scope.cancel()


async def test_with_activation_off_everybody_is_on_and_what_all_cost_is_told(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(ahead=4.0)) as learner:
        await learner.training.begin()
        for peer in (HERE, THERE):
            asked = hello(name=peer[-4:], price=Price(micros_per_hour=200_000))
            await learner.sessions.welcome(peer, asked)
        planner = Planner(Planning(rollouts=4, staleness=1, activate=False))
        await steward_of(learner, planner).review()
        assert granted(learner, THERE)
        report = swarm_report(learner.ledger.path)
        assert [plan.active for plan in report.plans] == [tuple(sorted((HERE, THERE)))]
        assert learner.recorder.observatory.plan is not None
        assert learner.recorder.observatory.plan.price == pytest.approx(0.4)
        assert learner.logged("peer_released") == []


async def test_a_new_incarnation_is_told_the_plan_that_holds(tmp_path: Path) -> None:
    """Its recording begins anew, and an observatory that heard of no plan takes everybody to be on."""
    async with open_learner(tmp_path, Settings(ahead=4.0)) as learner:
        await joined(learner)
        steward = steward_of(learner, Written(({HERE}, 2)))
        await steward.review()
        await learner.training.begin()
        assert learner.recorder.observatory.plan is None
        await steward.review()
        assert learner.recorder.observatory.active == {HERE}
        assert learner.recorder.observatory.kappa == 2
        assert [event.active for event in learner.recorded() if isinstance(event, Planned)] == [[HERE], [HERE]]
        assert len(learner.logged("period_changed")) == 1


async def test_standing_by_is_timed(tmp_path: Path, mock_clock: MockClock) -> None:
    async with open_learner(tmp_path, Settings()) as learner:
        await joined(learner)
        steward = steward_of(learner, Written(({HERE}, 1), ({HERE}, 1), ({HERE, THERE}, 1)))
        for seconds in (3.0, 2.0, 7.0):
            mock_clock.jump(seconds)
            learner.wall.ms += round(1000 * seconds)
            await steward.review()
        mock_clock.jump(50.0)
        learner.wall.ms += 50_000
        await learner.sessions._write()
        assert learner.run.present[THERE].standby_s == pytest.approx(9.0)
        assert learner.run.present[HERE].standby_s == 0
        peers = {peer.peer: peer for peer in swarm_report(learner.ledger.path).peers}
        assert peers[THERE].standby_s == pytest.approx(9.0)


async def test_reviews_come_in_time_and_when_somebody_comes(tmp_path: Path, mock_clock: MockClock) -> None:
    async with open_learner(tmp_path, Settings()) as learner, trio.open_nursery() as nursery:
        planner = Written(({HERE}, 1))
        steward = steward_of(learner, planner)
        nursery.start_soon(steward.run)
        await wait_all_tasks_blocked()
        assert planner.seen == [], "not before the chain is known"
        await joined(learner)
        await until(lambda: steward.reviews == 1)
        for reviews, seconds in ((2, SOON_S), (3, REVIEW_S)):
            await wait_all_tasks_blocked()
            mock_clock.jump(seconds)
            await until(lambda reviews=reviews: steward.reviews == reviews)  # type: ignore[misc]
        nursery.cancel_scope.cancel()


async def test_those_who_come_together_are_looked_at_together(tmp_path: Path, mock_clock: MockClock) -> None:
    async with open_learner(tmp_path, Settings()) as learner, trio.open_nursery() as nursery:
        await joined(learner)
        steward = steward_of(learner, Written(({HERE}, 1)))
        nursery.start_soon(steward.run)
        await until(lambda: steward.reviews == 1)
        for _ in range(100):
            learner.context.signals.peers_changed.emit(None)
            await wait_all_tasks_blocked()
        assert steward.reviews == 1
        mock_clock.jump(SOON_S)
        await until(lambda: steward.reviews == 2)
        await wait_all_tasks_blocked()
        assert steward.reviews == 2
        nursery.cancel_scope.cancel()


async def test_who_is_outside_its_owners_hours_stands_by_until_they_begin(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(ahead=4.0)) as learner:
        await joined(learner)
        calls: list[None] = []
        learner.context.signals.peers_changed.subscribe(lambda _: calls.append(None))
        steward = steward_of(learner, Planner(Planning(rollouts=4, staleness=1, activate=False)))
        await steward.review()
        assert granted(learner, THERE)
        learner.sessions.take_heartbeat(THERE, Heartbeat(hours_left_s=0.0))
        assert not granted(learner, THERE), "before any review"
        assert learner.scheduler.held(THERE, learner.wall.now_ms()) is Held.HOURS
        assert len(calls) == 1
        await steward.review()
        assert not granted(learner, THERE)
        assert learner.scheduler.worker(THERE).standby.startswith(
            "On standby: when the last plan was made, your machine was not lent"
        )
        assert [fields["reason"] for fields in learner.logged("peer_released")] == [
            "deactivated: it is not lent now (outside its owner's hours, or paused)"
        ]
        assert learner.recorder.observatory.active == {HERE}
        learner.wall.ms += 40_000_000
        learner.sessions.take_heartbeat(THERE, Heartbeat(hours_left_s=3600.0))
        assert len(calls) == 2
        await steward.review()
        assert granted(learner, THERE)
        assert learner.scheduler.worker(THERE).standby == ""


async def test_the_reason_to_stand_by_is_told_anew_when_hours_begin(tmp_path: Path) -> None:
    """Also to who was not on before, and is not on then, so that no plan changes."""
    async with open_learner(tmp_path, Settings(ahead=4.0)) as learner:
        await joined(learner)
        planner = Written(({HERE}, 1))
        steward = steward_of(learner, planner)
        await steward.review()
        before = learner.scheduler.worker(THERE).standby
        planner.explain = lambda name: "Standing by: something else"  # type: ignore[method-assign]
        await steward.review()
        assert learner.scheduler.worker(THERE).standby == before
        learner.sessions.take_heartbeat(THERE, Heartbeat(hours_left_s=0.0))
        await steward.review()
        assert learner.scheduler.worker(THERE).standby == "Standing by: something else"
