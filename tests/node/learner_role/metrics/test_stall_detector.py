"""A run that stands still reports what it waits for; its measurements stay right meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from learner.rollouts.environment import Question, Reply
from node.learner_role.metrics.board import Series
from node.learner_role.metrics.monitor import LOOK_S
from node.learner_role.metrics.stall_detector import STEPS, STILL_S, TIMES, Stillness
from tests.support.learner_fixture import FakePeer, FakeTrainer, Learner, Settings, hello, open_learner
from tests.support.trainer_fixture import OTHER


def test_it_is_news_after_a_while_and_again_when_that_has_doubled() -> None:
    still = Stillness(began_s=100.0)
    said = [second for second in range(10_000) if still.is_news(100.0 + second)]
    assert said == [STILL_S * 2**power for power in range(6)]


def test_how_long_is_too_long_follows_from_the_last_steps() -> None:
    still, now_s = Stillness(began_s=0.0), 0.0
    for took_s in [1000.0] * (STEPS // 2 + 1) + [9000.0] * (STEPS // 2 - 1):
        still.stepped(now_s := now_s + took_s)
    assert not still.is_news(now_s + TIMES * 1000 - 1), "a night without peers must not count as a step's time"
    assert still.is_news(now_s + TIMES * 1000)
    for _ in range(STEPS):
        still.stepped(now_s := now_s + 1)
    assert not still.is_news(now_s + STILL_S - 1)
    assert still.is_news(now_s + STILL_S)
    assert still.seconds(now_s + STILL_S) == STILL_S


async def looked(clock: MockClock, times: int) -> None:
    for _ in range(times):
        await wait_all_tasks_blocked()
        clock.jump(LOOK_S)
    await wait_all_tasks_blocked()


def texts(learner: Learner) -> list[object]:
    return [fields["text"] for fields in learner.logged("standing_still")]


async def test_who_waits_for_rollouts_says_how_many_and_from_whom(tmp_path: Path, mock_clock: MockClock) -> None:
    async with open_learner(tmp_path, Settings()) as learner, trio.open_nursery() as nursery:
        nursery.start_soon(learner.watch.run)
        await looked(mock_clock, int(STILL_S / LOOK_S))
        [text] = texts(learner)
        assert text.startswith("No training step for 300 s. The trainer is loading the model: if its size does not")
        nursery.start_soon(learner.training.run)
        await learner.run.opened.wait()
        while learner.capacity.busy:
            await learner.run.wait_changed()
        await looked(mock_clock, int(STILL_S / LOOK_S))
        assert texts(learner)[1:] == [
            "No training step for 600 s. 0 of 4 rollouts are there, 0 are leased, to 0 peers. No peer is here: hand "
            "out the invite, and dial its addresses from outside."
        ]
        await learner.sessions.welcome(OTHER.peer_id, hello())
        await looked(mock_clock, 1)
        board = learner.watch.board.values()
        assert (board[Series("peers")], board[Series("still_seconds")]) == (1, 2 * STILL_S + LOOK_S)
        nursery.cancel_scope.cancel()


async def test_a_trainer_that_does_not_answer_is_named_and_a_step_ends_it(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    class Slow(FakeTrainer):
        async def call(self, op: str, *args: object, **options: object) -> object:  # type: ignore[override]
            if op == "step":
                asked.set()
                await answers.wait()
            return await super().call(op, *args, **options)  # type: ignore[arg-type]

    asked, answers = trio.Event(), trio.Event()
    async with open_learner(tmp_path, Settings(steps=1), trainer=Slow()) as learner, trio.open_nursery() as nursery:
        nursery.start_soon(learner.watch.run)
        nursery.start_soon(learner.train, FakePeer())
        await asked.wait()
        mock_clock.jump(STILL_S)
        while not texts(learner):
            await trio.lowlevel.checkpoint()
        assert texts(learner) == [
            "No training step for 300 s. The trainer is at step 1, or loads its checkpoint: check what its process "
            "does."
        ]
        answers.set()
        while not learner.run.finished:
            await learner.run.wait_changed()
        assert learner.watch.board.values()[Series("still_seconds")] == 0
        nursery.cancel_scope.cancel()


async def test_who_waits_for_the_last_checkpoint_says_that(tmp_path: Path, mock_clock: MockClock) -> None:
    trainer = FakeTrainer(requests_to_save=1000)
    async with open_learner(tmp_path, Settings(steps=1), trainer=trainer) as learner, trio.open_nursery() as nursery:
        nursery.start_soon(learner.watch.run)
        nursery.start_soon(learner.train, FakePeer())
        while learner.capacity.chain.head.version < 1 or learner.capacity.busy:
            await learner.run.wait_changed()
        await wait_all_tasks_blocked()
        mock_clock.jump(STILL_S)
        while not texts(learner):
            await trio.lowlevel.checkpoint()
        assert texts(learner) == [
            "No training step for 300 s. All steps are taken. The last checkpoint is being written."
        ]
        assert [fields["step"] for fields in learner.logged("standing_still")] == [1]
        nursery.cancel_scope.cancel()


async def test_who_waits_for_verifiers_says_so(tmp_path: Path, mock_clock: MockClock) -> None:
    async with open_learner(tmp_path, Settings()) as learner, trio.open_nursery() as nursery:

        async def ask(questions: Sequence[Question]) -> Sequence[Reply]:
            await trio.sleep_forever()
            return []

        object.__setattr__(learner.intake, "ask", ask)
        nursery.start_soon(learner.watch.run)
        nursery.start_soon(learner.train, FakePeer())
        while not learner.run.asked:
            await wait_all_tasks_blocked()
        await looked(mock_clock, int(STILL_S / LOOK_S))
        assert "2 completions are waiting for rewards" in str(texts(learner)[-1])
        nursery.cancel_scope.cancel()
