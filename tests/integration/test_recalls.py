"""Leases that can no longer be used: from the batch that makes them too old to the engine that is stopped."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from learner.provisioning.estimation.recording import Delivered, Withdrawn
from node.rollout_role.worker import RolloutWorker
from node.runtime.events import EventLog
from protocol.core.ids import LeaseId
from protocol.work import LeaseRecall
from swarm.testing.memory_transport import MemoryNetwork
from tests.support.learner_fixture import FakePeer, Learner, Settings, open_learner
from tests.support.rollout_fixture import serve, work_with
from tests.support.swarm_fixture import open_node
from tests.support.trainer_fixture import SWARM, lease_id, version

NEVER_S = 1e6
"""Seconds per token of an engine that never finishes."""

ROOMY = Settings(steps=9, staleness=2, ahead=5.0)
"""Batches of four rollouts, and room for what the slow node holds beside what the quick one generates."""


class Watched:
    """A role, and its node's log."""

    def __init__(self) -> None:
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.generating = trio.Event()

    def __call__(self, role: RolloutWorker, events: EventLog) -> None:
        self.role = role
        role.counts.tokens_per_s = 1.0  # no trial: this engine would not end it
        events.listen(lambda name, fields: self.log.append((name, dict(fields))))
        generate = role.engine.generate

        async def told(requests: Any) -> Any:
            self.generating.set()
            return await generate(requests)

        role.engine.generate = told  # type: ignore[method-assign]

    def returned(self) -> list[str]:
        return [str(fields["reason"]) for name, fields in self.log if name == "leases_given_back"]


@dataclass(kw_only=True)
class Second(FakePeer):
    """A peer that comes when that event has happened."""

    after: trio.Event

    async def work(self, learner: Learner) -> None:
        await self.after.wait()
        await super().work(learner)


def fates(learner: Learner, peer: str) -> list[tuple[str, bool]]:
    """Return how a peer's leases ended, and which were recalled."""
    with closing(sqlite3.connect(learner.root / "ledger.sqlite")) as db:
        return db.execute(
            "SELECT status, lease IN recalled FROM leases WHERE peer = ? ORDER BY issued_ms, rowid", (peer,)
        ).fetchall()


async def test_what_comes_too_late_is_stopped_and_leased_to_others(tmp_path: Path) -> None:
    """The slow node holds eight rollouts, and each that it begins becomes too old. If the learner counted on them for
    as long as they are leased, the quick node would soon have nothing to do, and the run would not end.
    """
    network, slow = MemoryNetwork(), Watched()
    async with (
        open_learner(tmp_path, ROOMY, network=network) as learner,
        open_node(network, SWARM, tmp_path, "slow", follows=True) as node,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        nursery.start_soon(work_with, node, learner, tmp_path, NEVER_S, slow)
        await learner.train(Second(after=slow.generating))
        nursery.cancel_scope.cancel()
        assert learner.capacity.chain.head.version == ROOMY.steps
        returned = [event for event in learner.logged("leases_returned") if event["peer"] == node.peer]
        told = [event for event in learner.logged("leases_recalled") if event["peer"] == node.peer]
        assert sum(int(str(event["recalled"])) for event in returned) >= 2
        assert sum(int(str(event["rollouts"])) for event in told) >= 4
        assert learner.capacity.leasing.recalled == {} or told[-1]["minimum"] == str(learner.capacity.minimum)
        events = learner.recorded()
    reasons = slow.returned()
    assert reasons
    assert all("the learner accepts only records of version 1." in reason for reason in reasons)
    assert slow.role.counts.engine_s > 0, "engine time must count for rollouts that were too late"
    assert not [event for event in events if isinstance(event, Delivered) and event.peer == node.peer]
    ended = [event for event in events if isinstance(event, Withdrawn) and event.peer == node.peer]
    assert {event.status for event in ended} <= {"recalled", "spared"}
    assert sum(event.rollouts for event in ended if event.status == "recalled") >= 4
    assert ("returned", 1) in fates(learner, node.peer)
    assert ("returned", 0) not in fates(learner, node.peer)


async def test_a_node_drops_only_what_it_holds_and_what_is_too_old_for_it(tmp_path: Path) -> None:
    network, slow = MemoryNetwork(), Watched()
    async with (
        open_learner(tmp_path, ROOMY, network=network) as learner,
        open_node(network, SWARM, tmp_path, "slow", follows=True) as node,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        await learner.training.begin()
        nursery.start_soon(learner.sessions.run)
        nursery.start_soon(learner.sessions.leases.run)
        nursery.start_soon(work_with, node, learner, tmp_path, NEVER_S, slow)
        await slow.generating.wait()
        role = slow.role
        first, second = sorted(role._begun.leases) if role._begun else []
        held = set(role.holding)
        role.recall(LeaseRecall(leases=[first, second, lease_id(99)], minimum=version("1.0")))
        role.recall(LeaseRecall(leases=[lease_id(99)], minimum=version("9.9")))
        role.recall(LeaseRecall(leases=[], minimum=version("9.9")))
        assert role.holding == held
        role.recall(LeaseRecall(leases=[first], minimum=version("1.1")))
        assert role.holding == held - {first}
        assert role._begun is not None, "the engine must go on with the other lease"
        role.recall(LeaseRecall(leases=[first], minimum=version("1.1")))
        assert len(slow.returned()) == 1
        slow.generating = trio.Event()
        role.recall(LeaseRecall(leases=sorted(held), minimum=version("9.9")))
        assert role.holding == set()
        await slow.generating.wait()  # it gets new leases and works: a lying learner costs work and no more
        assert not role.holding & held
        assert role.counts.pending == 2 * len(role.holding)
        nursery.cancel_scope.cancel()


async def test_a_recall_that_a_broken_line_lost_is_told_on_the_next_one(tmp_path: Path) -> None:
    network, slow = MemoryNetwork(), Watched()
    async with (
        open_learner(tmp_path, ROOMY, network=network) as learner,
        open_node(network, SWARM, tmp_path, "slow", follows=True) as node,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        await learner.training.begin()
        nursery.start_soon(learner.sessions.run)
        nursery.start_soon(work_with, node, learner, tmp_path, NEVER_S, slow)
        await slow.generating.wait()
        while not learner.capacity.leasing._started:
            await trio.lowlevel.checkpoint()
        begun: set[LeaseId] = set(learner.capacity.leasing._started)
        for lease in begun:
            learner.capacity.leasing.recall(lease)  # and no node was told
        learner.capacity.collecting = learner.capacity.chain.head.version + 3
        network.cut(learner.transport.peer_id, node.peer)
        while begun & set(learner.capacity.leasing.open):
            await trio.lowlevel.checkpoint()
        assert slow.returned()
        nursery.cancel_scope.cancel()
