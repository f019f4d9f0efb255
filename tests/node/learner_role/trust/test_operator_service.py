"""The operator's orders: carried out once each, in their order; one that cannot be is told, and gone."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from node.learner_role.trust.operator_service import LOOK_S
from node.state.operator_orders import Change, OperatorDecisions, Stop
from node.state.order_files import FOLDER, given_ns
from tests.support.learner_fixture import Settings, open_learner, until


async def settle(orders: OperatorDecisions) -> None:
    await until(lambda: not orders.waiting())


async def test_settings_change_in_the_order_in_which_they_were_ordered(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_learner(tmp_path, Settings(staleness=3)) as learner, trio.open_nursery() as nursery:
        orders = OperatorDecisions(learner.root)
        for value in (5, 4):
            orders.give(Change(key="staleness", value=value, by="the live page"))
        nursery.start_soon(learner.operator.run)
        await settle(orders)
        assert learner.capacity.window == 4
        changed = [fields for name, fields in learner.log if name == "setting_changed"]
        assert [(one["value"], one["by"]) for one in changed] == [(5, "the live page"), (4, "the live page")]
        nursery.cancel_scope.cancel()


async def test_an_order_that_cannot_be_carried_out_is_told_and_gone(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_learner(tmp_path, Settings(staleness=3)) as learner, trio.open_nursery() as nursery:
        orders = OperatorDecisions(learner.root)
        orders.give(Change(key="staleness", value=0))
        nursery.start_soon(learner.operator.run)
        await settle(orders)
        [told] = [fields["text"] for name, fields in learner.log if name == "trouble"]
        assert told.startswith("An order was not carried out: S = 0 is the sequential mode")
        assert learner.capacity.window == 3
        nursery.cancel_scope.cancel()


async def test_a_folder_that_cannot_be_read_is_told_once_and_ends_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_learner(tmp_path, Settings(staleness=3)) as learner, trio.open_nursery() as nursery:
        folder = learner.root / FOLDER
        folder.touch()
        nursery.start_soon(learner.operator.run)
        await until(lambda: any(name == "trouble" for name, _ in learner.log))
        for _ in range(10):
            await trio.sleep(LOOK_S)
        [told] = [fields["text"] for name, fields in learner.log if name == "trouble"]
        assert told == f"Orders in {folder} cannot be read: Not a directory. Check who owns it."
        folder.unlink()
        orders = OperatorDecisions(learner.root)
        orders.give(Change(key="staleness", value=4))
        await settle(orders)
        assert learner.capacity.window == 4
        nursery.cancel_scope.cancel()


async def test_an_order_that_cannot_be_removed_is_carried_out_once(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, kept = Path.unlink, list[Path]()

    def refuse(self: Path, missing_ok: bool = False) -> None:
        if self in kept:
            raise PermissionError(1, "Operation not permitted")
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    async with open_learner(tmp_path, Settings(staleness=3)) as learner, trio.open_nursery() as nursery:
        orders = OperatorDecisions(learner.root)
        orders.give(Change(key="staleness", value=4))
        kept += orders.waiting()
        nursery.start_soon(learner.operator.run)
        for value in (5, 2):
            orders.give(Change(key="staleness", value=value))
            await until(lambda value=value: learner.capacity.window == value)
        assert [fields["value"] for name, fields in learner.log if name == "setting_changed"] == [4, 5, 2]
        assert kept[0].exists()
        nursery.cancel_scope.cancel()


async def test_an_order_to_stop_ends_the_program_in_order(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_learner(tmp_path, Settings()) as learner, trio.open_nursery() as nursery:
        stopped: list[str] = []
        learner.operator.stop = lambda: stopped.append("as Ctrl-C does")
        orders = OperatorDecisions(learner.root)
        orders.give(Stop(by="the live page"))
        nursery.start_soon(learner.operator.run)
        await settle(orders)
        assert stopped == ["as Ctrl-C does"]
        assert ("stop_ordered", {"by": "the live page"}) in learner.log
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("order", [Stop(by="the live page"), Change(key="staleness", value=5)])
async def test_an_order_for_an_earlier_run_does_nothing_to_this_one(
    tmp_path: Path, autojump_clock: MockClock, order: Stop | Change
) -> None:
    async with open_learner(tmp_path, Settings(staleness=3)) as learner, trio.open_nursery() as nursery:
        stopped: list[str] = []
        learner.operator.stop = lambda: stopped.append("as Ctrl-C does")
        orders = OperatorDecisions(learner.root)
        orders.give(order)
        [given] = orders.waiting()
        learner.operator.began_ns = given_ns(given) + 1
        nursery.start_soon(learner.operator.run)
        await settle(orders)
        [told] = [fields["text"] for name, fields in learner.log if name == "trouble"]
        assert told.startswith("An order was not carried out: st")
        assert told.endswith("was for a run before this one.")
        assert not stopped
        assert learner.capacity.window == 3
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("key", ["learning_rate", "every_versions"])
async def test_an_order_without_a_name_says_where_it_came_from(
    tmp_path: Path, autojump_clock: MockClock, key: str
) -> None:
    async with open_learner(tmp_path, Settings()) as learner, trio.open_nursery() as nursery:
        orders = OperatorDecisions(learner.root)
        orders.give(Change(key=key, value=1))
        nursery.start_soon(learner.operator.run)
        await settle(orders)
        [changed] = [fields for name, fields in learner.log if name == "setting_changed"]
        assert changed["by"] == "an order in the state directory"
        nursery.cancel_scope.cancel()
