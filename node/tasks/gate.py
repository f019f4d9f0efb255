"""The gate between a task and the learner: whatever a task returns is checked here, and nowhere else.

Tasks may be an operator's own. A forgotten `return`, a dict where a message belongs or an exception is a mistake that
the operator has to read in one sentence, wherever the task runs: in the node, or in a verifier's process.

Invariants:
- What passes has the type that `node.tasks.api.interface` promises. Anything else is a TaskError that names the task,
  the problem, and what came.
- What a task is (finite, of several turns, cheap) is decided once, when the gate is opened, from the names of its
  attributes. `isinstance` with a Protocol would run its properties on Python 3.11, again with every call.
- The fingerprint is computed once.
"""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from node.tasks.api.interface import MAX_REWARD, Answer, Chat, ChatMessage, Completion, Problem, Task, TaskError, Turn

NEEDED = ("name", "levels", "fingerprint", "problem", "held_out", "reward")
"""What every task has."""

FINITE = ("size", "num_held_out", "notes", "pass_rates")
"""What a task of finitely many problems has besides: all of them, or it counts as one without end."""

MAX_SHOWN = 80
"""Characters of a value that are shown to the operator: enough to recognise it."""


class WrongValue(TaskError):
    """The task has returned what `node.tasks.api.interface` does not promise."""


@dataclass(frozen=True, kw_only=True)
class Finite:
    """What a finite task says of itself, see `node.tasks.api.interface.FiniteTask`."""

    size: int
    num_held_out: int
    notes: tuple[str, ...]
    pass_rates: tuple[float, ...] | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which problem is concerned."""

    index: int
    held_out: bool = False

    def __str__(self) -> str:
        return f"{'held-out ' if self.held_out else ''}index {self.index}"


class Gate:
    """The gate of one task. Every method raises TaskError where the task fails, or returns what it should not.

    `name`, `levels`, `finite` (None: without end), `has_turns` and `is_cheap` are what the task said when the gate was
    opened.
    """

    def __init__(self, task: Task) -> None:
        """Ask the task what it is. Raises TaskError."""
        self._task = task
        self.name = str(getattr(type(task), "__name__", "task"))
        if lacking := lacking_of(task):
            raise TaskError(f"task {self.name!r} lacks {', '.join(lacking)}; see docs/tasks.md.")
        self.name = self._said("name", _text, "text")
        self.levels = self._said("levels", _whole(1), "a whole number, at least 1")
        self.has_turns = has(task, "answer_turn") and getattr(task, "answer_turn", None) is not None
        self.is_cheap = has(task, "is_cheap") and self._said("is_cheap", _flag, "True or False")
        self.finite = self._finite() if all(has(task, part) for part in FINITE) else None

    @cached_property
    def fingerprint(self) -> str:
        """What the task calls itself, so that others are told apart; it may take seconds the first time."""
        found: str = self._said("fingerprint", _text, "text")
        return found

    @property
    def is_ours(self) -> bool:
        """Whether the task came with this program, whose tests hold what it returns."""
        return type(self._task).__module__.startswith("node.tasks.")

    def require(self) -> None:
        """Raises TaskError unless all that the task's rewards need is on this machine."""
        if has(self._task, "require"):
            with self._asked("its `require`"):
                self._task.require()  # type: ignore[attr-defined]

    def problem(self, place: Place) -> Problem:
        """The problem there."""
        asked = "held_out" if place.held_out else "problem"
        with self._asked(str(place)):
            found: object = getattr(self._task, asked)(place.index)
        if not isinstance(found, Problem):
            raise self._wrong(f"no problem at {place}", found, f"`{asked}` must return a volery.Problem")
        with self._reading(f"no prompt at {place}", found.prompt, f"`prompt` of its Problem must be {MESSAGES}"):
            _conversation(found.prompt)
        if not isinstance(found.chat, Chat):
            raise self._wrong(f"no chat at {place}", found.chat, "`chat` of its Problem must be a volery.Chat")
        if found.answer is not None:
            with self._reading(f"no answer at {place}", found.answer, "`answer` of its Problem must be text, or None"):
                _text(found.answer)
        return found

    def answer_turn(self, place: Place, problem: Problem, turns: Sequence[Turn], said: str) -> Answer | None:
        """What the task answers to `said`; None, where the episode is over or the task has one turn."""
        if not self.has_turns:
            return None
        with self._asked(str(place)):
            found: object = self._task.answer_turn(problem, turns, said)  # type: ignore[attr-defined]
        if found is None:
            return None
        with self._reading(f"no answer at {place}", found, f"`answer_turn` must return {MESSAGES}, or None at the end"):
            return _conversation(found)

    def reward(self, place: Place, problem: Problem, completion: Completion) -> float:
        """What `completion` is worth, a finite number."""
        with self._asked(str(place)):
            found: object = self._task.reward(problem, completion)
        missing = ", and one way through it ends without `return`" if found is None else ""
        with self._reading(f"no reward at {place}", found, f"`reward` must return a number{missing}"):
            reward = _number(found)
        if not abs(reward) <= MAX_REWARD:  # which is false of what is no number, too
            raise WrongValue(
                f"task {self.name!r} gave the reward {reward} at {place}; it must lie between {-MAX_REWARD:g} and "
                f"{MAX_REWARD:g}."
            )
        return reward

    def _finite(self) -> Finite:
        size: int = self._said("size", _whole(1), "a whole number, at least 1")
        rates = f"None, or {size} numbers from 0 to 1, NaN where there is none"
        return Finite(
            size=size,
            num_held_out=self._said("num_held_out", _whole(0), "a whole number, at least 0"),
            notes=self._said("notes", _texts, "a list of texts"),
            pass_rates=self._said("pass_rates", _rates(size), rates),
        )

    def _said(self, part: str, read: Callable[[Any], Any], wanted: str) -> Any:
        """Attribute `part`, as `read` takes it."""
        with self._asked(f"its `{part}`"):
            found: object = getattr(self._task, part)
        with self._reading(f"no {part}", found, f"`{part}` must be {wanted}"):
            return read(found)

    def _wrong(self, what: str, found: object, wanted: str) -> WrongValue:
        return WrongValue(f"task {self.name!r} gave {what}, but {describe_value(found)}: {wanted}.")

    @contextmanager
    def _reading(self, what: str, found: object, wanted: str) -> Iterator[None]:
        """What a reader does not take is told. Readers run methods of strange objects, which raise what they like."""
        try:
            yield
        except Exception:  # of comparing and converting what a task's own code gave
            raise self._wrong(what, found, wanted) from None

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        """What the task raises inside is its own mistake, whatever it is."""
        try:
            yield
        except (TaskError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit and asyncio's CancelledError, too, would end the node
            raise TaskError(
                f"task {self.name!r} failed at {what}: {type(error).__name__}: {error}. Mend it, then start again: "
                "nothing that was acknowledged is lost."
            ) from error


def has(task: object, part: str) -> bool:
    """Whether the task has an attribute of that name, its own or its class's, without running what computes it."""
    try:
        inspect.getattr_static(task, part)
    except AttributeError:
        return False
    return True


def lacking_of(task: object) -> list[str]:
    """What every task has, and this one lacks."""
    return [part for part in NEEDED if not has(task, part) and not hasattr(task, part)]


def describe_value(value: object) -> str:
    """`value` and its type for a person, short, whatever its own `repr` does."""
    if value is None:
        return "None"
    kind = type(value).__name__
    try:
        text = reprlib.repr(value)
    except Exception:  # of a `repr` that a task's author wrote
        return f"something of type {kind}"
    return f"{text if len(text) <= MAX_SHOWN else f'{text[:MAX_SHOWN]}...'} (of type {kind})"


MESSAGES = "text, or messages, each a volery.ChatMessage(role=..., content=...)"


# Readers: a value as the port has it. Each raises what it likes for what it is not.


class _OtherThing(Exception):
    """The value is not what the port promises."""


def _text(value: object) -> str:
    """Text that can be written as UTF-8, as half of a surrogate pair cannot."""
    if not isinstance(value, str):
        raise _OtherThing
    value.encode()
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise _OtherThing
    return tuple(map(_text, value))


def _conversation(value: object) -> Answer:
    """Text, or messages, at least one."""
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, list | tuple) or not value:
        raise _OtherThing
    for message in value:
        if not isinstance(message, ChatMessage):
            raise _OtherThing
        _text(message.role), _text(message.content)
    return tuple(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _OtherThing
    return value


def _whole(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not hasattr(type(value), "__index__") or (number := int(value)) < least:
            raise _OtherThing
        return number

    return read


def _number(value: Any) -> float:
    """What counts as a number: int, float, bool (1 or 0), and what converts itself, as a numpy scalar does."""
    if not hasattr(type(value), "__float__") and not hasattr(type(value), "__index__"):
        raise _OtherThing  # text among others, though float() reads it
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _rates(size: int) -> Callable[[Any], tuple[float, ...] | None]:
    def read(value: Any) -> tuple[float, ...] | None:
        if value is None:
            return None
        rates = tuple(map(_number, value))
        if len(rates) != size or any(rate < 0 or rate > 1 for rate in rates):
            raise _OtherThing
        return rates

    return read
