"""Choose the examples of each step, in a reproducible order.

Invariants:

- The batch of a step is a function of the examples, the seed, the bounds and the step. So a stopped warm-up continues
  as if it had not been stopped.
- A step takes whole examples, within both of its bounds. An example that is longer than the bound is a step of its own.
- A pass over finitely many examples takes each once, in another order in each pass. No step mixes two passes.
- Tasks are drawn by their weights, as evenly as prompts of a run are (`Shares`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from learner.curriculum.mixture import Shares
from node.learner_role.training.supervised import Example


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The most tokens and examples of one step."""

    tokens: int
    examples: int


def passes(lengths: Sequence[int], bounds: Bounds, seed: int) -> Iterator[list[list[int]]]:
    """Yield passes without end. Each is a list of steps, and a step is a list of example numbers."""
    number = 0
    while True:
        order = np.random.default_rng([seed, number]).permutation(len(lengths))
        yield list(_cut(order.tolist(), lengths, bounds))
        number += 1


def _cut(order: Sequence[int], lengths: Sequence[int], bounds: Bounds) -> Iterator[list[int]]:
    batch: list[int] = []
    tokens = 0
    for one in order:
        if batch and (tokens + lengths[one] > bounds.tokens or len(batch) >= bounds.examples):
            yield batch
            batch, tokens = [], 0
        batch.append(one)
        tokens += lengths[one]
    if batch:
        yield batch


class Finite:
    """Passes over `examples`: `epochs` of them, or as many as `steps` need."""

    def __init__(self, examples: Sequence[Example], bounds: Bounds, seed: int, *, epochs: int, steps: int = 0) -> None:
        self._examples = examples
        self._steps: list[list[int]] = []
        for number, steps_of_pass in enumerate(passes([len(one) for one in examples], bounds, seed)):
            if (number >= epochs) if not steps else (len(self._steps) >= steps):
                break
            self._steps += steps_of_pass
        if steps:
            del self._steps[steps:]

    @property
    def total(self) -> int:
        """Return the number of all steps."""
        return len(self._steps)

    def batch(self, step: int) -> list[Example]:
        """Return the examples of the step that follows `step` others."""
        return [self._examples[one] for one in self._steps[step]]


Draw = Callable[[int, int], Example | None]
"""(number of the task, how many were drawn of it before) -> the example; None if it cannot be learnt."""


@dataclass(kw_only=True)
class Endless:
    """`total` steps of examples without end, drawn from tasks by `weights`.

    An example that does not fit into a step is skipped; the next step draws others.
    """

    draw: Draw
    weights: Sequence[float]
    bounds: Bounds
    total: int
    _tasks: array[int] = field(default_factory=lambda: array("H"))
    _before: array[int] = field(default_factory=lambda: array("Q"))
    """The task of each draw, and how many were drawn of that task before: ten bytes a draw."""
    _drawn: list[int] = field(init=False)
    _shares: Shares = field(init=False)

    def __post_init__(self) -> None:
        self._drawn = [0] * len(self.weights)
        self._shares = Shares.of(self.weights)

    def batch(self, step: int) -> list[Example]:
        """Return the examples of the step that follows `step` others; none if no drawn example can be learnt."""
        first, found, tokens = step * self.bounds.examples, list[Example](), 0
        for number in range(first, first + self.bounds.examples):
            example = self.draw(*self._pick(number))
            if example is None or (found and tokens + len(example) > self.bounds.tokens):
                continue
            found.append(example)
            tokens += len(example)
        return found

    def _pick(self, number: int) -> tuple[int, int]:
        """Return draw `number`: a task that is furthest behind its share, and how many were drawn of it before."""
        if len(self.weights) == 1:
            return 0, number
        while len(self._tasks) <= number:
            task = self._shares.draw()
            self._tasks.append(task)
            self._before.append(self._drawn[task])
            self._drawn[task] += 1
        return self._tasks[number], self._before[number]


Batches = Finite | Endless
