"""Held-out questions, and who is asked for the rewards of their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from learner.rollouts.environment import Ended, Reply, Said


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """One held-out prompt: token ids, the reward of a completion's token ids, and the name of its task.

    `reply`: what comes back to what was said in a task of several turns; None: the completion is all. `index`: which of
    its task's held-out problems it is.
    """

    prompt: tuple[int, ...]
    reward: Callable[[tuple[int, ...]], float]
    task: str = ""
    reply: Callable[..., Reply] | None = None
    index: int = 0

    def answer(self, said: Said, transcript: int, digests: tuple[str, ...] = ()) -> Reply:
        """The same for any task. `digests` of what was answered before, see `learner.rollouts.environment.Answered`."""
        if self.reply is None:
            return Ended(reward=self.reward(said[-1]))
        return self.reply(said, transcript, digests=digests) if any(digests) else self.reply(said, transcript)


HeldOutQuestion = tuple[HeldOut, Said, int, tuple[str, ...]]
"""(problem, what was said, tokens of the transcript, digests): the arguments of `HeldOut.answer`."""


AskHeldOut = Callable[[Sequence[HeldOutQuestion]], Awaitable[Sequence[Reply]]]


async def answer_on_a_thread(questions: Sequence[HeldOutQuestion]) -> Sequence[Reply]:
    """Each problem's own answer, in this process."""
    return await trio.to_thread.run_sync(
        lambda: [held.answer(said, transcript, digests) for held, said, transcript, digests in questions]
    )
