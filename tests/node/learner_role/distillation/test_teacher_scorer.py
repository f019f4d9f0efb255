"""Score waiting groups beside training, for generated tokens alone; and handle failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from learner.rollouts.buffer import Completion
from learner.rollouts.score_leases import ScoreLeases, generated_of
from node.engine.interface import EngineCrashed, EngineRefused, InstalledVersion, InstallFailed
from node.learner_role.distillation.teacher_scorer import MAX_FAILURES, TeacherScorer
from node.runtime.errors import RunError
from tests.learner.rollouts.test_buffer import group
from tests.support.learner_fixture import Learner, fast_directory, open_learner


@dataclass
class Teacher:
    """Says -1 for the first token behind a prompt, -2 for the next and so on. `script` is asked before every call."""

    script: Callable[[str, int], None] = lambda op, sequences: None
    asked: list[int] = field(default_factory=list)
    says: float = 0.0

    async def install(self, version: InstalledVersion, directory: Path) -> None:
        await trio.lowlevel.checkpoint()
        self.script("install", 0)

    async def score(
        self, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperature: float
    ) -> list[tuple[float, ...]]:
        await trio.lowlevel.checkpoint()
        self.asked.append(len(sequences))
        self.script("score", len(sequences))
        return [tuple(self.says - 1.0 - place for place in range(len(tokens))) for _, tokens in sequences]


def scorer_of(learner: Learner, teacher: Teacher) -> TeacherScorer:
    return TeacherScorer(
        context=learner.trust.context,
        engine=teacher,
        directory=Path("teacher"),
        temperature=1.0,
        leases=ScoreLeases(buffer=learner.capacity.buffer),
    )


async def until_scored(learner: Learner) -> None:
    while learner.capacity.buffer.unscored(1):
        await learner.run.wait_changed()


async def test_what_waits_is_scored_and_let_go() -> None:
    with fast_directory() as root:
        async with open_learner(root) as learner, trio.open_nursery() as nursery:
            learner.capacity.buffer.needs_scores = True
            teacher = Teacher()
            nursery.start_soon(scorer_of(learner, teacher).run)
            for number in (1, 2):
                learner.capacity.buffer.add(group(number, "1.0"))
            learner.run.notify()
            await until_scored(learner)
            assert (len(learner.capacity.buffer), learner.capacity.buffer.held) == (4, 0)
            assert teacher.asked == [4], "together"
            [told] = learner.logged("scores_made")
            assert (told["groups"], told["tokens"]) == (2, 4)
            nursery.cancel_scope.cancel()


async def test_what_is_too_much_at_once_is_asked_group_by_group() -> None:
    def script(op: str, sequences: int) -> None:
        if sequences > 2:
            raise EngineRefused("out_of_memory", "no room")

    with fast_directory() as root:
        async with open_learner(root) as learner, trio.open_nursery() as nursery:
            learner.capacity.buffer.needs_scores = True
            teacher = Teacher(script)
            for number in (1, 2):
                learner.capacity.buffer.add(group(number, "1.0"))
            nursery.start_soon(scorer_of(learner, teacher).run)
            await until_scored(learner)
            assert teacher.asked == [4, 2, 2]
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("teacher", "says"),
    [
        (Teacher(says=float("nan")), "not finite numbers"),
        (Teacher(lambda op, sequences: _raise(EngineRefused("bad_request", "the prompt is too long."))), "too long"),
        (Teacher(lambda op, sequences: _raise(EngineCrashed("it died"))), f"ended {MAX_FAILURES} times in a row"),
    ],
    ids=["broken", "refuses", "crashes"],
)
async def test_a_teacher_that_cannot_score_ends_the_run_with_the_reason(teacher: Teacher, says: str) -> None:
    with fast_directory() as root:
        async with open_learner(root) as learner:
            learner.capacity.buffer.needs_scores = True
            learner.capacity.buffer.add(group(1, "1.0"))
            with pytest.raises(RunError, match=says) as raised:
                await scorer_of(learner, teacher).run()
            assert "leave out [distill]" in str(raised.value)


async def test_a_teacher_that_cannot_be_loaded_is_told_before_anybody_joins() -> None:
    with fast_directory() as root:
        async with open_learner(root) as learner:
            broken = Teacher(lambda op, sequences: _raise(InstallFailed("no weights")))
            with pytest.raises(RunError, match=r"\[distill\] teacher: teacher cannot be loaded: no weights"):
                await scorer_of(learner, broken).load()


def test_of_several_turns_what_the_environment_said_is_not_learnt() -> None:
    completion = Completion(
        tokens=(1, 2, 3, 4, 5), logprobs=(-1.0,) * 3, reward=0.0, spans=(), generated=((0, 1), (3, 5))
    )
    assert generated_of(completion, (-1.0, -2.0, -3.0, -4.0, -5.0)) == (-1.0, -4.0, -5.0)


def _raise(error: Exception) -> None:
    raise error
