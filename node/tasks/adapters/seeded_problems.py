"""Make problems from an environment that begins from a seed: what it says after `reset(seed)` is the prompt.

Invariants:

- A problem is a function of its side (training or held out), the run's seed and the index. Held-out problems do not
  depend on the run's seed. No problem depends on options that say how rewards are counted.
- If an environment has many beginnings, a digest of the prompt decides which side each one belongs to, so the sides
  share no prompt. If it has few (FrozenLake always starts on the same square), they are on both sides; training and
  held-out episodes then differ only in their seeds.
- The same seed must begin the same way. `require_same` raises an error otherwise, because the episode would not follow
  from its prompt.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from node.tasks.api.interface import Answer, Chat, ChatMessage, Option, Problem, TaskArguments, TaskError, Tool
from node.tasks.kinds.generated import Dice, is_held_out

MAX_DRAWS = 128
"""Maximum beginnings to try for one problem. With 1 in 8 on the held-out side, 1 problem in 27 million finds none."""

LOOKED_AT = 16
"""Beginnings to look at when a task is opened, to find out whether they differ."""

MANY = 8
"""Number of different ones among them that is enough to hold some out."""

REMEMBERED = 256
"""Problems that a process remembers, because each answer between two turns asks for its problem again."""

MAX_SEED = 2**31 - 1
"""Seeds are below it. NumPy, OpenEnv and programs with 32-bit seeds accept these."""

MAX_IDLE_TURNS = 3
"""Maximum turns in a row without an action. A policy that never finds one would use up its whole budget."""

SEVERAL = 3
"""Problems of each side that go into the fingerprint."""

MAX_INSTRUCTIONS = 100_000
"""Maximum characters of a file of instructions, which is part of every prompt."""

INSTRUCTIONS = Option(key="instructions", default="", help="a text file that begins every prompt")


@dataclass(frozen=True, kw_only=True)
class SeededProblem(Problem):
    """`seed`: the environment is reset with it. `opening`: what the environment says after that."""

    seed: int
    opening: Answer


Begin = Callable[[int], Answer]
"""Resets the environment with a seed, and returns what it says then."""


@dataclass(frozen=True, kw_only=True)
class SeededTask(ABC):
    """A task whose problems are beginnings of an environment. `label` names what decides them, without addresses."""

    name: str
    label: str
    seed: int
    chat: Chat
    instructions: str
    version: str
    """A text that changes with the environment's own rules, as far as these are known."""
    hint: str = ""
    """The end of a prompt of text, if there are no instructions."""
    levels: int = 1

    @abstractmethod
    def beginnings(self) -> AbstractContextManager[Begin]:
        """Open an environment that is reset several times, and close it afterwards."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the policy may call."""
        return ()

    @cached_property
    def fingerprint(self) -> str:
        """The options, the seed, the version and some problems, so that another environment is another task."""
        some = [(self.problem(index).prompt, self.held_out(index).prompt) for index in range(SEVERAL)]
        told = repr((self.version, self.tools, some)).encode("utf-8", "surrogatepass")
        return f"{self.label}/{self.seed}/{hashlib.sha256(told).hexdigest()[:16]}"

    def problem(self, index: int) -> SeededProblem:
        """Return the training problem of `index`."""
        return self._known(f"training/{self.seed}", index, False)

    def held_out(self, index: int) -> SeededProblem:
        """Return the held-out problem of `index`."""
        return self._known("held out", index, True)

    def require_same(self, problem: SeededProblem, opening: Answer) -> None:
        """Raise TaskError unless the environment has begun as the prompt says."""
        if opening != problem.opening:
            raise TaskError(
                f"task {self.name!r}: after a reset with seed {problem.seed} the environment said {_shown(opening)}, "
                f"but before it said {_shown(problem.opening)}. Derive everything random in it from that seed."
            )

    @cached_property
    def is_split(self) -> bool:
        """Whether the environment has enough different beginnings to hold some of them out."""
        with self.beginnings() as begin:
            seen = {repr(begin(self._seed_of("look", 0, attempt))) for attempt in range(LOOKED_AT)}
            if len(seen) < MANY:
                return False
            sides = [self._drawn(begin, "held out", 0, True), self._drawn(begin, f"training/{self.seed}", 0, False)]
            return all(found is not None for found in sides)

    @cached_property
    def _known(self) -> Callable[[str, int, bool], SeededProblem]:
        return lru_cache(maxsize=REMEMBERED)(self._draw)

    def _draw(self, side: str, index: int, held_out: bool) -> SeededProblem:
        wanted = held_out if self.is_split else None
        with self.beginnings() as begin:
            if (found := self._drawn(begin, side, index, wanted)) is not None:
                return found
        raise TaskError(
            f"task {self.name!r}: {MAX_DRAWS} beginnings were tried for index {index}, and all belong to the other "
            "side. The environment has too few of them; lower [task] held_out."
        )

    def _drawn(self, begin: Begin, side: str, index: int, held_out: bool | None) -> SeededProblem | None:
        """Return the first beginning on the wanted side (`held_out` None: on any side), or None if none is found."""
        for attempt in range(MAX_DRAWS):
            seed = self._seed_of(side, index, attempt)
            opening = begin(seed)
            prompt = _prompt(self.instructions, opening, self.hint)
            if not prompt:
                raise TaskError(
                    f"task {self.name!r}: the environment says nothing after its reset, so there is no prompt. Write "
                    "one into a file, and name the file in the spec: instructions=FILE."
                )
            if held_out is None or is_held_out(repr(prompt)) == held_out:
                return SeededProblem(prompt=prompt, chat=self.chat, tools=self.tools, seed=seed, opening=opening)
        return None

    def _seed_of(self, side: str, index: int, attempt: int) -> int:
        return Dice(self.name, side, index, attempt).below(MAX_SEED)


def _prompt(instructions: str, opening: Answer, hint: str) -> Answer:
    if isinstance(opening, str):
        if instructions or not (opening and hint):
            return "\n\n".join(part for part in (instructions, opening) if part)
        return f"{opening.rstrip()}\n{hint}\n"
    return (ChatMessage(role="system", content=instructions), *opening) if instructions else opening


def _shown(answer: Answer) -> str:
    text = answer if isinstance(answer, str) else " ".join(message.content for message in answer)
    return repr(text if len(text) <= 80 else f"{text[:80]}...")


def read_instructions(arguments: TaskArguments) -> str:
    """Return the text of the file that the spec names, or "" if it names none. Raises TaskError."""
    if not (named := arguments.text("instructions")):
        return ""
    path = arguments.directory / Path(named).expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: cannot be read as instructions: {error}. Name a text file in UTF-8.") from error
    if not 0 < len(text) <= MAX_INSTRUCTIONS:
        raise TaskError(f"{path}: has {len(text):,} characters; instructions have 1 to {MAX_INSTRUCTIONS:,}.")
    return text


def label_without_address(name: str, arguments: TaskArguments, argument: str, *unless: str) -> str:
    """Return the kind, its argument and its options, except `unless`: those say where something is and not what."""
    options = sorted((key, value) for key, value in arguments.options.items() if key not in (*unless, "instructions"))
    return ",".join([f"{name}:{argument}" if argument else name, *(f"{key}={value}" for key, value in options)])
