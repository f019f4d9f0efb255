"""Whole episodes on one engine, for evaluation: ask, answer, ask again, until each is over.

What always holds: the same requests and the same version give the same episodes; all that go on are asked together, so
an episode of one turn costs what a completion does; what an environment takes its time for is whoever's who is asked,
as for rollouts that are judged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from learner.rollouts.environment import Answered, Reply, Said
from node.engine.interface import GenerationRequest, PolicyEngine

SEEDS_BETWEEN_TURNS = 1 << 48
"""From the seed of one turn to that of the next: far more than there are first ones."""


P = TypeVar("P")


@dataclass(kw_only=True)
class _Episode(Generic[P]):
    """`request` asks for the next turn of `problem`; `said` are those before."""

    request: GenerationRequest
    problem: P
    said: list[tuple[int, ...]] = field(default_factory=list)
    reward: float | None = None

    def question(self, tokens: tuple[int, ...]) -> tuple[P, Said, int]:
        """What to ask after the policy said that."""
        self.said.append(tokens)
        return self.problem, tuple(self.said), len(self.request.prompt) + len(tokens)

    def hear(self, reply: Reply) -> None:
        """Either there is a next request now, or a reward."""
        if isinstance(reply, Answered):
            prompt = (*self.request.prompt, *self.said[-1], *reply.tokens)
            self.request = replace(self.request, prompt=prompt, seed=self.request.seed + SEEDS_BETWEEN_TURNS)
        else:
            self.reward = reply.reward


async def play(
    engine: PolicyEngine,
    starts: Sequence[tuple[GenerationRequest, P]],
    ask: Callable[[Sequence[tuple[P, Said, int]]], Awaitable[Sequence[Reply]]],
) -> list[float]:
    """Play an episode from each request, which asks for its first turn, with what is installed; return the rewards.

    `ask` says what comes back in each problem to what was said, in a transcript of so many tokens. Raises EngineError.
    """
    episodes = [_Episode(request=request, problem=problem) for request, problem in starts]
    while going := [episode for episode in episodes if episode.reward is None]:
        completions = await engine.generate([episode.request for episode in going])
        questions = [one.question(completion.tokens) for one, completion in zip(going, completions, strict=True)]
        for episode, reply in zip(going, await ask(questions), strict=True):
            episode.hear(reply)
    return [episode.reward for episode in episodes if episode.reward is not None]
