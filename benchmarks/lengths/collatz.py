"""Define a task whose right answers have a long tail: write out the Collatz sequence of a number.

An even number is followed by its half, an odd one by three times it and one, until there is 1. Half of the numbers up
to 513 take less than 115 characters, one in a hundred takes 540. `benchmarks/lengths/record.py` copies this file beside
its swarm.toml, as an operator would put a task there.

The reward is the share of the sequence that is right before the first mistake, so that a policy that errs learns which
of its completions came further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from volery import Completion, Problem, TaskArguments, TaskError

FIRST = 2
"""The number of problem 0."""

ALPHABET = "0123456789: "


def sequence(number: int) -> list[int]:
    """Return the sequence after `number`, up to 1."""
    found = list[int]()
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        found.append(number)
    return found


@dataclass(frozen=True, kw_only=True)
class Collatz:
    """A finite set of numbers, repeated pass after pass."""

    size: int
    name: str = "collatz"
    levels: int = 1
    is_cheap: bool = True
    num_held_out: int = 0
    notes: Sequence[str] = ()
    pass_rates: Sequence[float] | None = None

    @property
    def fingerprint(self) -> str:
        """Changes whenever an index means another problem."""
        return f"collatz/1/{self.size}"

    def problem(self, index: int) -> Problem:
        """Return the problem of `index`."""
        number = FIRST + index % self.size
        return Problem(prompt=f"{number}:", answer=" ".join(map(str, sequence(number))))

    def held_out(self, index: int) -> Problem:
        """Raise TaskError: all numbers are trained on."""
        raise TaskError("collatz: holds no problems out. Set [task] held_out = 0.")

    def reward(self, problem: Problem, completion: Completion) -> float:
        """Return the share of the sequence that is right before the first mistake; 1 needs an end, too."""
        assert problem.answer is not None
        wanted, said = problem.answer.split(" "), completion.text.split(" ")
        if completion.finished and said == wanted:
            return 1.0
        right = next((place for place, pair in enumerate(zip(wanted, said, strict=False)) if pair[0] != pair[1]), None)
        return 0.9 * (min(len(wanted), len(said)) if right is None else right) / len(wanted)


def build(arguments: TaskArguments) -> Collatz:
    """Return the task of `python:collatz:build:size=512`."""
    return Collatz(size=int(arguments.options["size"]))
