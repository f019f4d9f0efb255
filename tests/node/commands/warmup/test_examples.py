"""A warm-up learns from tasks' reference answers and rows of files, and leaves out the unusable ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from learner.curriculum.mixture import Curriculum
from node.commands.warmup.examples import of_rows, of_tasks
from node.learner_role.training.supervised import Passage
from node.tasks.api.interface import ChatMessage, Completion, Problem, Task, TaskError
from node.tasks.registry import open_task
from node.tasks.task_suite import TaskSuite
from node.tasks.tokenized_task import EncodedTask
from node.tasks.tokenizer import TextCodec, write_character_tokenizer


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    directory = tmp_path_factory.mktemp("model")
    write_character_tokenizer(directory)
    return TextCodec.load(directory)


def suite(codec: TextCodec, *tasks: Task) -> TaskSuite:
    named = {f"{number}": EncodedTask(task=task, codec=codec) for number, task in enumerate(tasks)}
    return TaskSuite(codec=codec, tasks=named, curriculum=Curriculum(parts=[]), held_out=[], looked_at={})


def rows(count: int, length: int = 3) -> Iterator[list[Passage]]:
    for number in range(count):
        yield [((4 + number % 50, 5 + number // 50), False), ((7,) * (length - 1) + (2,), True)]


class Endless:
    """A task without end; every third problem has no answer, or all have one, or none."""

    name, levels, fingerprint = "rows", 1, "rows"

    def __init__(self, answers: str = "some") -> None:
        self._answers = answers

    def problem(self, index: int) -> Problem:
        has = self._answers == "all" or (self._answers == "some" and index % 3)
        return Problem(prompt=f"{index}=", answer=str(index) if has else None)

    def held_out(self, index: int) -> Problem:
        raise TaskError("none")

    def reward(self, problem: Problem, completion: Completion) -> float:
        return 0.0


class Rows(Endless):
    """The same of nine problems."""

    size, num_held_out, notes, pass_rates = 9, 0, (), None


def test_what_is_too_long_is_left_out_and_counted() -> None:
    found = of_rows([*rows(2), *rows(3, length=20)], most=8)
    assert (len(found.examples), len(found.held_back)) == (2, 0)
    assert found.text == "2 examples of 10 tokens, 0 more held back for the loss; 3 left out (too long)"
    with pytest.raises(TaskError, match="all 3 examples are longer than the 8 tokens"):
        of_rows(rows(3, length=20), most=8)


def test_what_is_held_back_is_never_learnt_nor_a_copy_of_it() -> None:
    found = of_rows([*rows(100), *rows(100)], most=8)
    assert len(found.held_back) == 5
    assert len(found.examples) == 190
    kept = {one.tokens.tobytes() for one in found.held_back}
    assert len(kept) == 5
    assert not kept & {one.tokens.tobytes() for one in found.examples}
    assert of_rows([*rows(100), *rows(100)], most=8).digest == found.digest
    assert of_rows(rows(100), most=8).digest != found.digest


def test_problems_without_an_answer_are_counted(codec: TextCodec) -> None:
    found = of_tasks(suite(codec, Rows()), [1.0], most=64)
    assert len(found.examples) == 6
    assert dict(found.left_out) == {"no reference answer": 3}


@pytest.mark.parametrize("task", [Rows("none"), Endless("none")], ids=["finite", "endless"])
def test_a_task_without_answers_says_who_has_some(codec: TextCodec, task: Task) -> None:
    with pytest.raises(TaskError) as raised:
        of_tasks(suite(codec, task), [1.0], most=64)
    assert "[task] rows gives no reference answers" in str(raised.value)
    assert "--data FILE" in str(raised.value)


def test_a_task_without_end_is_drawn_behind_what_is_held_back(codec: TextCodec) -> None:
    found = of_tasks(suite(codec, open_task("reverse:letters=4", seed=1)), [1.0], most=64)
    assert found.draw is not None
    assert len(found.held_back) == 64
    drawn = [one for number in range(50) if (one := found.draw(0, number)) is not None]
    assert len(drawn) == 50
    assert not {one.tokens.tobytes() for one in drawn} & {one.tokens.tobytes() for one in found.held_back}
    text = codec.decode(drawn[0].tokens.tolist())
    assert text.startswith("rev:")
    assert codec.decode(drawn[0].tokens[drawn[0].learnt == 1].tolist()) == f"{text[4:8][::-1]}<eos>"


def test_several_tasks_are_drawn_by_weight(codec: TextCodec) -> None:
    found = of_tasks(suite(codec, open_task("reverse:letters=4"), Rows("all")), [3.0, 1.0], most=64)
    assert found.weights == [3.0, 1.0]
    assert found.draw is not None
    assert [codec.decode(one.tokens.tolist()) for number in range(10) if (one := found.draw(1, number))][
        9
    ] == "0=0<eos>"


def test_a_task_without_end_that_is_too_long_for_the_model(codec: TextCodec) -> None:
    with pytest.raises(TaskError, match="its examples are longer than the 5 tokens"):
        of_tasks(suite(codec, open_task("reverse:letters=4")), [1.0], most=5)


def test_an_example_of_several_messages(codec: TextCodec, tmp_path: Path) -> None:
    class Shown(Rows):
        def demonstrate(self, index: int) -> tuple[ChatMessage, ...]:
            return (ChatMessage(role="assistant", content=f"{index}!"),)

    found = of_tasks(suite(codec, Shown("none")), [1.0], most=64)
    assert [codec.decode(one.tokens.tolist()) for one in found.examples][:2] == ["0=0!<eos>", "1=1!<eos>"]
