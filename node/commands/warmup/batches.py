"""Which examples each step learns, in an order that can be found again.

Invariants:
- The batch of a step is a function of the examples, the seed, the bounds and the step, so a warm-up that was stopped
  goes on as if nothing had happened.
- A step takes whole examples, up to both of its bounds; one that is longer than the bound makes a step of its own.
- In a pass over finitely many examples each is learnt once, in another order in each pass; no step has two passes.
- Of several tasks each is drawn as often as its weight says, as evenly as prompts are (`Shares`).
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
    """What one step takes at most."""

    tokens: int
    examples: int


def passes(lengths: Sequence[int], bounds: Bounds, seed: int) -> Iterator[list[list[int]]]:
    """Yield pass after pass, without end: the numbers of the examples of each of its steps."""
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
    """Passes over `examples`: `epochs` of them, or as many as `steps` take."""

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
        """Steps in all."""
        return len(self._steps)

    def batch(self, step: int) -> list[Example]:
        """Return the examples of the step that follows `step` others."""
        return [self._examples[one] for one in self._steps[step]]


Draw = Callable[[int, int], Example | None]
"""(number of the task, how many of it were drawn before) -> the example; None of one that cannot be learnt."""


@dataclass(kw_only=True)
class Endless:
    """`total` steps of examples that have no end, drawn of tasks by `weights`. What does not fit into a step is passed
    over: the next one draws others."""

    draw: Draw
    weights: Sequence[float]
    bounds: Bounds
    total: int
    _tasks: array[int] = field(default_factory=lambda: array("H"))
    _before: array[int] = field(default_factory=lambda: array("Q"))
    """Of each draw its task, and how many of that were drawn before: ten bytes a draw."""
    _drawn: list[int] = field(init=False)
    _shares: Shares = field(init=False)

    def __post_init__(self) -> None:
        self._drawn = [0] * len(self.weights)
        self._shares = Shares.of(self.weights)

    def batch(self, step: int) -> list[Example]:
        """Return the examples of the step that follows `step` others: none where none of those drawn can be learnt."""
        first, found, tokens = step * self.bounds.examples, list[Example](), 0
        for number in range(first, first + self.bounds.examples):
            example = self.draw(*self._pick(number))
            if example is None or (found and tokens + len(example) > self.bounds.tokens):
                continue
            found.append(example)
            tokens += len(example)
        return found

    def _pick(self, number: int) -> tuple[int, int]:
        """Draw number `number`: of the task that lies furthest behind its share."""
        if len(self.weights) == 1:
            return 0, number
        while len(self._tasks) <= number:
            task = self._shares.draw()
            self._tasks.append(task)
            self._before.append(self._drawn[task])
            self._drawn[task] += 1
        return self._tasks[number], self._before[number]


Batches = Finite | Endless
