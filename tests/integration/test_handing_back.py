"""A node leaves in the middle of its leases: its tokens are kept, and another node continues them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import trio

from node.engine.fake import FakeEngine, _first
from node.engine.interface import Generation, GenerationRequest
from node.rollout_role.worker import RolloutWorker
from node.runtime.events import EventLog
from protocol.work import PARTS, Welcome
from swarm.testing.memory_transport import MemoryNetwork
from tests.support.learner_fixture import Learner, Settings, open_learner
from tests.support.rollout_fixture import serve, work_with
from tests.support.swarm_fixture import open_node
from tests.support.trainer_fixture import SWARM

SETTINGS = Settings(steps=3, staleness=2, ahead=2.0)


class Leaver:
    """A role whose engine generates the first tokens of a lease, as many as `made` says by place, and then stops until
    it is interrupted.
    """

    def __init__(self, *made: int) -> None:
        self.made = made
        self.generating, self.stop = trio.Event(), trio.Event()
        self.log: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, role: RolloutWorker, events: EventLog) -> None:
        self.role, engine = role, role.engine
        assert isinstance(engine, FakeEngine)
        role.counts.tokens_per_s = 1.0  # no trial
        events.listen(lambda name, fields: self.log.append((name, dict(fields))))

        async def generate(requests: Sequence[GenerationRequest]) -> list[Generation]:
            self.generating.set()
            version = engine.installed
            assert version is not None
            await self.stop.wait()
            whole = [engine._complete(version, request) for request in requests]
            return [_first(one, self.made[i % len(self.made)]) for i, one in enumerate(whole)]

        async def interrupt() -> None:
            self.stop.set()

        engine.generate = generate  # type: ignore[method-assign]
        engine.interrupt = interrupt  # type: ignore[method-assign]

    def told(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.log if name == event]


def ask(learner: Learner, sql: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(learner.root / "ledger.sqlite")) as db:
        return db.execute(sql, values).fetchall()


async def test_what_a_leaving_node_began_is_finished_by_another_and_trained_on(tmp_path: Path) -> None:
    network, leaver = MemoryNetwork(), Leaver(2, 9, 1, 0)
    async with (
        open_learner(tmp_path, SETTINGS, network=network) as learner,
        open_node(network, SWARM, tmp_path, "leaver", follows=True) as one,
        open_node(network, SWARM, tmp_path / "other", "stayer", follows=True) as other,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        nursery.start_soon(work_with, one, learner, tmp_path, 0.0, leaver)

        async def leave_to_the_other() -> None:
            await leaver.generating.wait()
            while len(learner.capacity.leasing.begun()) < 2:
                await trio.lowlevel.checkpoint()
            await leaver.role.leave()
            nursery.start_soon(work_with, other, learner, tmp_path / "other")

        nursery.start_soon(leave_to_the_other)
        await learner.train()
        nursery.cancel_scope.cancel()
        assert learner.capacity.chain.head.version == SETTINGS.steps
        handed = learner.logged("lease_handed_back")
        assert sum(int(str(event["tokens"])) for event in handed) == 2 + 4 + 1
        told = {(event["finished"], event["begun"]) for event in leaver.told("handed_back")}
        assert told == {(1, 1), (0, 1)}, "in whatever order"
        assert leaver.role.counts.tokens == 7, "the tokens must count for the node that generated them"
        left = ask(learner, "SELECT rule, step IS NOT NULL, tokens FROM records WHERE peer = ?", one.peer)
        assert sorted(left) == [("admitted", 1, 1), ("admitted", 1, 2), ("admitted", 1, 4)], (
            "every token that was handed back must be trained on"
        )
        whole = ask(
            learner,
            "SELECT sum(r.tokens) FROM records r JOIN continuations c USING (lease) WHERE r.peer = ?",
            other.peer,
        )
        assert whole[0][0] <= 4 * 4 - 7, "some tokens were generated twice"
        assert set(ask(learner, "SELECT status FROM leases WHERE peer = ?", one.peer)) == {("returned",)}


async def test_a_learner_that_takes_no_parts_is_given_the_lease_back(tmp_path: Path) -> None:
    network, leaver = MemoryNetwork(), Leaver(2)
    async with (
        open_learner(tmp_path, SETTINGS, network=network) as learner,
        open_node(network, SWARM, tmp_path, "leaver", follows=True) as one,
        trio.open_nursery() as nursery,
    ):
        welcome = learner.sessions.welcome

        async def older(*args: Any) -> Any:
            answer = await welcome(*args)
            assert isinstance(answer, Welcome)
            return Welcome(
                **{name: getattr(answer, name) for name in answer.__struct_fields__ if name != "ext"},
                ext={name: value for name, value in answer.ext.items() if name != PARTS},
            )

        learner.sessions.welcome = older  # type: ignore[method-assign]
        serve(learner)
        nursery.start_soon(work_with, one, learner, tmp_path, 0.0, leaver)
        await learner.training.begin()
        nursery.start_soon(learner.sessions.run)
        await leaver.generating.wait()
        await leaver.role.leave()
        assert (leaver.told("handed_back"), learner.logged("lease_handed_back")) == ([], [])
        while learner.capacity.leasing.open:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
