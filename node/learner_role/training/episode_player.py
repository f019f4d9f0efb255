"""Play whole episodes on one engine, for evaluation: generate a turn, get the answer, until each episode is over.

Environments are asked through `ask`, as for delivered rollouts, and may take their time there.

Invariants:

- The same requests and the same version give the same episodes.
- All unfinished episodes are generated in one batch, so an episode of one turn costs as much as a completion.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from learner.rollouts.environment import Answered, Ended, Reply, Said
from node.engine.interface import GenerationRequest, PolicyEngine

SEEDS_BETWEEN_TURNS = 1 << 48
"""Difference between the seeds of two turns: far larger than the number of first seeds."""


P = TypeVar("P")

EpisodeTurn = tuple[P, Said, int, tuple[str, ...]]
"""(problem, the policy's turns, tokens of the transcript with them, digests of the answers before)."""


@dataclass(kw_only=True)
class _Episode(Generic[P]):
    """One episode: `request` is for the next turn of `problem`, `said` are the turns before.

    `digests` are those of the environment's answers.
    """

    request: GenerationRequest
    problem: P
    said: list[tuple[int, ...]] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    end: Ended | None = None

    def question(self, tokens: tuple[int, ...]) -> EpisodeTurn[P]:
        """Add the policy's turn `tokens`, and return the question about it."""
        self.said.append(tokens)
        return self.problem, tuple(self.said), len(self.request.prompt) + len(tokens), tuple(self.digests)

    def hear(self, reply: Reply) -> None:
        """Take in the reply, which leads to the next request or to the end."""
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
    """Play an episode from each request for a first turn, with the installed version, and return their ends.

    `ask` returns the reply to each question. Raises EngineError.
    """
    episodes = [_Episode(request=request, problem=problem) for request, problem in starts]
    while going := [episode for episode in episodes if episode.end is None]:
        completions = await engine.generate([episode.request for episode in going])
        questions = [one.question(completion.tokens) for one, completion in zip(going, completions, strict=True)]
        for episode, reply in zip(going, await ask(questions), strict=True):
            episode.hear(reply)
    return [episode.end for episode in episodes if episode.end is not None]
