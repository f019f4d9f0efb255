"""Define environments: objects that keep the state of one episode while it runs.

Use one where the state of an episode cannot be computed from the policy's replies, for example a shell, a browser or a
game. It lives in a verifier, a child process on the learner's side (docs/operate/write-a-task.md, "Environments").

Invariants:

- Each episode has an environment of its own, made from its problem and a seed. The seed of a problem is the same in
  every process.
- `step` is called once for each turn, in order, then `reward` once, then `close` once. Calls of one environment never
  overlap.
- If an environment is lost, a new one is made and receives the same turns again. The episode goes on only if the new
  one gives the same answers.

Methods may be `async`: they run on asyncio, because most clients, browsers and test servers are written for it. Plain
methods run on threads, several environments at a time, perhaps each call on another thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from node.tasks.api.interface import Answer, Problem, Reward, Spoken, Tool

MAX_ANSWER_CHARACTERS = 1_000_000
"""Maximum characters of one answer: eight for each token of the longest episode. A longer answer is a mistake."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The environment's answer to a turn. `answer`: text or messages for the policy to read. `over`: the episode has
    ended, and there is no answer.

    `step` may also return the text or messages themselves, or None at the end of the episode.
    """

    answer: Answer | None = None
    over: bool = False


Observed = Observation | Answer | None
"""The return type of `step`."""


@runtime_checkable
class Environment(Protocol):
    """The state of one episode. Its methods are called by the verifier, turn by turn."""

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that may be called here; empty if the policy only speaks. May be an attribute, or missing."""

    def step(self, spoken: Spoken) -> Observed | Awaitable[Observed]:
        """Carry out what the policy said, its words and its tool calls, and return what it reads next."""

    def reward(self) -> Reward | Awaitable[Reward]:
        """Return the reward of the episode. Called once, at its end, also when the operator's limits ended the episode.
        A last turn that was cut off by those limits is not passed to `step`."""

    def close(self) -> Awaitable[None] | None:
        """Release what the environment holds. May be missing. It is not called if the process ends first."""


@runtime_checkable
class EnvironmentTask(Protocol):
    """A task of several turns whose episodes have a state.

    It has `environment` instead of `reward` and `answer_turn`, and all other attributes of a `Task`.
    """

    @property
    def name(self) -> str:
        """The name of the kind of task, which leases and reports show."""

    @property
    def levels(self) -> int:
        """Number of difficulties, at least 1. The easiest is 0."""

    @property
    def fingerprint(self) -> str:
        """A text that changes whenever an index may name another problem or another environment."""

    def problem(self, index: int) -> Problem:
        """Return the training problem of `index` >= 0. Its prompt is what the policy reads first."""

    def held_out(self, index: int) -> Problem:
        """Return the held-out problem of `index` >= 0."""

    def environment(self, problem: Problem, seed: int) -> Environment | Awaitable[Environment]:
        """Return a new environment for `problem`. Everything random in it must follow from `seed`."""
