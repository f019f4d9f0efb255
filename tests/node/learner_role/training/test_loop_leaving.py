"""Somebody stops the learner: what was trained is durable before it ends, under the right name, and in good time."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from node.learner_role.command import stopped_after
from node.learner_role.training.checkpoints import LAST_S, LONGEST_REST_S
from node.learner_role.training.trainer_process import CallTrainer
from node.processes.outcomes import ChildRefused
from node.reports.model.report import Role
from node.ui.live_view import ViewState
from protocol.core.pipe import Arrays, Header
from protocol.work import Lease
from tests.node.learner_role.training.test_loop import manifests, require_sound
from tests.support.learner_fixture import HANGS_S, FakePeer, FakeTrainer, Learner, Settings, crash, open_learner, until
from tests.support.trainer_fixture import version

pytestmark = pytest.mark.usefixtures("mock_clock")
"""Time stands still; whoever waits for it would wait for ever."""

LOGS = Settings(steps=9, logged=4)
"""Nobody is needed, and every state is durable before the next step."""


@dataclass(kw_only=True)
class HeldTrainer(FakeTrainer):
    """Does one request after the other, and number `at` of kind `op` when it `may_go`."""

    op: str = "step"
    at: int = 3
    entered: trio.Event = field(default_factory=trio.Event)
    may_go: trio.Event = field(default_factory=trio.Event)
    _turn: trio.Lock = field(default_factory=trio.Lock)

    async def call(
        self,
        op: str,
        header: Mapping[str, object] | None = None,
        arrays: Arrays | None = None,
        sent: Callable[[], None] = lambda: None,
    ) -> tuple[Header, Arrays]:
        async with self._turn:
            if op == self.op and self.calls.count(op) + 1 == self.at:
                self.entered.set()
                await self.may_go.wait()
            return await super().call(op, header, arrays, sent)


@dataclass(kw_only=True)
class PausingPeer(FakePeer):
    """Answers no more leases once the head is at step `until`."""

    until: float

    async def answer(self, learner: Learner, lease: Lease) -> None:
        if learner.capacity.chain.head.version >= self.until:
            await trio.sleep_forever()
        await super().answer(learner, lease)


@dataclass
class Leave:
    """A polite stop under way."""

    is_over: bool = False


@asynccontextmanager
async def training(root: Path, trainer: FakeTrainer, settings: Settings = LOGS) -> AsyncIterator[Learner]:
    """A learner that trains on logs while inside."""
    async with open_learner(root, settings, trainer=trainer) as learner, trio.open_nursery() as nursery:
        nursery.start_soon(learner.train)
        yield learner
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def leaving(learner: Learner) -> AsyncIterator[Leave]:
    """Stop it politely; on leaving the scope that is over."""
    stop = Leave()

    async def leave() -> None:
        await learner.training.leave()
        stop.is_over = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        await wait_all_tasks_blocked()
        yield stop


def durable(learner: Learner) -> list[int]:
    """Steps of the checkpoints that the ledger knows, newest first; each is the state after as many steps."""
    rows = learner.ledger.training.checkpoints()
    states = [json.loads((learner.root / "checkpoints" / row.directory / "trainer.json").read_text()) for row in rows]
    assert [state["steps"] for state in states] == [row.step for row in rows]
    return [row.step for row in rows]


# Something is to be kept.


async def test_stopped_while_it_waits_for_a_batch_it_goes_on_from_the_step_that_it_had_taken(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """Checkpoints rest after the first one, which takes a second."""

    def script(op: str, moment: str) -> None:
        if (op, moment) == ("save", "before"):
            mock_clock.jump(1.0)

    settings = Settings(steps=6, staleness=0, ahead=1.0, beside=True, rest=LONGEST_REST_S)
    peer, trainer = PausingPeer(until=3), FakeTrainer(script=script)
    async with open_learner(tmp_path, settings, trainer=trainer) as learner, trio.open_nursery() as nursery:
        seen = manifests(learner)
        nursery.start_soon(learner.train, peer)
        await until(lambda: bool(seen) and seen[-1].version == version("1.3"))
        assert durable(learner) == [1]
        await learner.training.leave()
        assert durable(learner) == [3, 1]
        assert [fields["durable"] for fields in learner.logged("stopping")] == [1]
        nursery.cancel_scope.cancel()
    peer.until = math.inf
    async with open_learner(tmp_path, settings) as again:
        again.sessions.recover_leases()
        await again.train(peer)
        assert again.ledger.training.begun() == [(1, 0), (2, 3)]
        require_sound(again, peer)


async def test_a_step_that_is_being_taken_ends_and_its_state_is_kept_under_its_own_name(tmp_path: Path) -> None:
    """Asked for any sooner, the state after step 3 would be called that of step 2."""
    whole, parts, held = FakeTrainer(), FakeTrainer(), HeldTrainer(at=3)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    async with open_learner(tmp_path / "whole", LOGS, trainer=whole) as learner:
        await learner.train()
    async with training(tmp_path / "parts", held) as learner:
        await held.entered.wait()
        async with leaving(learner) as stop:
            assert not stop.is_over
            held.may_go.set()
        assert durable(learner) == [3, 2]
        assert [fields["step"] for fields in learner.logged("step")] == [1, 2, 3]
        await wait_all_tasks_blocked()
        assert held.calls.count("step") == 3, "no other is begun"
    async with open_learner(tmp_path / "parts", LOGS, trainer=parts) as again:
        await again.train()
        assert again.ledger.training.begun() == [(1, 0), (2, 3)]
    assert parts._weights == whole._weights, "which are a hash of all that was trained on"


async def test_a_checkpoint_that_is_being_written_comes_first_and_then_the_newest_state(tmp_path: Path) -> None:
    trainer = HeldTrainer(at=4, requests_to_save=1000)
    async with training(tmp_path, trainer) as learner:
        await trainer.entered.wait()
        assert durable(learner) == []
        async with leaving(learner) as stop:
            trainer.may_go.set()
            await until(lambda: len(learner.logged("step")) == 4)
            await wait_all_tasks_blocked()
            assert (stop.is_over, trainer.calls.count("save")) == (False, 1)
            trainer.requests_to_save = 0
            trainer.write_all()
        assert durable(learner) == [4, 1]
        assert trainer.calls.count("save") == 2, "and none was begun beside them"


async def test_the_last_checkpoint_of_a_run_is_waited_for(tmp_path: Path) -> None:
    trainer = FakeTrainer(requests_to_save=1000)
    async with training(tmp_path, trainer, Settings(steps=2, logged=4)) as learner:
        await until(lambda: len(learner.logged("step")) == 2)
        await wait_all_tasks_blocked()
        async with leaving(learner) as stop:
            assert not stop.is_over
            trainer.requests_to_save = 0
            trainer.write_all()
        assert durable(learner) == [2, 1]


async def test_the_newest_state_is_kept_while_another_incarnation_begins(tmp_path: Path) -> None:
    trainer = HeldTrainer(at=3, requests_to_save=1000)
    async with training(tmp_path, trainer) as learner:
        publishing = trio.Event()

        async def hangs() -> None:
            publishing.set()
            await trio.sleep_forever()

        await trainer.entered.wait()
        learner.training.publishing.publish = hangs  # type: ignore[assignment, method-assign]
        learner.run.forgotten = 1
        trainer.requests_to_save = 0
        trainer.may_go.set()
        await publishing.wait()
        assert learner.capacity.chain.head == version("2.3")
        trainer.write_all()
        await learner.training.leave()
        assert durable(learner)[0] == 3
    async with open_learner(tmp_path, LOGS) as again:
        await again.training.begin()
        assert again.ledger.training.begun() == [(1, 0), (2, 3), (3, 3)]


async def test_two_who_stop_it_at_once_have_one_checkpoint_written(tmp_path: Path) -> None:
    """As when its certificate ends while somebody presses Ctrl-C."""
    held = HeldTrainer(at=3)
    async with training(tmp_path, held) as learner:
        await held.entered.wait()
        async with leaving(learner), leaving(learner):
            held.may_go.set()
        assert durable(learner) == [3, 2]
        assert held.calls.count("save") == 3
        assert len(learner.logged("stopping")) == 1


async def test_a_checkpoint_that_was_about_to_begin_is_not_asked_for_twice(tmp_path: Path) -> None:
    """Two tasks are woken in an order of their own: of eight pairs some begin beside training a moment too late."""
    async with open_learner(tmp_path, replace(LOGS, beside=True)) as learner, trio.open_nursery() as nursery:
        await learner.training.begin()
        saving = learner.training.saving
        nursery.start_soon(saving.run)
        for step in range(1, 9):
            learner.capacity.chain = learner.capacity.chain.advance()
            async with trio.open_nursery() as beside:
                beside.start_soon(saving.begin, learner.capacity.chain.head, nursery)
                beside.start_soon(saving.save_last, learner.capacity.chain.head)
            assert (learner.trainer.calls.count("save"), saving.saved) == (step, step)
        nursery.cancel_scope.cancel()


async def test_a_step_is_in_the_ledger_before_its_state_is_asked_for(tmp_path: Path) -> None:
    entered, may_go, held = threading.Event(), threading.Event(), HeldTrainer(at=3)
    async with training(tmp_path, held) as learner:
        await held.entered.wait()
        write = learner.ledger.training.step_trained

        def slowly(*arguments: Any) -> None:
            entered.set()
            may_go.wait(HANGS_S)
            write(*arguments)

        object.__setattr__(learner.ledger.training, "step_trained", slowly)
        try:
            async with leaving(learner) as stop:
                held.may_go.set()
                await until(entered.is_set)
                await wait_all_tasks_blocked()
                assert (stop.is_over, held.calls.count("save")) == (False, 2)
                may_go.set()
        finally:
            may_go.set()
        assert durable(learner) == [3, 2]


# Nothing is to be kept, or it cannot be.


async def test_before_there_is_a_state_of_this_run_nothing_is_waited_for(tmp_path: Path) -> None:
    async with open_learner(tmp_path, LOGS) as learner, trio.open_nursery() as nursery:
        await learner.training.leave()
        nursery.start_soon(learner.train)
        await wait_all_tasks_blocked()
        assert learner.trainer.calls == [], "nor is anything begun"
        nursery.cancel_scope.cancel()
    async with open_learner(tmp_path, LOGS) as learner, trio.open_nursery() as nursery:

        async def tried(export: Path, loaded: Header, call: CallTrainer) -> None:
            await learner.training.leave()
            nursery.cancel_scope.cancel()
            await trio.sleep_forever()

        learner.trial = tried
        nursery.start_soon(learner.train)
    async with open_learner(tmp_path, LOGS) as learner, trio.open_nursery() as nursery:

        async def published() -> None:
            await learner.training.leave()
            nursery.cancel_scope.cancel()
            await trio.sleep_forever()

        learner.training._publish_first = published  # type: ignore[method-assign]
        nursery.start_soon(learner.train)
    assert not learner.logged("stopping")


async def test_what_is_durable_is_not_written_again(tmp_path: Path) -> None:
    settings, peer = Settings(steps=6, staleness=0, ahead=1.0), PausingPeer(until=3)
    async with open_learner(tmp_path, settings) as learner, trio.open_nursery() as nursery:
        nursery.start_soon(learner.train, peer)
        await until(lambda: learner.training.saving.saved == 3)
        await wait_all_tasks_blocked()
        before = list(learner.trainer.calls)
        await learner.training.leave()
        await wait_all_tasks_blocked()
        assert learner.trainer.calls == before
        assert not learner.logged("stopping")
        nursery.cancel_scope.cancel()


async def test_a_batch_that_was_complete_is_left_to_the_next_start(tmp_path: Path) -> None:
    async with training(tmp_path, trainer := FakeTrainer()) as learner:
        entered, may_go, until_sent = trio.Event(), trio.Event(), learner.training._until_sent

        async def held() -> None:
            await until_sent()
            if learner.capacity.chain.head.version == 2 and learner.capacity.busy:
                entered.set()
                await may_go.wait()

        learner.training._until_sent = held  # type: ignore[method-assign]
        await entered.wait()
        await learner.training.leave()
        before = learner.training.curriculum.state()
        may_go.set()
        await wait_all_tasks_blocked()
        assert learner.training.curriculum.state() == before, "nothing is drawn that the next start would miss"
        assert (trainer.calls.count("step"), durable(learner)) == (2, [2, 1])


async def test_a_batch_that_diverges_meanwhile_changes_nothing(tmp_path: Path) -> None:
    def script(op: str, moment: str) -> None:
        if (op, moment) == ("step", "before") and held.calls.count("step") == 3:
            raise ChildRefused("diverged", "the loss is infinite")

    held = HeldTrainer(at=3, script=script)
    async with training(tmp_path, held) as learner:
        await held.entered.wait()
        async with leaving(learner):
            held.may_go.set()
        assert durable(learner) == [2, 1]
        assert len(learner.logged("batch_dropped")) == 1
        assert held.calls.count("save") == 2


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_trainer_that_is_lost_in_the_last_step_is_not_waited_for(tmp_path: Path, moment: str) -> None:
    def script(op: str, now: str) -> None:
        if (op, now) == ("step", moment) and held.calls.count("step") == 3:
            raise crash()

    held = HeldTrainer(at=3, script=script)
    async with training(tmp_path, held) as learner:
        await held.entered.wait()
        async with leaving(learner):
            held.may_go.set()
        await wait_all_tasks_blocked()
        assert durable(learner) == [2, 1]
        assert held.calls.count("load") == 1, "nor is another one brought there"
        assert not learner.logged("trainer_restarted")


async def test_a_trainer_that_is_lost_while_it_writes_the_last_checkpoint_is_not_waited_for(tmp_path: Path) -> None:
    held = HeldTrainer(at=3)
    async with training(tmp_path, held) as learner:
        await held.entered.wait()
        held.requests_to_save = 1000
        async with leaving(learner) as stop:
            held.may_go.set()
            await until(lambda: held.calls.count("save") == 3)
            await wait_all_tasks_blocked()
            assert not stop.is_over
            held.die()
        assert durable(learner) == [2, 1]
        assert held.calls.count("load") == 1


async def test_a_trainer_that_nobody_has_missed_yet_is_not_asked(tmp_path: Path) -> None:
    """It ended while a batch was waited for: a request would wait for the next one, which knows nothing."""
    settings, peer = Settings(steps=6, staleness=0, ahead=1.0), PausingPeer(until=3)
    trainer = FakeTrainer(failing={3})
    async with open_learner(tmp_path, settings, trainer=trainer) as learner, trio.open_nursery() as nursery:
        nursery.start_soon(learner.train, peer)
        await until(lambda: bool(learner.logged("checkpoint_failed")))
        await wait_all_tasks_blocked()
        learner.trainer.die()
        before = list(learner.trainer.calls)
        await learner.training.leave()
        assert learner.trainer.calls == before
        assert durable(learner) == [2, 1]
        nursery.cancel_scope.cancel()


async def test_a_trainer_that_is_being_brought_back_is_asked_for_nothing(tmp_path: Path) -> None:
    """The head is at step 3 still, of which nothing is durable, and the trainer is at the model's own weights."""

    def script(op: str, moment: str) -> None:
        if (op, moment) == ("step", "before") and held.calls.count("step") == 4:
            raise crash()

    held = HeldTrainer(op="restore", at=1, script=script, failing={3})
    async with training(tmp_path, held) as learner:
        await held.entered.wait()
        assert learner.capacity.chain.head == version("1.3")
        async with leaving(learner) as stop:
            assert stop.is_over
        held.may_go.set()
        await wait_all_tasks_blocked()
        assert durable(learner) == [2, 1]
        assert held.calls.count("save") == 3


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "failed"])
async def test_a_disk_that_refuses_the_last_checkpoint_is_told_of_and_the_stop_stays_one(
    tmp_path: Path, is_refused: bool
) -> None:
    """It is the third in a row, which would end the run with an error."""

    def script(op: str, moment: str) -> None:
        if is_refused and (op, moment) == ("save", "before") and held.calls.count("save") > 1:
            raise ChildRefused("disk", "no space left")

    held = HeldTrainer(at=4, script=script, failing={2, 3, 4})
    async with training(tmp_path, held) as learner:
        await held.entered.wait()
        async with leaving(learner):
            held.may_go.set()
        await wait_all_tasks_blocked()
        assert [fields["directory"] for fields in learner.logged("checkpoint_failed")] == ["1.2", "1.3", "1.4"]
        assert durable(learner) == [1]
    async with open_learner(tmp_path, LOGS) as again:
        await again.train()
        assert again.ledger.training.begun() == [(1, 0), (2, 1)]


async def test_a_step_that_takes_longer_is_given_up_and_what_was_durable_stays(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    held = HeldTrainer(at=3)
    async with training(tmp_path, held) as learner:
        await held.entered.wait()
        async with leaving(learner) as stop:
            mock_clock.jump(LAST_S - 1)
            await wait_all_tasks_blocked()
            assert not stop.is_over
            mock_clock.jump(1)
        assert durable(learner) == [2, 1]
        held.may_go.set()
        await until(lambda: len(learner.logged("step")) == 3)
        await wait_all_tasks_blocked()
        assert (held.calls.count("step"), held.calls.count("save")) == (3, 2), "nothing else is begun"


async def test_a_checkpoint_that_takes_longer_is_given_up(tmp_path: Path, mock_clock: MockClock) -> None:
    trainer = HeldTrainer(at=3, requests_to_save=1000)
    async with training(tmp_path, trainer) as learner:
        await trainer.entered.wait()
        async with leaving(learner) as stop:
            mock_clock.jump(LAST_S / 2)
            trainer.may_go.set()
            await until(lambda: len(learner.logged("step")) == 3)
            await wait_all_tasks_blocked()
            mock_clock.jump(LAST_S / 2 - 1)
            await wait_all_tasks_blocked()
            assert not stop.is_over
            mock_clock.jump(1)
        assert durable(learner) == []


@pytest.mark.parametrize(
    ("step", "durable", "told"),
    [
        (0, 0, ""),
        (7, 7, "Stopped after step 7 of 9. "),
        (7, 3, "Stopped after step 7 of 9. Its newest checkpoint is of step 3: it continues from there. "),
    ],
)
def test_the_last_line_says_what_was_not_kept(step: int, durable: int, told: str) -> None:
    state = ViewState(role=Role.LEARNER, title="even", batch=4, steps=9, staleness=1)
    state.step = step
    assert stopped_after(state, durable) == told
