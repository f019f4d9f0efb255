"""Open the tasks of the study: a built-in one by its spec, or a procedural data set of reasoning-gym.

Invariants:

- An index names one problem.
- A prompt's digest says whether it is held out, so training and evaluation share no prompt.
- A reward is 1 for exactly the answer, ended by a stop id, else 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reasoning_gym

from node.tasks.api.interface import Completion, Problem, Task
from node.tasks.kinds.generated import is_held_out
from node.tasks.registry import open_task

SIZE = 1 << 40
"""Size of a data set. Entries are made on request, so it may be as large as needed."""

DRAWS = 200
"""Entries for each index; the first on the wanted side is taken. 7 in 8 are on the training side."""

ARITHMETIC = "arithmetic"
"""reasoning-gym's basic_arithmetic, sums of two numbers of one or two digits: "Calculate 42 + 57." -> "99"."""

HELD_OUT_SEED = -1
"""Seed of the data set for evaluation, the same for every seed; the digest keeps the sides apart."""


def open_lagged(task: str, seed: int) -> Task:
    """Return the task of a recipe."""
    if task == ARITHMETIC:
        return GymTask(name=ARITHMETIC, seed=seed, training=_arithmetic(seed), evaluation=_arithmetic(HELD_OUT_SEED))
    return open_task(task, directory=Path(), seed=seed)


def _arithmetic(seed: int) -> Any:
    """Return a data set. An entry is drawn from the sum of seed and index, so seeds are further apart than any run."""
    return reasoning_gym.create_dataset(
        "basic_arithmetic",
        size=SIZE,
        seed=(seed + 1) * SIZE,
        min_terms=2,
        max_terms=2,
        min_digits=1,
        max_digits=2,
        operators=("+",),
        allow_parentheses=False,
        allow_negation=False,
    )


@dataclass(frozen=True, kw_only=True)
class GymTask:
    """Two data sets of reasoning-gym as a task."""

    name: str
    seed: int
    training: Any
    evaluation: Any
    levels: int = 1

    @property
    def fingerprint(self) -> str:
        return f"{self.name}/{self.seed}"

    def problem(self, index: int) -> Problem:
        return self._first(self.training, index, held_out=False)

    def held_out(self, index: int) -> Problem:
        return self._first(self.evaluation, index, held_out=True)

    def reward(self, problem: Problem, completion: Completion) -> float:
        return float(completion.finished and completion.text == problem.answer)

    def _first(self, entries: Any, index: int, *, held_out: bool) -> Problem:
        for number in range(DRAWS):
            entry = entries[index * DRAWS + number]
            if is_held_out(entry["question"]) == held_out:
                return Problem(prompt=entry["question"], answer=str(entry["answer"]))
        raise RuntimeError(f"{self.name}: {DRAWS} entries in a row are on the wrong side")
