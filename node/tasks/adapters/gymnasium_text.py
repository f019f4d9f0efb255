"""Use Gymnasium environments that can be read as text, `gymnasium:ENV_ID`, one environment for each episode.

The policy reads the observation, if that is a `spaces.Text`, or else what the environment renders with
render_mode="ansi". Actions are texts, or numbers of a `spaces.Discrete`, to which the spec may give words. Any other
space has no natural text; the start fails, and the error shows the space.

Gymnasium is imported when such a task is opened. It depends on NumPy alone, so the node may import it.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from node.installation.extras import line_of_extra
from node.tasks.adapters.seeded_problems import (
    INSTRUCTIONS,
    MAX_IDLE_TURNS,
    Begin,
    SeededProblem,
    SeededTask,
    label_without_address,
    read_instructions,
)
from node.tasks.adapters.text_actions import Actions, Numbers, Text, name_colors, words_of
from node.tasks.api.environment import EnvironmentTask
from node.tasks.api.interface import Chat, Option, Problem, Spoken, TaskArguments, TaskError, TaskKind, Tool
from node.tasks.api.options import CHAT, suggestion

DECLARED = ("observe", "actions", "unreadable", "reward", "scale", "steps", "instructions", "chat")
"""Keys of this kind of task. All other keys are passed to `gymnasium.make`."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The settings of a spec. `scale` divides rewards. `ends`: a turn without an action ends the episode."""

    as_text: bool
    actions: Actions
    ends: bool
    last_only: bool
    scale: float


@dataclass(kw_only=True)
class TextWorld:
    """One episode of a Gymnasium environment that has been reset."""

    world: Any
    terms: Terms
    tools: tuple[Tool, ...] = ()
    _rewards: list[float] = field(default_factory=list)
    _idle_turns: int = 0

    def step(self, spoken: Spoken) -> str | None:
        """Take the action that the policy named, and return what it sees next; None if the episode is over."""
        action = self.terms.actions.read(spoken.content)
        if action is None:
            self._idle_turns += 1
            return None if self.terms.ends or self._idle_turns >= MAX_IDLE_TURNS else self.terms.actions.hint
        self._idle_turns = 0
        observation, reward, terminated, truncated, _ = self.world.step(action)
        self._rewards.append(_finite(reward))
        return None if terminated or truncated else seen(self.world, observation, as_text=self.terms.as_text)

    def reward(self) -> float:
        """Return the sum of the steps' rewards, or the last one, divided by the scale."""
        rewards = self._rewards[-1:] if self.terms.last_only else self._rewards
        return math.fsum(rewards) / self.terms.scale

    def close(self) -> None:
        """Close the environment."""
        self.world.close()


def _finite(reward: Any) -> float:
    try:
        number = float(reward)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise TaskError(f"the environment gave a step the reward {reward!r}, not a finite number. Correct its `step`.")
    return number


def seen(world: Any, observation: object, *, as_text: bool) -> str:
    """Return what the policy reads of an environment now. Raises TaskError if it is not text."""
    found: Any = observation if as_text else world.render()
    found = found if as_text or isinstance(found, str) else getattr(found, "getvalue", lambda: found)()
    if not isinstance(found, str):
        what = "its observation" if as_text else 'what it renders with render_mode="ansi"'
        raise TaskError(f"{what} is of type {type(found).__name__}, not text. Correct the environment.")
    return found if as_text else name_colors(found)


@dataclass(frozen=True, kw_only=True)
class GymnasiumTask(SeededTask):
    """A Gymnasium environment as a task. `make` makes an environment that has not been reset."""

    make: Callable[[], Any]
    terms: Terms

    @contextmanager
    def beginnings(self) -> Iterator[Begin]:
        """See `SeededTask`."""
        world = self._made()
        try:
            yield lambda seed: self._reset(world, seed)
        finally:
            with suppress(Exception):  # from the environment's own code, when there is nothing left to save
                world.close()

    def environment(self, problem: Problem, seed: int) -> TextWorld:
        """Return an environment that has begun as the problem's prompt says."""
        assert isinstance(problem, SeededProblem), "a problem of this task"
        world = self._made()
        self.require_same(problem, self._reset(world, problem.seed))
        return TextWorld(world=world, terms=self.terms)

    def _made(self) -> Any:
        try:
            return self.make()
        except Exception as error:  # from the environment's own code
            raise TaskError(
                f"task {self.name!r}: the environment cannot be made: {type(error).__name__}: {error}."
            ) from error

    def _reset(self, world: Any, seed: int) -> str:
        try:
            observation, _ = world.reset(seed=seed)
            return seen(world, observation, as_text=self.terms.as_text)
        except TaskError:
            raise
        except Exception as error:  # from the environment's own code
            raise TaskError(
                f"task {self.name!r}: the environment fails at reset(seed={seed}): {type(error).__name__}: {error}."
            ) from error


def _build(arguments: TaskArguments) -> EnvironmentTask:
    gymnasium = _import()
    if (beside := str(arguments.directory.resolve())) not in sys.path:
        sys.path.append(beside)
    name = arguments.argument
    spec = _spec(gymnasium, name)
    given = {key: _value(str(value)) for key, value in arguments.options.items() if key not in DECLARED}
    if steps := arguments.integer("steps"):
        given["max_episode_steps"] = steps
    plain = _first(gymnasium, name, given)
    try:
        as_text = _as_text(gymnasium, plain, arguments.text("observe"))
        actions = _actions(gymnasium, plain, arguments.text("actions"))
    except TaskError as error:
        raise TaskError(f"task 'gymnasium': {name}: {error}") from None
    finally:
        plain.close()
    if not as_text:
        given["render_mode"] = "ansi"
    task = GymnasiumTask(
        name="gymnasium",
        label=label_without_address("gymnasium", arguments, name),
        seed=arguments.seed,
        chat=Chat(arguments.text("chat")),
        instructions=read_instructions(arguments),
        hint=actions.hint,
        make=lambda: gymnasium.make(name, disable_env_checker=True, **given),
        terms=Terms(
            as_text=as_text,
            actions=actions,
            ends=arguments.text("unreadable") == "end",
            last_only=arguments.text("reward") == "last",
            scale=arguments.number("scale"),
        ),
        version=f"{gymnasium.__version__} {spec.id} {spec.max_episode_steps}",
    )
    task.problem(0)  # so that errors appear now
    return task


def _import() -> Any:
    try:
        return importlib.import_module("gymnasium")
    except ImportError as error:
        raise TaskError(
            f"task 'gymnasium' needs Gymnasium, which cannot be imported here ({error}). Type: "
            f"{line_of_extra('environments')}"
        ) from error


def _spec(gymnasium: Any, name: str) -> Any:
    module, _, short = name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(short)
    except Exception as error:  # from gymnasium.error, or the module's own code
        known = suggestion(short, list(gymnasium.registry))
        raise TaskError(
            f"task 'gymnasium': there is no environment {name!r}{known}: {type(error).__name__}: {error}. If a module, "
            "installed or beside swarm.toml, registers it, name that first: gymnasium:MODULE:ENV_ID."
        ) from error


def _first(gymnasium: Any, name: str, given: Mapping[str, Any]) -> Any:
    try:
        return gymnasium.make(name, disable_env_checker=True, **given)
    except Exception as error:  # from gymnasium.error, or the environment's own code
        raise TaskError(
            f"task 'gymnasium': {name} cannot be made with {dict(given) or 'no options'}: {type(error).__name__}: "
            f"{error}. Correct the spec; all keys except {', '.join(DECLARED)} are passed to gymnasium.make."
        ) from error


def _as_text(gymnasium: Any, world: Any, observe: str) -> bool:
    is_text = isinstance(world.observation_space, gymnasium.spaces.Text)
    modes = tuple((world.metadata or {}).get("render_modes") or ())
    if observe in ("auto", "text") and is_text:
        return True
    if observe in ("auto", "ansi") and "ansi" in modes:
        return False
    raise TaskError(
        f"it cannot be read as text with observe={observe}. Its observations are {world.observation_space}, and it "
        f"renders as {', '.join(map(str, modes)) or 'nothing'}. Only a spaces.Text, or what "
        'render_mode="ansi" shows, can be read; for other spaces write an environment (docs/operate/write-a-task.md).'
    )


def _actions(gymnasium: Any, world: Any, words: str) -> Actions:
    space = world.action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        count, start = int(space.n), int(space.start)
        return words_of(words, count, start) if words else Numbers(count=count, start=start)
    if isinstance(space, gymnasium.spaces.Text):
        if words:
            raise TaskError(f"actions={words}: its actions are texts ({space}), which need no words. Leave it out.")
        return Text(space=space)
    raise TaskError(
        f"its actions are {space}. Only actions of spaces.Text and spaces.Discrete can be written as text; for other "
        "spaces write an environment (docs/operate/write-a-task.md)."
    )


def _value(text: str) -> Any:
    """Return a value for `gymnasium.make`: true, false, none, a number, or text."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            if math.isfinite(number := kind(text)):
                return number
    return text


GYMNASIUM = TaskKind(
    name="gymnasium",
    summary="turns: a Gymnasium environment read as text: gymnasium:FrozenLake-v1:actions=left|down|right|up",
    build=_build,
    argument="ENV_ID",
    options=(
        Option(key="observe", default="auto", help="what the policy reads", choices=("auto", "text", "ansi")),
        Option(key="actions", default="", help="words for the actions 0, 1 ..., divided by |; default: their numbers"),
        Option(
            key="unreadable",
            default="tell",
            help="after a turn without an action: tell the policy what it may say, or end the episode",
            choices=("tell", "end"),
        ),
        Option(key="reward", default="sum", help="sum or last of the steps' rewards", choices=("sum", "last")),
        Option(key="scale", default=1.0, help="rewards are divided by it", minimum=1e-6, maximum=1e9),
        Option(key="steps", default=0, help="maximum steps of an episode; 0: as registered", minimum=0, maximum=10**6),
        INSTRUCTIONS,
        CHAT,
    ),
    free_options=True,
)
