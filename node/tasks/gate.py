"""Check everything that a task returns, here and nowhere else.

A task may be the operator's own code. It may forget a `return`, return a dict instead of a message, or raise. The
operator must then be able to read the mistake in one sentence, whether the task runs in the node or in a verifier.

Invariants:

- A value that passes has the type that `node.tasks.api.interface` promises. Any other value is a TaskError that names
  the task, the problem and the value.
- The gate decides once, when it is made, what a task is (finite, of several turns, cheap), from the names of its
  attributes. `isinstance` with a Protocol would run its properties on Python 3.11, again with every call.
- The fingerprint is computed once.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import re
import reprlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from learner.artifacts.text_files import parse_json
from learner.rollouts.overlong import OVERLONG
from learner.rollouts.reward_parts import MAX_NAME_CHARACTERS, MAX_PARTS, RewardPart
from node.tasks.api.environment import MAX_ANSWER_CHARACTERS, EnvironmentTask, Observation
from node.tasks.api.interface import (
    CANNOT_SAY,
    MAX_REWARD,
    Answer,
    Chat,
    ChatMessage,
    Completion,
    Problem,
    Task,
    TaskError,
    Tool,
    ToolCall,
    Turn,
)
from node.tasks.composed_reward import ComposedReward
from node.tasks.services.loop_thread import wait_for

NEEDED = ("name", "levels", "fingerprint", "problem", "held_out", "reward")
"""Attributes that every task must have."""

IN_ENVIRONMENT = ("reward",)
"""Those of NEEDED that a task with environments need not have, because its environments have them."""

FINITE = ("size", "num_held_out", "notes", "pass_rates")
"""The further attributes of a task with finitely many problems. A task that lacks one of them counts as endless."""

MAX_SHOWN = 80
"""Characters of a value to show to the operator, enough to recognise it."""


PROGRAM = (f"{Path(__file__).parents[1]}{os.sep}", "<")
PYTHON = f"{sysconfig.get_path('stdlib')}{os.sep}"
"""Beginnings of the files that no author of a task wrote: those of the program and of Python."""

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of what was installed. A Python without an environment of its own has them among its own files."""


class WrongValue(TaskError):
    """The task returned something that `node.tasks.api.interface` does not allow."""


class NobodyCanSay(TaskError):
    """The reward is CANNOT_SAY, which is not a mistake."""


@dataclass(frozen=True, kw_only=True)
class Finite:
    """The attributes of a finite task, see `node.tasks.api.interface.FiniteTask`."""

    size: int
    num_held_out: int
    notes: tuple[str, ...]
    pass_rates: tuple[float, ...] | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """One problem of a task: a training problem, or a held-out one."""

    index: int
    held_out: bool = False

    def __str__(self) -> str:
        return f"{'held-out ' if self.held_out else ''}index {self.index}"


class Gate:
    """One task, with every call checked. Methods raise TaskError if the task fails or returns a wrong value.

    `name`, `levels`, `finite` (None if endless), `has_turns`, `has_environments`, `has_async_reward` and `is_cheap` say
    what the task is. They are decided when the gate is made.
    """

    def __init__(self, task: Task | EnvironmentTask) -> None:
        """Read the task's attributes. Raises TaskError."""
        self._task = task
        self.name = str(getattr(type(task), "__name__", "task"))
        if lacking := lacking_of(task):
            raise TaskError(f"task {self.name!r} lacks {', '.join(lacking)}; see docs/operate/write-a-task.md.")
        self.name = self._said("name", _text, "text")
        self.levels = self._said("levels", _whole(1), "a whole number, at least 1")
        self.has_environments = has_environments(task)
        self.has_turns = self.has_environments or (
            has(task, "answer_turn") and getattr(task, "answer_turn", None) is not None
        )
        self.has_async_reward = not self.has_environments and is_async(getattr(task, "reward", None))
        said_cheap = has(task, "is_cheap") and self._said("is_cheap", _flag, "True or False")
        # Environments and awaited rewards are slow, and may hang.
        self.is_cheap = said_cheap and not self.has_environments and not self.has_async_reward
        self.finite = self._finite() if all(has(task, part) for part in FINITE) else None
        self._named: tuple[Place, frozenset[str]] | None = None
        """The first problem that got a reward, and the names of its rewards; no names if it was one plain reward."""

    @cached_property
    def fingerprint(self) -> str:
        """The task's own text that tells it from other tasks. The first access may take seconds."""
        found: str = self._said("fingerprint", _text, "text")
        return found

    @property
    def is_ours(self) -> bool:
        """Whether the task is built in, so that the program's own tests check what it returns."""
        return type(self._task).__module__.startswith("node.tasks.")

    def require(self) -> None:
        """Raise TaskError if this machine lacks something that the task's rewards need."""
        if has(self._task, "require"):
            with self._asked("its `require`"):
                self._task.require()  # type: ignore[union-attr]

    def problem(self, place: Place) -> Problem:
        """Return the problem at `place`."""
        asked = "held_out" if place.held_out else "problem"
        with self._asked(str(place)):
            found: object = getattr(self._task, asked)(place.index)
        if not isinstance(found, Problem):
            raise self._wrong(f"no problem at {place}", found, f"`{asked}` must return a volery.Problem")
        with self._reading(f"no prompt at {place}", found.prompt, f"`prompt` of its Problem must be {MESSAGES}"):
            _conversation(found.prompt)
        with self._reading(f"no tools at {place}", found.tools, f"`tools` of its Problem must be {TOOLS}"):
            _tools(found.tools)
        if not isinstance(found.chat, Chat):
            raise self._wrong(f"no chat at {place}", found.chat, "`chat` of its Problem must be a volery.Chat")
        if found.answer is not None:
            with self._reading(f"no answer at {place}", found.answer, "`answer` of its Problem must be text, or None"):
                _text(found.answer)
        if found.tools and isinstance(found.prompt, str) and found.chat is Chat.NEVER:
            raise WrongValue(
                f"task {self.name!r} gave tools at {place} with a prompt of plain text, but only the chat template "
                "shows tools: give messages as `prompt`, or `chat=Chat.ALWAYS`."
            )
        return found

    def answer_turn(self, place: Place, problem: Problem, turns: Sequence[Turn], said: str) -> Answer | None:
        """Return the task's answer to `said`, or None if the episode is over or the task has one turn."""
        if not self.has_turns or self.has_environments:
            return None
        with self._asked(str(place)):
            found: object = self._task.answer_turn(problem, turns, said)  # type: ignore[union-attr]
        if found is None:
            return None
        with self._reading(f"no answer at {place}", found, f"`answer_turn` must return {MESSAGES}, or None at the end"):
            return _conversation(found)

    def reward(self, place: Place, problem: Problem, completion: Completion) -> float:
        """Return the reward of `completion`, a finite number. Waits for a reward that is `async`."""
        with self._asked(str(place)):
            found: object = self._task.reward(problem, completion)  # type: ignore[union-attr]
            if inspect.isawaitable(found):
                found = wait_for(found)
        return self.reward_of(place, found)

    async def try_services(self, place: Place) -> None:
        """Raise TaskError if the task needs services for its rewards and they do not answer."""
        if has(self._task, "try_services"):
            problem = self.problem(place)
            with self._asked("its `try_services`"):
                await self._task.try_services(problem)  # type: ignore[union-attr]

    def demonstrate(self, place: Place) -> tuple[ChatMessage, ...] | None:
        """Return a conversation that continues the prompt of `place`, for a warm start: what the assistant says, and
        what tools answer. None if the task gives none; then its reference answer is all there is."""
        if not has(self._task, "demonstrate"):
            return None
        with self._asked(str(place)):
            found: object = self._task.demonstrate(place.index)  # type: ignore[union-attr]
        with self._reading(f"no example at {place}", found, f"`demonstrate` must return {MESSAGES}"):
            shown = _conversation(found)
        return (ChatMessage(role="assistant", content=shown),) if isinstance(shown, str) else shown

    @property
    def demonstrates(self) -> bool:
        """Whether the task gives conversations for a warm start."""
        return has(self._task, "demonstrate")

    def in_form(self, place: Place, problem: Problem, completion: Completion) -> bool:
        """Return whether `completion` has the form of an answer: it ended by itself, is not blank, and passes the
        task's own check, if the task has one (`node.tasks.api.interface.FormTask`)."""
        if not completion.finished or not completion.text.strip():
            return False
        if not has(self._task, "in_form"):
            return True
        with self._asked(f"{place}, in `in_form`"):
            found: object = self._task.in_form(problem, completion)  # type: ignore[union-attr]
        with self._reading(f"no verdict on the form at {place}", found, "`in_form` must return True or False"):
            return bool(_flag(found))

    # Methods for callers that call the task themselves, because its method may be `async`

    @property
    def rewarder(self) -> Callable[[Problem, Completion], object]:
        """The task's own `reward` method."""
        return cast(Task, self._task).reward

    @property
    def maker(self) -> Callable[[Problem, int], object]:
        """The task's own `environment` method."""
        return cast(EnvironmentTask, self._task).environment

    def seed(self, place: Place) -> int:
        """Return the seed of the environment at `place`, the same in every process. For a held-out problem it is also
        the same in every run, like the problem itself."""
        side = f"{self.name}/held out" if place.held_out else self.fingerprint
        return int.from_bytes(hashlib.sha256(f"{side}/{place.index}".encode()).digest()[:8]) >> 1

    def tools_of(self, place: Place, problem: Problem, environment: object) -> frozenset[str]:
        """Return the names of the tools that may be called: the environment's own, and those of the problem."""
        with self._asked(f"{place}, in `tools`"):
            found: object = getattr(environment, "tools", ())
        with self._reading(f"no tools at {place}", found, f"`tools` of its environment must be {TOOLS}"):
            _tools(found)
        return frozenset(tool.name for tool in (*problem.tools, *cast("Sequence[Tool]", found)))

    def observed(self, place: Place, found: object) -> Answer | None:
        """Return the answer in what `step` returned, or None if the episode is over."""
        if isinstance(found, Observation):
            if found.over:
                return None
            found = found.answer
            if found is None:
                raise self._wrong(f"no answer at {place}", found, OBSERVATION)
        if found is None:
            return None
        with self._reading(f"no answer at {place}", found, OBSERVATION):
            answer = _conversation(found)
        if (size := _size(answer)) > MAX_ANSWER_CHARACTERS:
            raise WrongValue(
                f"task {self.name!r} answered with {size:,} characters at {place}; the maximum is "
                f"{MAX_ANSWER_CHARACTERS:,}. Let `step` cut longer answers."
            )
        return answer

    def failed(self, place: Place, part: str, error: BaseException) -> TaskError:
        """Return the error for an environment whose method `part` raised `error`."""
        if isinstance(error, TaskError):
            return error
        failure = TaskError(
            f"task {self.name!r} failed at {place}, in `{part}`: {type(error).__name__}: {error}"
            f"{place_in_code(self._task, error)}. Its episode ends."
        )
        failure.__cause__ = error
        return failure

    @cached_property
    def weights(self) -> Mapping[str, float]:
        """The weights of named rewards, where the task sets them."""
        if not has(self._task, "reward_weights"):
            return {}
        found: Mapping[str, float] = self._said("reward_weights", _weights, "numbers by the names of rewards")
        return found

    def reward_of(self, place: Place, found: object) -> float:
        """Return what `reward` returned, of the task or of an environment, as a finite number; a `ComposedReward` for
        named rewards. Raises NobodyCanSay if all of it is CANNOT_SAY."""
        if isinstance(found, Mapping):
            return self._sum(place, {name: self._one(place, value) for name, value in found.items()})
        reward = self._one(place, found)
        if math.isnan(reward):
            raise self._nobody(place)
        self._require_names(place, frozenset())
        return reward

    def _sum(self, place: Place, rewards: Mapping[object, float]) -> ComposedReward:
        """Return the weighted sum of named rewards. A value is NaN if it is unknown."""
        weights = self.weights
        if not 0 < len(rewards) <= MAX_PARTS:
            raise WrongValue(f"task {self.name!r} gave {len(rewards)} rewards at {place}; give 1 to {MAX_PARTS}.")
        for name in rewards:
            if not isinstance(name, str) or not _NAME.fullmatch(name) or name == OVERLONG:
                raise WrongValue(
                    f"task {self.name!r} gave a reward called {reprlib.repr(name)} at {place}; a name is text of 1 to "
                    f"{MAX_NAME_CHARACTERS} letters, digits, spaces and signs of _-./, and not {OVERLONG!r}."
                )
        if unknown := sorted(weights.keys() - {str(name) for name in rewards}):
            raise WrongValue(
                f"task {self.name!r} has a weight for `{unknown[0]}` in `reward_weights`, but `reward` gave only "
                f"{', '.join(f'`{name}`' for name in rewards)} at {place}. Let `reward` always give all of them, and "
                "CANNOT_SAY for those that it cannot judge."
            )
        self._require_names(place, frozenset(str(name) for name in rewards))
        parts = tuple(
            RewardPart(name=str(name), value=value, weight=weights.get(str(name), 1.0))
            for name, value in rewards.items()
        )
        if not any(part.is_known for part in parts):
            raise self._nobody(place)
        try:
            return ComposedReward.of(parts)
        except ValueError as error:
            raise WrongValue(f"task {self.name!r}: {error} at {place}, which is too large.") from error

    def _require_names(self, place: Place, names: frozenset[str]) -> None:
        """Raise WrongValue if earlier rewards had other names, because the names would not form one series each."""
        if self._named is None:
            self._named = place, names
        first, known = self._named
        if names != known:
            raise WrongValue(
                f"task {self.name!r} gave {_listed(names)} at {place}, but {_listed(known)} at {first}. Let `reward` "
                "give the same names for each completion, and CANNOT_SAY for those that it cannot judge."
            )

    def _nobody(self, place: Place) -> NobodyCanSay:
        return NobodyCanSay(f"task {self.name!r} cannot say what the completion at {place} is worth")

    def _one(self, place: Place, found: object) -> float:
        """Return one reward; NaN for CANNOT_SAY."""
        if found is CANNOT_SAY:
            return math.nan
        missing = ", and one path through it ends without `return`" if found is None else ""
        with self._reading(
            f"no reward at {place}", found, f"`reward` must return a number, or numbers by their names{missing}"
        ):
            reward = _number(found)
        if not abs(reward) <= MAX_REWARD:  # also true for NaN
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
        """Return the attribute `part`, as `read` converts it."""
        with self._asked(f"its `{part}`"):
            found: object = getattr(self._task, part)
        with self._reading(f"no {part}", found, f"`{part}` must be {wanted}"):
            return read(found)

    def _wrong(self, what: str, found: object, wanted: str) -> WrongValue:
        return WrongValue(f"task {self.name!r} gave {what}, but {describe_value(found)}: {wanted}.")

    @contextmanager
    def _reading(self, what: str, found: object, wanted: str) -> Iterator[None]:
        """Turn any error of a reader into a WrongValue. Readers call methods of unknown objects, which may raise
        anything."""
        try:
            yield
        except Exception:  # from comparing or converting a value of the task's own code
            raise self._wrong(what, found, wanted) from None

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        """Turn any error that the task raises inside into a TaskError."""
        try:
            yield
        except (TaskError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit and asyncio's CancelledError would end the node
            place = place_in_code(self._task, error)
            raise TaskError(
                f"task {self.name!r} failed at {what}: {type(error).__name__}: {error}{place}. Correct the task."
            ) from error


def place_in_code(task: object, error: BaseException) -> str:
    """Return " (FILE, line N)" for the innermost call in the module that defines the task, else for the innermost one
    that is neither in the program nor in Python's own library; "" if there is none."""
    module = sys.modules.get(type(task).__module__)
    calls = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [call for call in calls if call[0] == getattr(module, "__file__", None)]
    others = [call for call in calls if _is_authors(call[0])]
    if not (own or others):
        return ""
    file, line = (own or others)[-1]
    return f" ({Path(file).name}, line {line})"


def _is_authors(file: str) -> bool:
    """Return whether an author of a task may have written `file`."""
    if file.startswith(PROGRAM):
        return False
    return not file.startswith(PYTHON) or bool(INSTALLED & set(Path(file).parts))


def has(task: object, part: str) -> bool:
    """Return whether the task or its class has this attribute, without running a property."""
    try:
        inspect.getattr_static(task, part)
    except AttributeError:
        return False
    return True


def has_environments(task: object) -> bool:
    """Return whether the task's episodes have environments (`node.tasks.api.environment`)."""
    return has(task, "environment") and callable(getattr(task, "environment", None))


def is_async(method: object) -> bool:
    """Return whether a call of `method` must be awaited: it is `async def`, or an object whose `__call__` is."""
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None))  # noqa: B004


def lacking_of(task: object) -> list[str]:
    """Return the names of required attributes that this task lacks."""
    elsewhere = IN_ENVIRONMENT if has_environments(task) else ()
    return [part for part in NEEDED if part not in elsewhere and not has(task, part) and not hasattr(task, part)]


def describe_value(value: object) -> str:
    """Return `value` and its type as short text for a person, even if its own `repr` fails."""
    if value is None:
        return "None"
    kind = type(value).__name__
    try:
        text = reprlib.repr(value)
    except Exception:  # from a `repr` that the task's author wrote
        return f"something of type {kind}"
    return f"{text if len(text) <= MAX_SHOWN else f'{text[:MAX_SHOWN]}...'} (of type {kind})"


MESSAGES = "text, or messages, each a volery.ChatMessage(role=..., content=...)"

OBSERVATION = f"`step` must return {MESSAGES}, a volery.Observation of those, or None at the end"

MAX_TOOLS = 128
"""Maximum number of tools of one problem. Each is written into the prompt, whose length is limited as well."""

TOOLS = (
    f"at most {MAX_TOOLS} volery.Tool(name=..., description=..., parameters=...), each with its own name of letters, "
    "digits, _, - and ., and with a JSON schema of an object"
)

NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""Names of tools that every model family writes unchanged."""


# Readers convert a value to the promised type. Each may raise any exception for a wrong value.


class _OtherThing(Exception):
    """The value is not what the interface promises."""


def _text(value: object) -> str:
    """Return a text that can be written as UTF-8. Half of a surrogate pair cannot."""
    if not isinstance(value, str):
        raise _OtherThing
    value.encode()
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise _OtherThing
    return tuple(map(_text, value))


def _conversation(value: object) -> Answer:
    """Return a text, or at least one message."""
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, list | tuple) or not value:
        raise _OtherThing
    for message in value:
        if not isinstance(message, ChatMessage):
            raise _OtherThing
        for text in (message.role, message.content, message.name, message.tool_call_id):
            _text(text)
        for call in message.tool_calls:
            _call(call)
    return tuple(value)


def _size(answer: Answer) -> int:
    """Return the number of characters of an answer."""
    return len(answer) if isinstance(answer, str) else sum(len(message.content) for message in answer)


def _call(value: object) -> None:
    if not isinstance(value, ToolCall):
        raise _OtherThing
    _text(value.id), _text(value.name)
    _object(value.arguments)


def _tools(value: object) -> None:
    if not isinstance(value, list | tuple) or len(value) > MAX_TOOLS:
        raise _OtherThing
    for tool in value:
        if not isinstance(tool, Tool) or NAME.fullmatch(tool.name) is None:
            raise _OtherThing
        _text(tool.description)
        _object(parse_json(tool.parameters.encode()) if isinstance(tool.parameters, str) else tool.parameters)
    if len({tool.name for tool in value}) < len(value):
        raise _OtherThing


def _object(value: object) -> None:
    """Accept a mapping of JSON values with text keys: no NaN, no half of a surrogate pair, no cycles."""
    if not isinstance(value, Mapping):
        raise _OtherThing
    _text(json.dumps(dict(value), allow_nan=False, ensure_ascii=False))
    if not all(isinstance(key, str) for key in value):
        raise _OtherThing


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
    """Return a number: an int, float, bool (1 or 0), or an object that converts itself, such as a numpy scalar."""
    if not hasattr(type(value), "__float__") and not hasattr(type(value), "__index__"):
        raise _OtherThing  # text too, although float() would read it
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _weights(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _OtherThing
    found = {name: _number(weight) for name, weight in value.items()}
    if not all(abs(weight) <= MAX_REWARD for weight in found.values()):
        raise _OtherThing
    return found


def _listed(names: frozenset[str]) -> str:
    if not names:
        return "one reward without a name"
    return f"{'rewards' if len(names) > 1 else 'a reward'} called {', '.join(f'`{name}`' for name in sorted(names))}"


_NAME = re.compile(rf"[A-Za-z0-9_\-./ ]{{1,{MAX_NAME_CHARACTERS}}}")


def _rates(size: int) -> Callable[[Any], tuple[float, ...] | None]:
    def read(value: Any) -> tuple[float, ...] | None:
        if value is None:
            return None
        rates = tuple(map(_number, value))
        if len(rates) != size or any(rate < 0 or rate > 1 for rate in rates):
            raise _OtherThing
        return rates

    return read
