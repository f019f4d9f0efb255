"""Whole episodes on one engine, for evaluation: ask, answer, ask again, until each is over.

What always holds: the same requests and the same version give the same episodes; all that go on are asked together, so
an episode of one turn costs what a completion does; what an environment takes its time for is whoever's who is asked,
as for rollouts that are judged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from learner.rollouts.environment import Answered, Ended, Reply, Said
from node.engine.interface import GenerationRequest, PolicyEngine

SEEDS_BETWEEN_TURNS = 1 << 48
"""From the seed of one turn to that of the next: far more than there are first ones."""


P = TypeVar("P")

EpisodeTurn = tuple[P, Said, int, tuple[str, ...]]
"""(problem, what was said up to now, tokens of the transcript with that, digests of what was answered before)."""


@dataclass(kw_only=True)
class _Episode(Generic[P]):
    """`request` asks for the next turn of `problem`; `said` are those before, and `digests` what was answered."""

    request: GenerationRequest
    problem: P
    said: list[tuple[int, ...]] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    end: Ended | None = None

    def question(self, tokens: tuple[int, ...]) -> EpisodeTurn[P]:
        """What to ask after the policy said that."""
        self.said.append(tokens)
        return self.problem, tuple(self.said), len(self.request.prompt) + len(tokens), tuple(self.digests)

    def hear(self, reply: Reply) -> None:
        """Either there is a next request now, or the end."""
        if isinstance(reply, Answered):
            prompt = (*self.request.prompt, *self.said[-1], *reply.tokens)
            self.digests.append(reply.digest)
            self.request = replace(self.request, prompt=prompt, seed=self.request.seed + SEEDS_BETWEEN_TURNS)
        else:
            self.end = reply


async def play(
    engine: PolicyEngine,
    starts: Sequence[tuple[GenerationRequest, P]],
    ask: Callable[[Sequence[EpisodeTurn[P]]], Awaitable[Sequence[Reply]]],
) -> list[Ended]:
    """Play an episode from each request, which asks for its first turn, with what is installed; return their ends.

    `ask` says what comes back in each problem to what was said, in a transcript of so many tokens, where what was
    answered before has these digests. Raises EngineError.
    """
    episodes = [_Episode(request=request, problem=problem) for request, problem in starts]
    while going := [episode for episode in episodes if episode.end is None]:
        completions = await engine.generate([episode.request for episode in going])
        questions = [one.question(completion.tokens) for one, completion in zip(going, completions, strict=True)]
        for episode, reply in zip(going, await ask(questions), strict=True):
            episode.hear(reply)
    return [episode.end for episode in episodes if episode.end is not None]
