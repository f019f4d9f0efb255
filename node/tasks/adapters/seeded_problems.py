"""Problems of an environment that begins from a seed: what it says after `reset(seed)` is the prompt.

Invariants:
- A problem is a function of its side, the run's seed and the index. Held-out problems do not depend on the run's seed,
  and no problem depends on options that say how rewards are counted.
- Where an environment has many beginnings, a digest of the prompt decides on which side it lies, so the sides share no
  prompt. One with few beginnings (FrozenLake always starts on the same square) has them on both sides: then training
  and held-out episodes differ in their seeds alone.
- The same seed must begin the same way: `require_same` raises an error where it does not, since the episode would not
  follow from its prompt.
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
"""Beginnings that are tried for one problem: with one in 8 on the held-out side, 1 problem in 27 million finds none."""

LOOKED_AT = 16
"""Beginnings that are looked at when a task is opened, to find out whether they differ."""

MANY = 8
"""So many different ones among them are enough to hold some out."""

REMEMBERED = 256
"""Problems that a process remembers: an answer between two turns asks for its problem again."""

MAX_SEED = 2**31 - 1
"""Seeds are below it: NumPy and OpenEnv take those, as do programs with seeds of 32 bits."""

MAX_IDLE_TURNS = 3
"""Turns in a row that may pass without an action: a policy that never finds one would use up its whole budget."""

SEVERAL = 3
"""Problems of each side that the fingerprint is made of."""

MAX_INSTRUCTIONS = 100_000
"""Characters of a file of instructions; they stand in every prompt."""

INSTRUCTIONS = Option(key="instructions", default="", help="a text file that begins every prompt")


@dataclass(frozen=True, kw_only=True)
class SeededProblem(Problem):
    """`seed` is what the environment is reset with, and `opening` is what it says then."""

    seed: int
    opening: Answer


Begin = Callable[[int], Answer]
"""Return what the environment says after `reset(seed)`."""


@dataclass(frozen=True, kw_only=True)
class SeededTask(ABC):
    """A task whose problems are beginnings of an environment. `label` names what decides them, without addresses."""

    name: str
    label: str
    seed: int
    chat: Chat
    instructions: str
    version: str
    """What changes with the environment's own rules, as far as that can be told."""
    hint: str = ""
    """What ends a prompt of text where there are no instructions."""
    levels: int = 1

    @abstractmethod
    def beginnings(self) -> AbstractContextManager[Begin]:
        """Open an environment that is reset several times, and close it afterwards."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What the policy may call."""
        return ()

    @cached_property
    def fingerprint(self) -> str:
        """The options, the seed, the version and some problems: another environment is another task."""
        some = [(self.problem(index).prompt, self.held_out(index).prompt) for index in range(SEVERAL)]
        told = repr((self.version, self.tools, some)).encode("utf-8", "surrogatepass")
        return f"{self.label}/{self.seed}/{hashlib.sha256(told).hexdigest()[:16]}"

    def problem(self, index: int) -> SeededProblem:
        """The training problem of `index`."""
        return self._known(f"training/{self.seed}", index, False)

    def held_out(self, index: int) -> SeededProblem:
        """The held-out problem of `index`."""
        return self._known("held out", index, True)

    def require_same(self, problem: SeededProblem, opening: Answer) -> None:
        """Raise TaskError unless the environment has begun as the prompt says."""
        if opening != problem.opening:
            raise TaskError(
                f"task {self.name!r}: after a reset with seed {problem.seed} the environment said {_shown(opening)}, "
                f"and {_shown(problem.opening)} before. Let what is random in it follow from the seed of its reset."
            )

    @cached_property
    def is_split(self) -> bool:
        """Whether the environment has enough beginnings to hold some of them out."""
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
        """The first beginning on the wanted side; None where there is none, `held_out` None: any."""
        for attempt in range(MAX_DRAWS):
            seed = self._seed_of(side, index, attempt)
            opening = begin(seed)
            prompt = _prompt(self.instructions, opening, self.hint)
            if not prompt:
                raise TaskError(
                    f"task {self.name!r}: the environment says nothing after its reset, so there is no prompt. Write "
                    "one into a file, and name it in the spec: instructions=FILE."
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
    """The text of the file that the spec names; "" where it names none. Raises TaskError."""
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
    """The kind, its argument and its options but for `unless`, which say where something is and not what."""
    options = sorted((key, value) for key, value in arguments.options.items() if key not in (*unless, "instructions"))
    return ",".join([f"{name}:{argument}" if argument else name, *(f"{key}={value}" for key, value in options)])
