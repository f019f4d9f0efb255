"""Generate problems without a download: reversal, sorting, products, arithmetic. They have small alphabets and no end.

Invariants:

- A problem is drawn from a generator whose seed consists of kind, options, seed and index. Only `Random.random` is
  used, because Python promises to keep its stream.
- The digest of a prompt decides its side, training or held out. So the sides share no prompt, whatever the seeds.
- The reward is 1.0 for exactly the answer followed by a stop id, else 0.0.
"""

from __future__ import annotations

import hashlib
import re
import string
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from learner.curriculum.problem_index import place_of
from node.tasks.api.interface import Completion, Option, Problem, Task, TaskArguments, TaskError, TaskKind

HELD_OUT_ONE_IN = 8
"""One prompt in so many is held out. Training keeps its variety, and 2**12 prompts give 512 for evaluation."""

MAX_DRAWS = 2_000
"""Maximum draws for one problem. At least one draw in 8 is on the wanted side, so after so many that side is empty."""


class Dice:
    """Uniform random draws for one problem."""

    def __init__(self, *seeds: object) -> None:
        self._random = Random("/".join(map(str, seeds)))

    def below(self, bound: int) -> int:
        """Return an integer in [0, bound). The bias of about bound / 2**53 does not matter here."""
        return int(self._random.random() * bound)

    def between(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return low + self.below(high - low + 1)

    def text(self, alphabet: str, length: int) -> str:
        return "".join(alphabet[self.below(len(alphabet))] for _ in range(length))


_NUMBER = re.compile(r"-?[0-9]+")

Draw = Callable[[Dice, int], tuple[str, str]]
"""(dice, level) -> (prompt, answer)"""


def is_held_out(prompt: str) -> bool:
    """Return whether a prompt is held out, by its digest."""
    return hashlib.blake2b(prompt.encode(), digest_size=8).digest()[0] % HELD_OUT_ONE_IN == 0


@dataclass(frozen=True, kw_only=True)
class DrawnTask(ABC):
    """A task whose problems are drawn at random. `label`: the kind with its options, which begins every seed."""

    name: str
    label: str
    seed: int
    levels: int = 1

    @property
    def fingerprint(self) -> str:
        return f"{self.label}/{self.seed}"

    def problem(self, index: int) -> Problem:
        return self._draw_on_side(index, f"training/{self.seed}", held_out=False)

    def held_out(self, index: int) -> Problem:
        return self._draw_on_side(index, "held out", held_out=True)

    @abstractmethod
    def _draw_on_side(self, index: int, side: str, *, held_out: bool) -> Problem:
        """Draw a problem of one side. Raises TaskError if too many draws are on the other side."""


@dataclass(frozen=True, kw_only=True)
class GeneratedTask(DrawnTask):
    """A task whose problems come from `draw`. `program`: returns a Python program that prints the answer, if any."""

    draw: Draw
    is_cheap: bool = True
    program: Callable[[Problem], str] | None = None

    def in_form(self, problem: Problem, completion: Completion) -> bool:
        """Return whether the completion is a number, if the reference is one, or else the right number of letters."""
        answer = str(problem.answer)
        if _NUMBER.fullmatch(answer):
            return _NUMBER.fullmatch(completion.text) is not None
        return completion.text.isascii() and completion.text.isalpha() and len(completion.text) == len(answer)

    def reward(self, problem: Problem, completion: Completion) -> float:
        return float(completion.finished and completion.text == problem.answer)

    def _draw_on_side(self, index: int, side: str, *, held_out: bool) -> Problem:
        dice = Dice(self.label, side, index)
        _, level = place_of(index, self.levels)
        for _ in range(MAX_DRAWS):
            prompt, answer = self.draw(dice, level)
            if is_held_out(prompt) == held_out:
                return Problem(prompt=prompt, answer=answer)
        raise TaskError(f"task {self.label} has too few different problems at level {level}; make its options larger.")


def label_of(name: str, arguments: TaskArguments) -> str:
    """Return the kind called `name` with its options, as text."""
    return ",".join([name, *(f"{key}={value}" for key, value in sorted(arguments.options.items()))])


def generated(name: str, arguments: TaskArguments, make: Callable[..., GeneratedTask], **parts: object) -> Task:
    """Return the task called `name`, made of its `parts`. It draws problems on both sides now, so that a TaskError
    appears at the start and not in the middle of a run."""
    task = make(name=name, label=label_of(name, arguments), seed=arguments.seed, **parts)
    for level in range(task.levels):
        task.problem(level)
        task.held_out(level)
    return task


def _build_reverse(arguments: TaskArguments) -> Task:
    letters, alphabet = arguments.integer("letters"), string.ascii_lowercase[: arguments.integer("alphabet")]

    def draw(dice: Dice, _level: int) -> tuple[str, str]:
        word = dice.text(alphabet, letters)
        return f"rev:{word}=", word[::-1]

    return generated("reverse", arguments, GeneratedTask, draw=draw)


def _build_sort(arguments: TaskArguments) -> Task:
    digits = arguments.integer("digits")

    def draw(dice: Dice, _level: int) -> tuple[str, str]:
        numbers = dice.text(string.digits, digits)
        return f"sort:{numbers}=", "".join(sorted(numbers))

    return generated("sort", arguments, GeneratedTask, draw=draw)


def _draw_arithmetic(dice: Dice, level: int) -> tuple[str, str]:
    """Draw a problem. Levels: a+b of one digit; of two; a-b of two; a*b of two digits by one; a+b-c of three digits."""
    match level:
        case 0:
            a, b = dice.between(0, 9), dice.between(0, 9)
            return f"{a}+{b}=", str(a + b)
        case 1:
            a, b = dice.between(10, 99), dice.between(10, 99)
            return f"{a}+{b}=", str(a + b)
        case 2:
            a, b = dice.between(10, 99), dice.between(10, 99)
            return f"{a}-{b}=", str(a - b)
        case 3:
            a, b = dice.between(10, 99), dice.between(2, 9)
            return f"{a}*{b}=", str(a * b)
        case _:
            a, b, c = (dice.between(100, 999) for _ in range(3))
            return f"{a}+{b}-{c}=", str(a + b - c)


def _build_product(arguments: TaskArguments) -> Task:
    digits = arguments.integer("digits")
    low, high = 10 ** (digits - 1), 10**digits - 1

    def draw(dice: Dice, _level: int) -> tuple[str, str]:
        a, b = dice.between(low, high), dice.between(low, high)
        return f"{a}*{b}=", str(a * b)

    return generated("product", arguments, GeneratedTask, draw=draw, program=_prints)


def _prints(problem: Problem) -> str:
    """Return a program for a prompt that is a formula."""
    return f"print({str(problem.prompt).removesuffix('=')})"


REVERSE = TaskKind(
    name="reverse",
    summary='a word backwards: "rev:abcdef=" -> "fedcba"',
    build=_build_reverse,
    options=(
        Option(key="letters", default=6, help="letters in a word", minimum=2, maximum=256),
        Option(key="alphabet", default=26, help="number of different letters, beginning with a", minimum=4, maximum=26),
    ),
)
SORT = TaskKind(
    name="sort",
    summary='digits in ascending order: "sort:83514=" -> "13458"',
    build=_build_sort,
    options=(Option(key="digits", default=5, help="digits in a problem", minimum=2, maximum=256),),
)
PRODUCT = TaskKind(
    name="product",
    summary='numbers multiplied: "482*917=" -> "441994"',
    build=_build_product,
    options=(Option(key="digits", default=3, help="digits of each number", minimum=2, maximum=9),),
)
ARITHMETIC = TaskKind(
    name="arithmetic",
    summary='sums that get harder with success: "3+4=" -> "7", up to "512+204-987=" -> "-271"',
    build=lambda arguments: generated(
        "arithmetic",
        arguments,
        GeneratedTask,
        draw=_draw_arithmetic,
        levels=arguments.integer("levels"),
        program=_prints,
    ),
    options=(Option(key="levels", default=5, help="difficulties, from one-digit sums on", minimum=1, maximum=5),),
)
