"""Define a held-out prompt, and the question what the reward of its completion is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from learner.rollouts.environment import Ended, Reply, Said


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """One held-out prompt of the task called `task`, in token ids. `index`: its number among the task's held-out ones.

    `reward`: computes the reward of a completion's token ids. `reply`: computes the task's answer in an episode of
    several turns; None for a task of one turn.
    """

    prompt: tuple[int, ...]
    reward: Callable[[tuple[int, ...]], float]
    task: str = ""
    reply: Callable[..., Reply] | None = None
    index: int = 0

    def answer(self, said: Said, transcript: int, digests: tuple[str, ...] = ()) -> Reply:
        """Return the reply to what was said, for any task. `digests` are those of the earlier replies, see
        `learner.rollouts.environment.Answered`."""
        if self.reply is None:
            return Ended(reward=self.reward(said[-1]))
        return self.reply(said, transcript, digests=digests) if any(digests) else self.reply(said, transcript)


HeldOutQuestion = tuple[HeldOut, Said, int, tuple[str, ...]]
"""(problem, what was said, tokens of the transcript, digests of earlier replies): the arguments of `HeldOut.answer`."""


AskHeldOut = Callable[[Sequence[HeldOutQuestion]], Awaitable[Sequence[Reply]]]


async def answer_on_a_thread(questions: Sequence[HeldOutQuestion]) -> Sequence[Reply]:
    """Return the replies to `questions`, computed on a thread of this process."""
    return await trio.to_thread.run_sync(
        lambda: [held.answer(said, transcript, digests) for held, said, transcript, digests in questions]
    )
