"""A rollout node with a failing engine tells the learner, slows down, and gives up in the end."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from node.config.swarm_config import GIVE_UP_S
from node.engine.interface import (
    EngineCrashed,
    EngineError,
    EngineRefused,
    Generation,
    GenerationRequest,
    InstalledVersion,
    InstallFailed,
)
from node.rollout_role.retry_policy import LONGEST_PAUSE_S
from node.rollout_role.worker import HELD, GaveUp, RolloutWorker
from node.runtime.events import EventLog
from protocol.core.ids import PolicyVersion
from protocol.trouble import Trouble, TroubleKind
from swarm.testing.memory_transport import MemoryNetwork
from swarm.transport.error_groups import first_cause
from tests.support.learner_fixture import FakePeer, Learner, Settings, open_learner, until
from tests.support.rollout_fixture import serve, work_with
from tests.support.swarm_fixture import SwarmNode, open_node
from tests.support.trainer_fixture import SWARM

ROOMY = Settings(steps=100_000, staleness=2, ahead=5.0)
NO = "a prompt leaves the vocabulary of 320"
FIRST = PolicyVersion(1, 0)

LOST = "the engine process was ended: it held 9.00 GB of memory; restarted 5 times in 600 s and given up"


async def test_an_engine_that_was_given_up_ends_the_node_after_its_leases_went_back(tmp_path: Path) -> None:
    network, returned, pending = MemoryNetwork(), list[object](), list[object]()

    def lose(role: RolloutWorker, events: EventLog) -> None:
        async def generate(requests: Sequence[GenerationRequest]) -> list[Generation]:
            await trio.lowlevel.checkpoint()
            raise EngineError(LOST)

        def note(name: str, fields: Mapping[str, object]) -> None:
            if name == "leases_given_back":
                returned.append(fields["reason"])
            if name == "work_pending":
                pending.append(fields["rollouts"])

        role.counts.tokens_per_s = 1.0  # no trial
        role.engine.generate = generate  # type: ignore[method-assign]
        events.listen(note)

    async def lost(learner: Learner, node: SwarmNode) -> None:
        with pytest.raises(EngineError, match="given up"), first_cause():
            await work_with(node, learner, tmp_path, 0.0, lose)

    async with (
        open_learner(tmp_path, Settings(steps=100_000, staleness=2, ahead=5.0), network=network) as learner,
        open_node(network, SWARM, tmp_path, "node", follows=True) as node,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        nursery.start_soon(learner.train)
        await lost(learner, node)
        await until(lambda: node.peer not in learner.run.present)
        unable = learner.run.unable()
        nursery.cancel_scope.cancel()
    assert returned == [LOST]
    assert unable.text == f"1 of 1 nodes cannot keep their engine alive: {LOST}", "and its learner knows why it is gone"
    assert len(pending) == 2, "said when it changes"
    assert pending[0] != 0 == pending[1]


class Failing:
    """A role whose engine fails as `refuse` and `install` say, each told how often it was asked before; and what its
    node logs."""

    def __init__(self, *, refuse: Any = None, install: Any = None) -> None:
        self.refuse, self.install = refuse, install
        self.asked: list[float] = []
        self.installs: list[tuple[float, PolicyVersion]] = []
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.here = trio.Event()

    def __call__(self, role: RolloutWorker, events: EventLog) -> None:
        self.role = role
        role.counts.tokens_per_s = 1.0  # no trial
        events.listen(lambda name, fields: self.log.append((name, dict(fields))))
        engine: Any = role.engine
        generates, installs = engine.generate, engine.install

        async def generate(requests: Sequence[GenerationRequest]) -> list[Generation]:
            await trio.lowlevel.checkpoint()
            self.asked.append(trio.current_time())
            if self.refuse is not None and (error := self.refuse(len(self.asked) - 1)) is not None:
                raise error
            return await generates(requests)  # type: ignore[no-any-return]

        async def install(version: InstalledVersion, directory: Path) -> None:
            await trio.lowlevel.checkpoint()
            self.installs.append((trio.current_time(), version.name))
            if self.install is not None and (error := self.install(version.name)) is not None:
                raise error
            await installs(version, directory)

        engine.generate, engine.install = generate, install
        self.here.set()

    def told(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.log if event == name]


@asynccontextmanager
async def failing(root: Path, role: Failing) -> AsyncIterator[tuple[Learner, SwarmNode, trio.Nursery]]:
    """A learner that trains, and a node on its way to it with that engine; the caller has it work."""
    network = MemoryNetwork()
    async with (
        open_learner(root, ROOMY, network=network) as learner,
        open_node(network, SWARM, root, "node", follows=True) as node,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        nursery.start_soon(learner.train)
        yield learner, node, nursery
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (EngineRefused("bad_request", NO), TroubleKind.LEASE, "use none of its leases"),
        (EngineCrashed(f"{NO}\n  | Traceback"), TroubleKind.ENGINE, "did not get through a batch"),
        (EngineRefused("not_finite", ""), TroubleKind.LEASE, "use none of its leases"),
    ],
)
async def test_an_engine_that_refuses_every_lease_is_tried_seldom_told_of_and_given_up(
    tmp_path: Path, autojump_clock: MockClock, error: EngineError, kind: TroubleKind, words: str
) -> None:
    role = Failing(refuse=lambda number: error)
    async with failing(tmp_path, role) as (learner, node, _):
        with pytest.raises(GaveUp, match=words) as gave_up, first_cause():
            await work_with(node, learner, tmp_path, 0.0, role)
        leases = learner.ledger.work.counts()[0]
        await until(lambda: node.peer not in learner.run.present)
        unable = learner.run.unable()
    reason = NO if str(error) else "no reason given"
    assert reason in str(gave_up.value)
    batches = len(role.told("leases_given_back"))
    assert 3 <= batches <= 2 + math.log2(GIVE_UP_S), "one for each doubling, and one that was asked for meanwhile"
    assert leases <= 2 * batches + 2
    assert role.asked[-1] - role.asked[0] >= GIVE_UP_S / 2
    assert unable.is_everyone
    assert unable.text.endswith(reason), "it has left, and its learner knows why"
    assert role.told("gave_up") == [{"reason": str(gave_up.value)}]
    assert [one.kind for one in role.role.retry_policy.troubles] == [kind]


async def test_a_version_that_cannot_be_installed_is_tried_seldom_told_of_and_given_up(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    role = Failing(install=lambda version: InstallFailed("attention 'x' is not supported"))
    async with failing(tmp_path, role) as (learner, node, _):
        with pytest.raises(GaveUp, match="no version could be installed") as gave_up, first_cause():
            await work_with(node, learner, tmp_path, 0.0, role)
        await until(lambda: node.peer not in learner.run.present)
        unable = learner.run.unable()
    assert unable.text == "1 of 1 nodes cannot install 1.0: attention 'x' is not supported"
    assert "attention 'x' is not supported. Tell the swarm's operator" in str(gave_up.value)
    times = [round(at_s - role.installs[0][0]) for at_s, _ in role.installs]
    assert times == [0, 5, 15, 35, 75, 155, 315]
    assert [fields["again"] for fields in role.told("install_failed")][:3] == [
        "again in 5 s", "again in 10 s", "again in 20 s",
    ]  # fmt: skip
    assert role.told("leases_given_back") == []


async def test_what_fails_for_a_while_is_told_and_taken_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    mended: list[bool] = []
    role = Failing(refuse=lambda number: None if mended else EngineRefused("out_of_memory", "no memory"))
    async with failing(tmp_path, role) as (learner, node, nursery):
        nursery.start_soon(work_with, node, learner, tmp_path, 0.0, role)
        await until(lambda: learner.run.unable().is_everyone)
        assert learner.run.unable().text == "1 of 1 nodes cannot use their leases: no memory"
        await role.here.wait()
        assert role.role.retry_policy.troubles[0] == Trouble(
            TroubleKind.LEASE, role.role.retry_policy.troubles[0].times, "no memory", role.role.installed
        )
        mended.append(True)
        await until(lambda: role.role.counts.admitted > 0)
        await until(lambda: learner.run.unable().nodes == 0)
        assert role.role.retry_policy.troubles == []


async def test_a_newer_version_is_tried_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    """One that somebody else made possible, while the pause is as long as it gets."""

    def install(version: PolicyVersion) -> InstallFailed | None:
        if version != FIRST:
            return None
        if len(role.installs) >= 7:
            # From here on by real time: jumps while threads work would use up the pause, and the node's patience.
            autojump_clock.autojump_threshold, autojump_clock.rate = math.inf, 1.0
        return InstallFailed("no")

    role = Failing(install=install)
    async with failing(tmp_path, role) as (learner, node, nursery):
        nursery.start_soon(work_with, node, learner, tmp_path, 0.0, role)
        await until(lambda: len(role.told("install_failed")) >= 7)
        before_s = role.installs[-1][0]
        assert role.role.retry_policy.again_s(TroubleKind.INSTALL) - before_s > LONGEST_PAUSE_S / 2
        nursery.start_soon(FakePeer().work, learner)
        await until(lambda: role.role.installed is not None)
        [newer_s] = [at_s for at_s, version in role.installs if version != FIRST][:1]
        assert newer_s - before_s < LONGEST_PAUSE_S / 2
        assert role.role.retry_policy.troubles == []


async def test_leases_that_go_back_for_the_owner_are_no_failure(tmp_path: Path, mock_clock: MockClock) -> None:
    role = Failing()
    async with failing(tmp_path, role) as (learner, node, nursery):
        nursery.start_soon(work_with, node, learner, tmp_path, 1e6, role)
        for _ in range(3):
            await until(lambda: bool(role.told("leases_given_back")) or bool(learner.capacity.leasing.open))
            await until(lambda: role.role._begun is not None)
            role.role.shift.hold("owner", "paused")
            await until(lambda: role.role._begun is None)
            assert role.role.retry_policy.troubles == []
            role.role.shift.release("owner")
        assert {fields["reason"] for fields in role.told("leases_given_back")} == {HELD}
        assert role.role.retry_policy.ends_s == math.inf
