"""Wrap pure tasks of several turns as tasks with environments, so that a caller cannot tell which is which."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from node.tasks.api.interface import Completion, Problem, Spoken, TaskArguments, Turn, TurnTask
from node.tasks.registry import open_task


@dataclass(kw_only=True)
class TurnsEnvironment:
    """Remembers the turns that the task was given."""

    task: TurnTask
    problem: Problem
    turns: list[Turn] = field(default_factory=list)
    last: str = ""
    is_over: bool = False

    def step(self, spoken: Spoken) -> Any:
        self.last = spoken.content
        answered = self.task.answer_turn(self.problem, self.turns, spoken.content)
        self.is_over = answered is None
        if answered is not None:
            self.turns.append(Turn(said=spoken.content, answered=answered))
        return answered

    def reward(self) -> float:
        before = self.turns if self.is_over else self.turns[:-1]
        return self.task.reward(self.problem, Completion(text=self.last, finished=True, turns=tuple(before)))


class TurnsTask:
    """The task of a spec, with environments."""

    def __init__(self, spec: str, seed: int) -> None:
        self.task: Any = open_task(spec, seed=seed)
        self.name, self.levels = self.task.name, self.task.levels
        self.fingerprint = f"wrapped/{self.task.fingerprint}"

    def problem(self, index: int) -> Problem:
        return self.task.problem(index)  # type: ignore[no-any-return]

    def held_out(self, index: int) -> Problem:
        return self.task.held_out(index)  # type: ignore[no-any-return]

    def environment(self, problem: Problem, seed: int) -> TurnsEnvironment:
        return TurnsEnvironment(task=self.task, problem=problem)


def guess(arguments: TaskArguments) -> TurnsTask:
    return TurnsTask("guess:numbers=6,tries=4", arguments.seed)


def lookup(arguments: TaskArguments) -> TurnsTask:
    return TurnsTask("lookup:keys=2", arguments.seed)
