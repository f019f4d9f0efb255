"""Define a task whose reward does not see everything: it rewards a right first word and ignores the rest.

Graders that search a long completion for an expected answer do the same.
"""

from __future__ import annotations

from dataclasses import replace

from node.tasks.api.interface import Completion, Problem, Task, TaskArguments
from node.tasks.registry import open_task


class FirstWord:
    """Reversal of words; only the completion's first word counts. Options are those of `reverse`."""

    def __init__(self, arguments: TaskArguments) -> None:
        options = ",".join(f"{key}={value}" for key, value in sorted(arguments.options.items()))
        self._inner: Task = open_task(f"reverse:{options}", seed=arguments.seed)
        self.name = "first-word"
        self.levels = 1
        self.is_cheap = True

    @property
    def fingerprint(self) -> str:
        return f"first word of {self._inner.fingerprint}"

    def problem(self, index: int) -> Problem:
        return self._inner.problem(index)

    def held_out(self, index: int) -> Problem:
        return self._inner.held_out(index)

    def reward(self, problem: Problem, completion: Completion) -> float:
        first = completion.text.split(" ")[0]
        return self._inner.reward(problem, replace(completion, text=first))
