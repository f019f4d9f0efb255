"""Episodes whose environment has a state, from lease to training step: the effects of a kill of the learner."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest

from learner.rollouts.environment import Answered, Ended, Question, Reply
from protocol.core.pipe import Arrays
from tests.integration.test_turns import (
    ANSWER,
    KILLS,
    MOST_TURNS,
    PROMPT,
    NotingTrainer,
    environment,
    episodes_of,
    require_sound,
    turns_in,
)
from tests.node.learner_role.training.test_loop import unwrapped
from tests.support.learner_fixture import FakePeer, Killed, Settings, open_learner
from tests.support.trainer_fixture import OTHER

pytestmark = pytest.mark.usefixtures("mock_clock")

SETTINGS = Settings(staleness=3, steps=6, prompts=3, ahead=2.0)


@dataclass(kw_only=True)
class House:
    """Environments that differ each time they are made, and live as long as one process. An answer names its
    environment.

    A question must carry the digests of all earlier answers, and nothing else.
    """

    numbers: count[int]
    alive: dict[tuple[int, object, tuple[str, ...]], int] = field(default_factory=dict)
    abandoned: int = 0

    def ask(self, question: Question) -> Reply:
        assert len(question.digests) == len(question.said) - 1
        assert all(question.digests)
        before = (question.index, question.said[:-1], question.digests)
        if len(question.said) == 1:
            number = next(self.numbers)
        elif (found := self.alive.get(before)) is None:
            return self._abandon()
        else:
            number = found
        if question.said[-1][0] % 3 != 1 or len(question.said) == MOST_TURNS:
            return self._abandon() if question.read is not None else Ended(reward=float(number))
        tokens = (ANSWER, len(question.said), number)
        if question.read is not None and question.read != tokens:
            return self._abandon()
        reply = Answered(tokens=tokens, digest=str(tokens))
        self.alive[question.index, question.said, (*question.digests, reply.digest)] = number
        return reply

    def _abandon(self) -> Ended:
        self.abandoned += 1
        return Ended(reward=0.0, failure="otherwise: it was made anew", void=True)


def require_one_environment_each(batches: list[Arrays]) -> int:
    """Check that one environment gave all answers of an episode, and its reward. Return how many episodes had several
    turns.
    """
    several = 0
    for said, read, reward in (episode for arrays in batches for episode in episodes_of(arrays)):
        assert read[0] == PROMPT
        assert len(said) == len(read)
        numbers = {answer[2] for answer in read[1:]}
        assert numbers <= {round(reward)}
        several += bool(numbers)
    return several


@pytest.mark.parametrize(("call", "moment", "at"), KILLS)
async def test_one_that_is_another_after_a_kill_is_abandoned_and_never_changed_on_the_way(
    tmp_path: Path, call: str, moment: str, at: int
) -> None:
    numbers, peers = count(1), (FakePeer(), FakePeer(key=OTHER, rollouts=3))
    async with open_learner(tmp_path, SETTINGS, ask_one=House(numbers=numbers).ask) as learner:
        learner.ledger.dies = (call, moment, at)
        with pytest.raises(Killed):
            await unwrapped(learner.train, *peers)
        before = turns_in(tmp_path / "ledger.sqlite")
    trainer, house = NotingTrainer(), House(numbers=numbers)
    async with open_learner(tmp_path, SETTINGS, trainer=trainer, ask_one=house.ask) as again:
        again.sessions.recover_leases()
        await again.train(*peers)
        assert again.capacity.chain.head.version == SETTINGS.steps
        assert require_one_environment_each(trainer.batches)
        rows = turns_in(tmp_path / "ledger.sqlite")
        assert {row[:3] for row in before} <= {row[:3] for row in rows}, "an admitted turn is gone"
        assert not any(peer.undelivered for peer in peers)
        if call == "step_trained":
            assert house.abandoned, "an episode that had gone on must be abandoned"


async def test_without_a_kill_none_is_abandoned_however_random_they_are(tmp_path: Path) -> None:
    trainer, house = NotingTrainer(), House(numbers=count(1))
    async with open_learner(tmp_path, SETTINGS, trainer=trainer, ask_one=house.ask) as learner:
        await learner.train(FakePeer(), FakePeer(key=OTHER, rollouts=3))
        assert require_one_environment_each(trainer.batches)
        require_sound(learner, trainer.batches)
    assert house.abandoned == 0


@pytest.mark.parametrize(("call", "moment", "at"), KILLS)
async def test_one_that_follows_from_what_was_said_is_replayed_after_a_kill(
    tmp_path: Path, call: str, moment: str, at: int
) -> None:
    """A repeated answer equals what the policy has read, at each place."""
    read: list[bool] = []

    def ask(question: Question) -> Reply:
        reply = environment(question.index, question.said, question.transcript)
        if not isinstance(reply, Answered):
            assert question.read is None
            return reply
        assert question.read in (None, reply.tokens)
        read.append(question.read is not None)
        assert question.digests == tuple(_digest(question, turn) for turn in range(1, len(question.said)))
        return replace(reply, digest=_digest(question, len(question.said)))

    async with open_learner(tmp_path, SETTINGS, ask_one=ask) as learner:
        learner.ledger.dies = (call, moment, at)
        with pytest.raises(Killed):
            await unwrapped(learner.train, FakePeer())
    async with open_learner(tmp_path, SETTINGS, ask_one=ask) as again:
        again.sessions.recover_leases()
        await again.train(FakePeer())
        assert again.capacity.chain.head.version == SETTINGS.steps
    if call == "step_trained":
        assert any(read), "no episode that had gone on was replayed"


def _digest(question: Question, turn: int) -> str:
    return str([turn, *question.said[:turn]])
