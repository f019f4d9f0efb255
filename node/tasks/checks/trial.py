"""Hold the task under test, and variants of it: opened again, with another seed, with other options.

A task that is given as an object can only be asked again. One that is given as a kind can be built again. One that is
given as a spec can also be opened in another process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from node.tasks.api.interface import (
    Answer,
    Completion,
    Option,
    OptionValue,
    Problem,
    TaskArguments,
    TaskError,
    TaskKind,
    Turn,
)
from node.tasks.checks.asking import answer_turn, reward
from node.tasks.gate import Gate, NobodyCanSay, Place
from node.tasks.python_task import PYTHON, kind_within
from node.tasks.registry import Services, build_task, read_spec
from node.tasks.tokenizer import TextCodec
from protocol.core.visible import one_line

T = TypeVar("T")

SHOWN_CHARS = 60
"""Characters of a text to repeat in a fault, enough to find it."""

TRIED = 8
"""Problems to try many completions on. Rewards may run programs, and take seconds."""

OTHER_SEED = 1_000_003
"""Added to the seed for a task with another order."""


class LeftOut(Exception):
    """A check does not apply to this task; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a task comes from: a kind with its arguments, and the spec, or "" if there was none."""

    kind: TaskKind
    arguments: TaskArguments
    spec: str = ""

    def open(self) -> Gate:
        """Open the task again. Raises TaskError."""
        return Gate(build_task(self.kind, self.arguments))

    def reseeded(self) -> Source:
        """Return the same source with another seed."""
        return self._with(seed=self.arguments.seed + OTHER_SEED)

    def varied(self) -> Iterator[tuple[str, Source]]:
        """Yield the source with another value of one option, for each option that has one; each with "key=value"."""
        for option in self.kind.options:
            value = _other(option, self.arguments.options[option.key])
            if value is not None:
                yield f"{option.key}={value}", self._with(options={**self.arguments.options, option.key: value})

    def _with(self, **changes: object) -> Source:
        return replace(self, arguments=replace(self.arguments, **changes), spec="")  # type: ignore[arg-type]


def source_of(task: TaskKind | str, *, directory: Path, seed: int, services: Services | None = None) -> Source:
    """Return the source of a spec, or of a kind with its default options. Raises TaskError."""
    if isinstance(task, str):
        kind, arguments = read_spec(task, directory=directory, seed=seed, services=services)
        if kind is PYTHON and (within := kind_within(arguments)) is not None:
            kind, arguments = within  # its options are known
        return Source(kind=kind, arguments=arguments, spec=task)
    if task.argument is not None:
        raise TaskError(f"task {task.name!r} needs {task.argument}. Give a spec: {task.name}:{task.argument}.")
    options = {option.key: option.default for option in task.options}
    return Source(kind=task, arguments=TaskArguments(argument="", options=options, directory=directory, seed=seed))


def _other(option: Option, value: OptionValue) -> OptionValue | None:
    """Return a near-by other value of the option, or None if no other value is known."""
    if isinstance(value, str):
        return next((choice for choice in option.choices if choice != value), None)
    return next((near for near in (value + 1, value - 1) if option.minimum <= near <= option.maximum), None)


@dataclass(kw_only=True)
class Stopwatch:
    """The seconds that each call took, by kind of call."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {"problem": [], "reward": []})

    def timed(self, what: str, ask: Callable[[], T]) -> T:
        """Return what `ask` returns, and record its time."""
        began = time.perf_counter()
        try:
            return ask()
        finally:
            self.seconds[what].append(time.perf_counter() - began)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A task under test. `indexes`: number of its problems to try.

    `again`: the same task opened a second time, if that is possible. `reseeded`: with another seed, if possible.
    `varied`: with another value of one option, by "key=value". `codec`: writes prompts in tokens; `own_model`: it
    belongs to a model that the author named. `max_turns`: turns after which an episode must be over.
    """

    gate: Gate
    again: Gate
    codec: TextCodec
    indexes: int
    own_model: bool = False
    reseeded: Gate | None = None
    varied: Mapping[str, Gate] = field(default_factory=dict)
    source: Source | None = None
    max_turns: int = 64
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def problem(self, index: int) -> Problem:
        """Return the training problem of `index`, and record the time. Raises TaskError."""
        return self.stopwatch.timed("problem", lambda: self.gate.problem(Place(index=index)))

    def problems(self, most: int | None = None) -> list[Problem]:
        """Return the first training problems."""
        return [self.problem(index) for index in range(min(self.indexes, most or self.indexes))]

    def reward(self, index: int, problem: Problem, completion: Completion) -> float:
        """Return the completion's reward, NaN for CANNOT_SAY, and record the time. Raises TaskError, which repeats what
        the policy said."""
        place = Place(index=index)
        try:
            return self.stopwatch.timed("reward", lambda: reward(self.gate, self.codec, place, problem, completion))
        except NobodyCanSay:
            return math.nan
        except TaskError as error:
            raise TaskError(f"{error} What the policy said: {shown(completion.text)}.") from error

    def answer_turn(self, index: int, problem: Problem, turns: tuple[Turn, ...], said: str) -> Answer | None:
        """Return the task's answer. Raises TaskError, which repeats what the policy said."""
        try:
            return answer_turn(self.gate, self.codec, Place(index=index), problem, turns, said)
        except TaskError as error:
            raise TaskError(f"{error} What the policy said: {shown(said)}.") from error

    def reward_again(self, index: int, completion: Completion) -> float:
        """Return the reward by the second instance of the task, NaN for CANNOT_SAY. Raises TaskError."""
        place = Place(index=index)
        try:
            return reward(self.again, self.codec, place, self.again.problem(place), completion)
        except NobodyCanSay:
            return math.nan

    def answer_again(self, index: int, turns: tuple[Turn, ...], said: str) -> Answer | None:
        """Return the answer of the second instance of the task. Raises TaskError."""
        place = Place(index=index)
        return answer_turn(self.again, self.codec, place, self.again.problem(place), turns, said)

    def episode(self, index: int, problem: Problem, said: str) -> Completion | None:
        """Return the episode of a policy that says the same in every turn; None if it is not over after
        `max_turns`."""
        turns: tuple[Turn, ...] = ()
        while len(turns) < self.max_turns:
            answered = self.answer_turn(index, problem, turns, said)
            if answered is None:
                return Completion(text=said, finished=True, turns=turns)
            turns = (*turns, Turn(said=said, answered=answered))
        return None


def asked(problem: Problem) -> tuple[object, ...]:
    """Return all parts of a problem that the policy or a reward can depend on, for comparison."""
    return problem.prompt, problem.answer, problem.chat


def shown(value: object) -> str:
    """Return a text or a prompt on one line, to repeat it in a fault."""
    if isinstance(value, tuple):
        value = " / ".join(f"{message.role}: {message.content}" for message in value)
    return repr(one_line(str(value), SHOWN_CHARS)) if isinstance(value, str) else str(value)
