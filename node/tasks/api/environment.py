"""An environment with a state of its own, which is alive in a verifier's process while an episode goes on.

What always holds: an environment is made anew for an episode, from its problem and a seed that is the same for that
problem in every process; `step` is called with what the policy said, turn by turn, then `reward` once, then `close`
once, and never two of them at a time; whatever is lost, another is made and told the same, and the episode goes on only
if it answers the same (docs/tasks.md, "Environments").

Methods may be `async`: they run on asyncio, since the clients, browsers and test servers that environments are made of
are written for it. Plain ones run on threads, several environments at a time, perhaps another thread for each call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from node.tasks.api.interface import Answer, Problem, Reward, Spoken, Tool

MAX_ANSWER_CHARACTERS = 1_000_000
"""Of one answer: eight for each token that the longest episode has. What is longer is taken for a mistake."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the policy reads next: text, or messages. `over`: nothing, since the episode has ended.

    An environment may return text or messages in its place, and None where the episode is over.
    """

    answer: Answer | None = None
    over: bool = False


Observed = Observation | Answer | None
"""What `step` returns."""


@runtime_checkable
class Environment(Protocol):
    """One episode's world; see the module's paragraph."""

    @property
    def tools(self) -> Sequence[Tool]:
        """What may be called in it; nothing where the policy only speaks. An attribute will do, and may be missing."""

    def step(self, spoken: Spoken) -> Observed | Awaitable[Observed]:
        """What comes back to what the policy said: its words and its calls, as its family writes them."""

    def reward(self) -> Reward | Awaitable[Reward]:
        """What the episode is worth. Asked once, at its end, also where the operator's limits ended it: then without a
        last turn that was cut off in the middle."""

    def close(self) -> Awaitable[None] | None:
        """Let go of whatever it holds. May be missing. Not called where its process ends."""


@runtime_checkable
class EnvironmentTask(Protocol):
    """A task of several turns whose episodes have a state. It has `environment` in place of `reward` and `answer_turn`,
    and all else that a `Task` has."""

    @property
    def name(self) -> str:
        """The kind's name, as leases and reports show it."""

    @property
    def levels(self) -> int:
        """How many difficulties there are, at least 1; 0 is the easiest."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever an index may mean another problem, or another environment."""

    def problem(self, index: int) -> Problem:
        """The training problem of `index` >= 0: its prompt is what the policy reads first."""

    def held_out(self, index: int) -> Problem:
        """The held-out problem of `index` >= 0."""

    def environment(self, problem: Problem, seed: int) -> Environment | Awaitable[Environment]:
        """A new environment for `problem`. What is random in it follows from `seed` alone."""
