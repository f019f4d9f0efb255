"""An owner pauses, resumes, drains and limits a node by files, over a network in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from learner.provisioning.estimation.recording import Withdrawn
from node.config.live_limits import HOURS, UPLOAD
from node.config.node_config import NodeConfig
from node.rollout_role.owner_control import Drained, Owner
from node.rollout_role.resource_limits import RunningLimits
from node.rollout_role.retry_policy import Failed
from node.rollout_role.services import set_hours
from node.rollout_role.worker import DRAINED, HELD, OVER, RolloutWorker
from node.runtime.events import EventLog
from node.state.order_files import BY_FILE, process_began_ns
from node.state.owner_orders import Drain, Limit, LimitOrders, OwnerRequests, OwnerSignals
from node.state.status_file import standing_of
from protocol.core.ids import PolicyVersion
from protocol.trouble import TroubleKind
from swarm.testing.memory_transport import MemoryNetwork
from swarm.transport.error_groups import first_cause
from tests.support.learner_fixture import Learner, Settings, open_learner, until
from tests.support.rollout_fixture import serve, work_with
from tests.support.swarm_fixture import open_node
from tests.support.trainer_fixture import SWARM

ROOMY = Settings(steps=100_000, staleness=2, ahead=5.0)
NEVER_S = 1e6
"""Seconds per token of an engine that never finishes."""


class Owned:
    """A role, its owner's orders, and its node's log. `prepare` is called with the role before it begins."""

    def __init__(self, root: Path, prepare: Callable[[RolloutWorker], None] = lambda role: None) -> None:
        self.root, self.prepare = root, prepare
        self.orders, self.signals = OwnerRequests(root), OwnerSignals()
        self.limit_orders, self.began_ns = LimitOrders(root), process_began_ns()
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.here = trio.Event()

    def __call__(self, role: RolloutWorker, events: EventLog) -> None:
        self.role = role
        self.prepare(role)
        events.listen(lambda name, fields: self.log.append((name, dict(fields))))
        self.caps: list[NodeConfig] = []
        limits = RunningLimits(
            config=NodeConfig(), setters={HOURS: partial(set_hours, role), UPLOAD: self.set_upload}, events=events
        )
        self.owner = Owner(
            root=self.root,
            signals=self.signals,
            role=role,
            limits=limits,
            trouble=events.trouble,
            began_ns=self.began_ns,
        )
        self.lent_at_first = role.shift.is_lent
        self.here.set()

    async def set_upload(self, config: NodeConfig) -> None:
        self.caps.append(config)

    async def obey(self) -> None:
        await self.here.wait()
        await self.owner.run()

    def told(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.log if event == name]

    def look(self) -> None:
        """Read the order files now, as after a signal."""
        self.signals.told.set()

    @property
    def doing(self) -> str:
        standing = standing_of(self.root)
        return "" if standing is None else standing.doing


def never_tried(role: RolloutWorker) -> None:
    role.counts.tokens_per_s = 1.0  # no trial: this engine would not end it
    role.service.free_after_s = 3600.0  # however slow the machine is on which this is tested


async def run_owned(owned: Owned, tmp_path: Path, seconds: float, check: Callable[[Learner], Any]) -> None:
    """Have a node work with a learner while `check` runs; an end of the owner's orders ends the node."""
    network = MemoryNetwork()
    with first_cause():
        async with (
            open_learner(tmp_path / "learner", ROOMY, network=network) as learner,
            open_node(network, SWARM, tmp_path, "owned", follows=True) as node,
            trio.open_nursery() as nursery,
        ):
            serve(learner)
            nursery.start_soon(work_with, node, learner, tmp_path, seconds, owned)
            nursery.start_soon(learner.train)
            nursery.start_soon(owned.obey)
            await owned.here.wait()
            await check(learner)
            nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def places(tmp_path: Path) -> None:
    (tmp_path / "learner").mkdir()


async def test_paused_it_gives_back_says_so_and_resumed_it_works(tmp_path: Path) -> None:
    owned = Owned(tmp_path, never_tried)

    async def check(learner: Learner) -> None:
        role = owned.role
        await until(lambda: bool(learner.capacity.leasing.open) and role._begun is not None)
        owned.orders.pause("`volery pause`")
        owned.look()
        await until(lambda: not role.shift.is_lent)
        assert owned.told("paused") == [{"why": "paused by `volery pause`"}]
        await until(lambda: role.holding == set())
        [peer] = learner.run.present
        await until(lambda: learner.scheduler.worker(peer).until_ms <= learner.wall.ms)  # by its heartbeat
        assert {fields["reason"] for fields in owned.told("leases_given_back") + owned.told("handed_back")} == {HELD}
        await until(lambda: not learner.capacity.leasing.open)
        await until(lambda: owned.doing == "paused by `volery pause`")
        withdrawn = [event for event in learner.recorded() if isinstance(event, Withdrawn)]
        assert {event.status for event in withdrawn} == {"returned"}
        owned.orders.resume()
        owned.look()
        await until(lambda: bool(learner.capacity.leasing.open) and role._begun is not None)
        assert owned.told("resumed") == [{}]
        assert owned.told("engine_rests") == [], "a short pause must not stop the engine"
        await until(lambda: owned.doing == "at work")

    await run_owned(owned, tmp_path, NEVER_S, check)
    assert owned.doing == "", "a node that has left must not report what it is doing"


async def test_a_long_pause_frees_the_engines_memory_and_ends_with_the_newest_version(tmp_path: Path) -> None:
    def impatient(role: RolloutWorker) -> None:
        role.service.free_after_s = 0.0

    owned = Owned(tmp_path, impatient)

    async def check(learner: Learner) -> None:
        role = owned.role
        await until(lambda: role.counts.admitted > 0)
        owned.orders.pause("`volery pause`")
        owned.look()
        await until(lambda: owned.told("engine_rests") != [])
        assert role.installed is None
        owned.look()
        await until(lambda: owned.doing == "paused by `volery pause`; the engine's memory is free")
        made = len(owned.told("version_installed"))
        owned.orders.resume()
        owned.look()
        await until(lambda: len(owned.told("version_installed")) > made)
        await until(lambda: bool(role.holding))
        admitted = role.counts.admitted
        await until(lambda: role.counts.admitted > admitted)
        log = [(name, fields.get("version")) for name, fields in owned.log]
        woken = log.index(("engine_wakes", None))
        newest = [version for name, version in log[:woken] if name == "version_fetched"][-1]
        assert owned.told("version_installed")[made]["version"] >= newest

    await run_owned(owned, tmp_path, 0.0, check)


async def test_who_was_paused_before_it_started_begins_with_nothing(tmp_path: Path) -> None:
    owned = Owned(tmp_path)
    owned.orders.pause("`volery pause`")

    async def check(learner: Learner) -> None:
        assert not owned.lent_at_first, "the owner's order must count before the first work"
        await until(lambda: owned.role.installed is not None)
        await until(lambda: owned.told("paused") != [])
        assert owned.told("speed_measured") == []
        assert not learner.capacity.leasing.open
        owned.orders.resume()
        owned.look()
        await until(lambda: owned.role.counts.admitted > 0)

    await run_owned(owned, tmp_path, 0.0, check)


async def test_drained_it_delivers_what_it_holds_and_takes_no_more(tmp_path: Path) -> None:
    owned = Owned(tmp_path)
    asked: list[int] = []

    async def check(learner: Learner) -> None:
        role = owned.role
        await until(lambda: role.counts.admitted > 0 and bool(role.holding))
        request = role.work_client.request_leases

        async def requested(rollouts: int) -> Any:
            asked.append(rollouts)
            return await request(rollouts)

        owned.orders.drain(Drain())
        owned.look()
        await until(lambda: role.is_draining)
        role.work_client.request_leases = requested  # type: ignore[method-assign]
        await trio.sleep_forever()

    with pytest.raises(Drained, match=r"Drained: all leases are delivered\."):
        await run_owned(owned, tmp_path, 0.0, check)
    assert asked == []
    assert owned.told("drained") == [{"undelivered": 0}]
    assert owned.told("leases_given_back") == []
    assert owned.orders.drained is None, "the next start must work again"


async def test_a_drain_that_takes_too_long_gives_the_rest_back(tmp_path: Path) -> None:
    owned = Owned(tmp_path, never_tried)

    async def check(learner: Learner) -> None:
        role = owned.role
        await until(lambda: bool(learner.capacity.leasing.open) and role._begun is not None)
        owned.orders.drain(Drain(deadline_ms=0))
        owned.look()
        await until(lambda: owned.told("drained") != [])
        await trio.sleep_forever()

    with pytest.raises(Drained, match=r"Drained: \d leases were not delivered in time and go to other nodes\."):
        await run_owned(owned, tmp_path, NEVER_S, check)
    assert {fields["reason"] for fields in owned.told("leases_given_back")} == {DRAINED}


async def test_a_drain_without_an_end_can_be_given_one(tmp_path: Path) -> None:
    owned = Owned(tmp_path, never_tried)

    async def check(learner: Learner) -> None:
        role = owned.role
        await until(lambda: bool(learner.capacity.leasing.open) and role._begun is not None)
        owned.orders.drain(Drain())
        owned.look()
        await until(lambda: role.is_draining)
        assert owned.told("drained") == []
        owned.orders.drain(Drain(deadline_ms=0))
        owned.look()
        await trio.sleep_forever()

    with pytest.raises(Drained, match=r"leases were not delivered in time and go to other nodes"):
        await run_owned(owned, tmp_path, NEVER_S, check)
    assert [one["within_s"] for one in owned.told("drain_began")] == [None, 0.0]
    assert len(owned.told("drained")) == 1


async def test_an_order_to_drain_is_for_who_ran_then(tmp_path: Path) -> None:
    OwnerRequests(tmp_path).drain(Drain())
    owned = Owned(tmp_path)

    async def check(learner: Learner) -> None:
        await until(lambda: owned.role.counts.admitted > 0)
        assert not owned.role.is_draining

    await run_owned(owned, tmp_path, 0.0, check)


async def test_a_node_that_cannot_work_says_so_to_its_owner(tmp_path: Path) -> None:
    owned = Owned(tmp_path, never_tried)

    async def check(learner: Learner) -> None:
        await until(lambda: owned.doing == "at work")
        failed = Failed(kind=TroubleKind.INSTALL, reason="no such attention", version=PolicyVersion(1, 7))
        owned.role.retry_policy.handle(failed, trio.current_time())
        owned.look()
        await until(lambda: owned.doing == "cannot install 1.7: no such attention")
        owned.orders.pause("`volery pause`")
        owned.look()
        await until(lambda: owned.doing == "paused by `volery pause`")

    await run_owned(owned, tmp_path, NEVER_S, check)


def around_now(first_h: float, last_h: float) -> str:
    """Return hours from so many hours after now to so many."""
    return "-".join((datetime.now() + timedelta(hours=hours)).strftime("%H:%M") for hours in (first_h, last_h))


async def test_closed_hours_give_back_what_was_leased_and_open_ones_lease_again(tmp_path: Path) -> None:
    owned = Owned(tmp_path, never_tried)

    async def check(learner: Learner) -> None:
        role = owned.role
        await until(lambda: bool(learner.capacity.leasing.open) and role._begun is not None)
        [peer] = learner.run.present
        hours = around_now(6, 12)
        owned.limit_orders.give(Limit(key=HOURS, value=hours, by="the live page"))
        owned.look()
        await until(lambda: not role.shift.is_lent)
        assert owned.told("limit_changed") == [{"key": "[engine] hours", "value": hours, "by": "the live page"}]
        assert owned.told("hours_ended") == [{"again_at": hours[:5]}]
        await until(lambda: role.holding == set())
        assert {fields["reason"] for fields in owned.told("leases_given_back") + owned.told("handed_back")} == {OVER}
        await until(lambda: not learner.capacity.leasing.open)
        await until(lambda: learner.scheduler.worker(peer).until_ms <= learner.wall.ms)
        await until(lambda: owned.doing == f"outside its hours, until {hours[:5]}")
        assert standing_of(tmp_path).changeable == {HOURS: hours, UPLOAD: None}  # type: ignore[union-attr]
        owned.limit_orders.give(Limit(key=HOURS, value=None))
        owned.look()
        await until(lambda: bool(learner.capacity.leasing.open) and role._begun is not None)
        assert owned.told("limit_changed")[-1]["by"] == BY_FILE
        await until(lambda: standing_of(tmp_path).changeable[HOURS] == "")  # type: ignore[union-attr]
        assert owned.limit_orders.waiting() == []

    await run_owned(owned, tmp_path, NEVER_S, check)


async def test_hours_that_still_last_are_told_to_the_learner_at_once(tmp_path: Path) -> None:
    owned = Owned(tmp_path, never_tried)

    async def check(learner: Learner) -> None:
        await until(lambda: bool(learner.capacity.leasing.open) and owned.role._begun is not None)
        [peer] = learner.run.present
        assert learner.scheduler.worker(peer).until_ms > learner.wall.ms + 10**9
        beat, beats = owned.role.work_client.heartbeat_now, list[float | None]()

        def beats_now() -> None:
            beats.append(owned.role.shift.left_s)
            beat()

        owned.role.work_client.heartbeat_now = beats_now  # type: ignore[method-assign]
        owned.limit_orders.give(Limit(key=HOURS, value=around_now(-1, 6)))
        owned.look()
        await until(lambda: bool(owned.told("limit_changed")))
        assert beats, "the learner should not have to wait for the next heartbeat"
        assert all(left_s is not None for left_s in beats)
        await until(lambda: learner.scheduler.worker(peer).until_ms <= learner.wall.ms + 6 * 3_600_000)
        assert owned.role.shift.is_lent
        assert owned.told("hours_began") == []

    await run_owned(owned, tmp_path, NEVER_S, check)


async def test_an_order_that_cannot_be_is_told_and_gone_and_a_file_that_is_none_stays(tmp_path: Path) -> None:
    owned = Owned(tmp_path)
    strange = tmp_path / "orders" / "0.json"
    strange.parent.mkdir()
    strange.write_text("{")

    async def check(learner: Learner) -> None:
        for key, value in ((UPLOAD, 0.0), ("quota_gb", 5.0), ("threads", 3.0), (UPLOAD, 8.0)):
            owned.limit_orders.give(Limit(key=key, value=value))
        owned.look()
        await until(lambda: len(owned.caps) == 1)
        assert [one.network.upload_mbit for one in owned.caps] == [8.0]
        await until(lambda: owned.limit_orders.waiting() == [strange])
        owned.look()
        await until(lambda: "8 Mbit/s (until" in standing_of(tmp_path).limits["[network] upload_mbit"])  # type: ignore[union-attr]
        texts = [str(fields["text"]) for fields in owned.told("trouble")]
        assert len(texts) == 4
        assert "0.json is no order" in texts[0]
        assert texts[1:] == [
            "An order was not carried out: [network] upload_mbit: expected `float` >= 0.1.",
            "An order was not carried out: [store] quota_gb has no effect on this node.",
            "An order was not carried out: 'threads' cannot be changed while the node runs. These can: hours, "
            "upload_mbit, download_mbit, quota_gb.",
        ]

    await run_owned(owned, tmp_path, 0.0, check)


async def test_a_limit_for_an_earlier_run_does_nothing_to_this_one(tmp_path: Path) -> None:
    owned = Owned(tmp_path)
    owned.limit_orders.give(Limit(key=UPLOAD, value=3.0))
    owned.began_ns = time.time_ns()
    owned.limit_orders.give(Limit(key=UPLOAD, value=4.0))

    async def check(learner: Learner) -> None:
        await until(lambda: owned.limit_orders.waiting() == [])
        assert [one.network.upload_mbit for one in owned.caps] == [4.0]
        assert [fields["text"] for fields in owned.told("trouble")] == [
            "An order was not carried out: [network] upload_mbit = 3 was for a run before this one."
        ]

    await run_owned(owned, tmp_path, 0.0, check)


async def test_an_order_that_cannot_be_removed_is_carried_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = Owned(tmp_path)
    owned.limit_orders.give(Limit(key=UPLOAD, value=4.0))
    [path] = owned.limit_orders.waiting()
    monkeypatch.setattr(type(path), "unlink", refuse_to_unlink(type(path).unlink, path))

    async def check(learner: Learner) -> None:
        await until(lambda: bool(owned.caps))
        for _ in range(3):
            owned.look()
            await until(lambda: not owned.signals.told.is_set())
        assert len(owned.caps) == 1
        assert owned.limit_orders.waiting() == [path]

    await run_owned(owned, tmp_path, 0.0, check)


def refuse_to_unlink(unlink: Callable[..., None], kept: Path) -> Callable[..., None]:
    """Return an `unlink` that fails for one file, as in a folder of another user."""

    def refusing(self: Path, missing_ok: bool = False) -> None:
        if self == kept:
            raise PermissionError(1, "Operation not permitted")
        unlink(self, missing_ok=missing_ok)

    return refusing
