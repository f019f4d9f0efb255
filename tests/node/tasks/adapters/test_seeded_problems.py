from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from node.tasks.adapters.seeded_problems import (
    MAX_INSTRUCTIONS,
    Begin,
    SeededProblem,
    SeededTask,
    label_without_address,
    read_instructions,
)
from node.tasks.api.interface import Answer, Chat, ChatMessage, TaskArguments, TaskError


@dataclass(frozen=True, kw_only=True)
class World(SeededTask):
    name: str = "world"
    label: str = "world"
    seed: int = 0
    chat: Chat = Chat.NEVER
    instructions: str = ""
    version: str = "1"
    says: Callable[[int], Answer] = lambda seed: f"begin {seed}"
    opened: list[int] = field(default_factory=list)

    @contextmanager
    def beginnings(self) -> Iterator[Begin]:
        self.opened.append(0)
        yield self.says


def test_a_problem_is_a_beginning_and_the_seed_that_leads_to_it() -> None:
    task = World()
    problem = task.problem(5)
    assert problem.prompt == f"begin {problem.seed}"
    assert World().problem(5) == problem
    assert World(seed=1).problem(5) != problem
    assert World(seed=1).held_out(5) == task.held_out(5)
    task.require_same(problem, f"begin {problem.seed}")


def test_the_sides_share_no_prompt_where_there_are_many() -> None:
    task = World(says=lambda seed: f"board {seed % 40}")
    assert task.is_split
    training = {task.problem(index).prompt for index in range(100)}
    held_out = {task.held_out(index).prompt for index in range(30)}
    assert not training & held_out


@pytest.mark.parametrize("beginnings", [1, 3])
def test_few_beginnings_are_on_both_sides_with_other_seeds(beginnings: int) -> None:
    task = World(says=lambda seed: f"board {seed % beginnings}")
    assert not task.is_split
    seeds = {task.problem(index).seed for index in range(30)}
    assert len(seeds) == 30
    assert not seeds & {task.held_out(index).seed for index in range(30)}


def test_a_problem_is_asked_for_once() -> None:
    task = World()
    task.problem(1)
    opened = len(task.opened)
    task.problem(1)
    assert len(task.opened) == opened


def test_the_fingerprint_changes_with_what_is_said_and_stays_otherwise() -> None:
    assert World().fingerprint == World().fingerprint
    others = [World(says=lambda seed: f"other {seed}"), World(seed=1), World(version="2"), World(instructions="Play.")]
    assert len({World().fingerprint, *(other.fingerprint for other in others)}) == 5


def test_instructions_begin_the_prompt_and_a_hint_ends_one_without() -> None:
    assert World(instructions="Play.", hint="Say 1.").problem(0).prompt == f"Play.\n\n{World().problem(0).prompt}"
    assert World(hint="Say 1.").problem(0).prompt == f"{World().problem(0).prompt}\nSay 1.\n"
    talk = (ChatMessage(role="user", content="hello"),)
    with_system = World(instructions="Play.", says=lambda seed: talk).problem(0).prompt
    assert with_system == (ChatMessage(role="system", content="Play."), *talk)


def test_an_environment_that_says_nothing_needs_instructions() -> None:
    with pytest.raises(TaskError, match="instructions=FILE"):
        World(says=lambda seed: "").problem(0)
    assert World(says=lambda seed: "", instructions="Begin.").problem(0).prompt == "Begin."


def test_another_beginning_of_the_same_seed_is_an_error() -> None:
    problem = SeededProblem(prompt="a", seed=3, opening="a")
    with pytest.raises(TaskError, match=r"after a reset with seed 3 the environment said 'b', but before it said 'a'"):
        World().require_same(problem, "b")


def arguments(directory: Path, instructions: str) -> TaskArguments:
    options = {"instructions": instructions, "wait_s": 3.0, "reward": "sum"}
    return TaskArguments(argument="http://here", options=options, directory=directory, seed=0)


def test_instructions_that_cannot_be_read(tmp_path: Path) -> None:
    assert read_instructions(arguments(tmp_path, "")) == ""
    (tmp_path / "good.txt").write_text("\ufeffPlay.\n", encoding="utf-8")
    assert read_instructions(arguments(tmp_path, "good.txt")) == "Play."
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "long.txt").write_text("x" * (MAX_INSTRUCTIONS + 1))
    (tmp_path / "latin.txt").write_bytes(b"\xe4")
    for name, said in [
        ("missing.txt", "cannot be read"),
        ("empty.txt", "has 0 characters"),
        ("long.txt", "has 100,001 characters"),
        ("latin.txt", "cannot be read"),
    ]:
        with pytest.raises(TaskError, match=said):
            read_instructions(arguments(tmp_path, name))


def test_a_label_says_what_and_not_where(tmp_path: Path) -> None:
    assert label_without_address("openenv", arguments(tmp_path, "a.txt"), "", "wait_s") == "openenv,reward=sum"
    assert label_without_address("gym", arguments(tmp_path, ""), "E-v0") == "gym:E-v0,reward=sum,wait_s=3.0"
