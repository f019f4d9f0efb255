"""A node works through the hours in which its owner lends it: a network in memory, and a clock that the test sets."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import trio
import trio.testing

from learner.provisioning.estimation.recording import Withdrawn
from node.config.daily_hours import parse_hours
from node.rollout_role.availability import Availability
from node.rollout_role.worker import OVER, RolloutWorker
from node.runtime.events import EventLog
from protocol.core.ids import PeerId
from protocol.work import IN_GOOD_ORDER
from swarm.testing.memory_transport import MemoryNetwork
from tests.support.learner_fixture import FakePeer, Learner, Settings, open_learner, until
from tests.support.rollout_fixture import serve, work_with
from tests.support.swarm_fixture import open_node
from tests.support.trainer_fixture import PEER, SWARM

ROOMY = Settings(steps=100_000, staleness=2, ahead=5.0)
NEVER_S = 1e6
"""Seconds per token of an engine that never finishes."""


class Lent:
    """A role with its owner's hours, the wall clock, and its node's log."""

    def __init__(self, shows: str) -> None:
        self.shows = datetime.fromisoformat(f"2026-03-01 {shows}")
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.here = trio.Event()

    def __call__(self, role: RolloutWorker, events: EventLog) -> None:
        self.role = role
        role.shift = Availability(parse_hours("19:00-07:30"), lambda: self.shows)
        events.listen(lambda name, fields: self.log.append((name, dict(fields))))
        self.here.set()

    def set(self, shows: str) -> None:
        """Set the clock to this time, and check the hours."""
        self.shows = datetime.fromisoformat(f"2026-03-01 {shows}")
        self.role.shift.look()

    def told(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.log if event == name]


async def others_train(learner: Learner, steps: int) -> None:
    """Let another peer come, generate the rollouts of so many steps, and go. More than a few steps would outrun the
    node that follows.
    """
    head = learner.capacity.chain.head.version
    async with trio.open_nursery() as nursery:
        nursery.start_soon(FakePeer().work, learner)
        await until(lambda: learner.capacity.chain.head.version >= head + steps)
        nursery.cancel_scope.cancel()
    learner.sessions.note_departure(PEER.peer_id, IN_GOOD_ORDER)


def installed(learner: Learner, peer: PeerId) -> int:
    """Return the installed version that the node last reported to the learner."""
    version = learner.scheduler.worker(peer).installed
    return -1 if version is None else version.version


async def test_it_works_rests_keeps_the_newest_version_and_works_again(tmp_path: Path) -> None:
    network, lent = MemoryNetwork(), Lent("07:00")
    async with (
        open_learner(tmp_path, ROOMY, network=network) as learner,
        open_node(network, SWARM, tmp_path, "lent", follows=True) as node,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        nursery.start_soon(work_with, node, learner, tmp_path, 0.0, lent)
        nursery.start_soon(learner.train)
        await lent.here.wait()
        role, worker = lent.role, learner.scheduler.worker(node.peer)
        await until(lambda: role.counts.admitted > 0)
        lent.set("07:30")
        assert lent.told("hours_ended") == [{"again_at": "19:00"}]
        assert role.shift.left_s == 0
        await until(lambda: worker.until_ms <= learner.wall.ms and not role.holding)
        learner.wall.ms += (
            1_800_000  # the node's clock and this one are set by hand, this one last: messages may be under way
        )
        assert learner.recorder.observatory.resting(learner.recorder.now_s()) == {node.peer}
        made, has, worker.asked = role.counts.admitted, installed(learner, node.peer), -1
        await others_train(learner, steps=2)
        await until(lambda: installed(learner, node.peer) >= has + 2)
        assert worker.asked == -1, "a resting node must ask for no leases"
        assert role.counts.admitted == made
        assert not [granted for granted in learner.capacity.leasing.open.values() if granted.peer == node.peer]
        learner.wall.ms += round(11.5 * 3_600_000)
        lent.set("19:00")
        assert lent.told("hours_began") == [{"until": "07:30"}]
        await until(lambda: role.counts.admitted > made)
        assert worker.until_ms == learner.wall.ms + 12.5 * 3_600_000
        nursery.cancel_scope.cancel()


async def test_what_is_unfinished_when_they_end_goes_back_at_once(tmp_path: Path) -> None:
    network, lent = MemoryNetwork(), Lent("23:00")
    async with (
        open_learner(tmp_path, ROOMY, network=network) as learner,
        open_node(network, SWARM, tmp_path, "lent", follows=True) as node,
        trio.open_nursery() as nursery,
    ):
        serve(learner)

        def begun(role: RolloutWorker, events: EventLog) -> None:
            lent(role, events)
            role.counts.tokens_per_s = 1.0  # no trial: this engine would not end it

        nursery.start_soon(work_with, node, learner, tmp_path, NEVER_S, begun)
        nursery.start_soon(learner.train)
        await until(lambda: bool(learner.capacity.leasing.open) and lent.role._begun is not None)
        held = len(lent.role.holding)
        lent.set("07:30")
        await until(lambda: lent.role.holding == set())
        assert lent.role.counts.pending == 0
        given, handed = lent.told("leases_given_back"), lent.told("handed_back")
        assert sum(int(str(fields["leases"])) for fields in given) + len(handed) == held
        assert {fields["reason"] for fields in [*given, *handed]} == {OVER}
        await until(lambda: not learner.capacity.leasing.open)
        await until(lambda: lent.role._begun is None)
        withdrawn = [event for event in learner.recorded() if isinstance(event, Withdrawn)]
        assert {event.status for event in withdrawn} == {"returned"}
        lent.set("19:00")
        await until(lambda: bool(learner.capacity.leasing.open) and lent.role._begun is not None)
        nursery.cancel_scope.cancel()


async def test_who_comes_outside_its_hours_waits_for_them_without_a_trial(tmp_path: Path) -> None:
    network, lent = MemoryNetwork(), Lent("12:00")
    async with (
        open_learner(tmp_path, ROOMY, network=network) as learner,
        open_node(network, SWARM, tmp_path, "lent", follows=True) as node,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        nursery.start_soon(work_with, node, learner, tmp_path, 0.001, lent)
        nursery.start_soon(learner.train)
        await until(lambda: installed(learner, node.peer) >= 0)
        assert lent.told("hours_ended") == [{"again_at": "19:00"}]
        assert lent.told("speed_measured") == []
        assert learner.scheduler.worker(node.peer).asked == 0
        lent.set("19:00")
        await until(lambda: lent.role.counts.admitted > 0)
        assert len(lent.told("speed_measured")) == 1
        nursery.cancel_scope.cancel()


async def test_what_would_not_be_made_before_they_end_is_not_begun(tmp_path: Path) -> None:
    """By the engine's recent speed, four rollouts take 40 s, and 30 s are left. The deadline does not matter."""
    network, lent = MemoryNetwork(), Lent("07:29:30")
    async with (
        open_learner(tmp_path, ROOMY, network=network) as learner,
        open_node(network, SWARM, tmp_path, "lent", follows=True) as node,
        trio.open_nursery() as nursery,
    ):
        serve(learner)

        def slow(role: RolloutWorker, events: EventLog) -> None:
            lent(role, events)
            role.counts.tokens_per_s = 1.0
            role._speed.observe(4, 40.0)

        nursery.start_soon(work_with, node, learner, tmp_path, NEVER_S, slow)
        nursery.start_soon(learner.train)
        await lent.here.wait()
        await until(lambda: lent.role._begun is not None)
        assert lent.role._begun is not None
        assert sum(len(lent.role._in_hand[lease].lease.seeds) for lease in lent.role._begun.leases) == 2
        assert lent.told("leases_given_back")[0]["leases"] == 1
        nursery.cancel_scope.cancel()


async def test_leases_that_come_as_they_end_go_back(tmp_path: Path) -> None:
    """The grant has arrived, and its task has not run yet."""
    network, lent = MemoryNetwork(), Lent("07:00")
    async with (
        open_learner(tmp_path, ROOMY, network=network) as learner,
        open_node(network, SWARM, tmp_path, "lent", follows=True) as node,
        trio.open_nursery() as nursery,
    ):
        serve(learner)

        def unlucky(role: RolloutWorker, events: EventLog) -> None:
            lent(role, events)
            request = role.work_client.request_leases

            async def requested(rollouts: int) -> Any:
                granted = await request(rollouts)
                lent.set("07:30")
                return granted

            role.work_client.request_leases = requested  # type: ignore[method-assign]

        nursery.start_soon(work_with, node, learner, tmp_path, 0.0, unlucky)
        nursery.start_soon(learner.train)
        await lent.here.wait()
        await until(lambda: lent.told("leases_given_back") != [])
        assert lent.told("leases_given_back")[0]["reason"] == OVER
        assert (lent.role.holding, lent.role.counts.pending) == (set(), 0)
        await until(lambda: not learner.capacity.leasing.open)
        nursery.cancel_scope.cancel()


async def test_who_has_no_time_left_does_not_ask_for_the_same_again_and_again(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """The learner knows less of the node than the node does, after a restart for example, and grants what the node
    wants.
    """
    network, lent = MemoryNetwork(), Lent("07:29:30")
    async with (
        open_learner(tmp_path, ROOMY, network=network) as learner,
        open_node(network, SWARM, tmp_path, "lent", follows=True) as node,
        trio.open_nursery() as nursery,
    ):
        serve(learner)

        def slow(role: RolloutWorker, events: EventLog) -> None:
            lent(role, events)
            role.counts.tokens_per_s = 1.0
            role._speed.observe(4, 600.0)

        nursery.start_soon(work_with, node, learner, tmp_path, NEVER_S, slow)
        nursery.start_soon(learner.train)
        await until(lambda: lent.told("leases_given_back") != [])
        for _ in range(1000):  # time enough for a hundred more
            await trio.to_thread.run_sync(int)
        returned = len(lent.told("leases_given_back"))
        assert returned <= 2, "only leases that it held or had asked for may go back"
        mock_clock.autojump_threshold = 0.0  # time passes from here on
        await until(lambda: len(lent.told("leases_given_back")) > returned)
        nursery.cancel_scope.cancel()
