"""What is asked of those who compute rewards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from learner.rollouts.environment import Environment, Question, Reply

Ask = Callable[[Sequence[Question]], Awaitable[Sequence[Reply]]]
"""What comes back to what was said, in order: asked of an environment, wherever that is."""


def asked_on_a_thread(environment: Environment) -> Ask:
    """Ask an environment in this process."""

    async def ask(questions: Sequence[Question]) -> Sequence[Reply]:
        return await trio.to_thread.run_sync(
            lambda: [environment(one.index, one.said, one.transcript) for one in questions]
        )

    return ask
