"""A learner knows how long completions are: from admitted ones, and from the ledger after a restart."""

from __future__ import annotations

from pathlib import Path

from learner.scheduling.completion_lengths import CompletionLengths
from tests.support.learner_fixture import FakePeer, Settings, open_learner


def lengths() -> CompletionLengths:
    return CompletionLengths(alike=lambda index: (index, 0))


async def test_a_restart_knows_the_lengths_of_all_that_was_admitted(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=2)) as learner:
        known = learner.scheduler.lengths = lengths()
        await learner.train(FakePeer())
        [admitted] = {event["tokens"] for event in learner.logged("delivery_judged")}
        assert known.usual > 0
        told = learner.ledger.work.completion_tokens()
        assert {sum(tokens) for _, tokens in told} == {admitted}
        expected = {index: known.foretold(index, None) for index, _ in told}
    async with open_learner(tmp_path, Settings(steps=4)) as learner:
        again = learner.scheduler.lengths = lengths()
        await learner.training.begin()
        assert again.usual == known.usual
        assert {index: again.foretold(index, None) for index in expected} == expected


async def test_how_long_a_batch_was_gathered_is_measured(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=2)) as learner:
        found = list[float | None]()
        learner.training.signals.step_trained.subscribe(lambda trained: found.append(trained.batch.gathered_s))
        await learner.train(FakePeer())
    assert len(found) == 2
    assert all(seconds is not None and seconds >= 0 for seconds in found)
