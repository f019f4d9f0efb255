"""Whole episodes on one engine, for evaluation: ask, answer, ask again, until each is over.

What always holds: the same requests and the same version give the same episodes; all that go on are asked together, so
an episode of one turn costs what a completion does; what an environment takes its time for is done on a worker thread,
as for rollouts that are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import trio

from learner.environment import Answered, Reply, Said
from node.engine.port import Generation, GenerationRequest, PolicyEngine

SEEDS_BETWEEN_TURNS = 1 << 48
"""From the seed of one turn to that of the next: far more than there are first ones."""


@dataclass(kw_only=True)
class _Episode:
    """`request` asks for the next turn; `said` are those before."""

    request: GenerationRequest
    reply: Callable[[Said, int], Reply]
    said: list[tuple[int, ...]] = field(default_factory=list)
    reward: float | None = None

    def hear(self, tokens: tuple[int, ...]) -> None:
        """The policy said that; either there is a next request now, or a reward."""
        self.said.append(tokens)
        transcript = (*self.request.prompt, *tokens)
        reply = self.reply(tuple(self.said), len(transcript))
        if isinstance(reply, Answered):
            seed = self.request.seed + SEEDS_BETWEEN_TURNS
            self.request = replace(self.request, prompt=(*transcript, *reply.tokens), seed=seed)
        else:
            self.reward = reply.reward


async def play(
    engine: PolicyEngine, starts: Sequence[tuple[GenerationRequest, Callable[[Said, int], Reply]]]
) -> list[float]:
    """Play an episode from each request, which asks for its first turn, with what is installed; return the rewards.

    The function beside it says what comes back to what was said, in a transcript of so many tokens. Raises EngineError.
    """
    episodes = [_Episode(request=request, reply=reply) for request, reply in starts]
    while going := [episode for episode in episodes if episode.reward is None]:
        completions = await engine.generate([episode.request for episode in going])
        await trio.to_thread.run_sync(_hear_all, going, completions)
    return [episode.reward for episode in episodes if episode.reward is not None]


def _hear_all(episodes: Sequence[_Episode], completions: Sequence[Generation]) -> None:
    for episode, completion in zip(episodes, completions, strict=True):
        episode.hear(completion.tokens)
