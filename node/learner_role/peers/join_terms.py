"""Tell nodes, before they join, the learner's tasks, the name of its model, and what it asks of a node.

Invariants:

- A node without the join token learns only that the token is wrong.
- A task's file, options and answers stay with the learner. Only its name and kind are told.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path

from node.config.swarm_config import SwarmConfig
from node.learner_role.shared.context import LearnerContext
from node.tasks.registry import find_kind
from protocol.core.limits import MAX_NAME_CHARS, MAX_REASON_CHARS
from protocol.scores import TEACHER
from protocol.versions.exchange import NotTold, TaskTerms, TellTerms

WRONG_TOKEN = "The join token is missing or wrong. Ask the operator for a new invite."


def is_token(given: str, wanted: str) -> bool:
    """Return whether the tokens are equal. The time that this takes reveals nothing."""
    return hmac.compare_digest(given.encode(), wanted.encode())


@dataclass(frozen=True, kw_only=True)
class LearnerTerms:
    """Answers `AskTerms`. `max_turns` is 1 for tasks without turns. `teacher_digest` is empty if no nodes score."""

    context: LearnerContext
    config: SwarmConfig
    max_turns: int
    teacher_digest: bytes = b""

    def answer(self, token: str) -> TellTerms | NotTold:
        """Return the terms, if `token` is the join token."""
        if not is_token(token, self.config.network.join_token):
            return NotTold(reason=WRONG_TOKEN)
        learn = self.config.learn
        return TellTerms(
            certificate=self.context.identity.certificate,
            model=Path(self.config.model.directory).name[:MAX_NAME_CHARS],
            tasks=tasks_of(self.config),
            step=self.context.state.capacity.chain.head.version,
            steps=learn.steps,
            staleness=self.context.state.capacity.window,
            group_size=learn.group_size,
            max_new_tokens=learn.max_new_tokens,
            max_turns=self.max_turns,
            now_ms=self.context.now_ms(),
            ext=self.config.engines.ext | ({TEACHER: self.teacher_digest} if self.teacher_digest else {}),
        )


def tasks_of(config: SwarmConfig) -> list[TaskTerms]:
    """Return the tasks whose prompts are leased, with their shares; empty if nothing is leased."""
    if not config.swarm_rollouts:
        return []
    whole = sum(task.weight for task in config.task.tasks)
    return [
        TaskTerms(
            name=task.title,
            share=min(1.0, task.weight / whole),
            about=find_kind(task.spec.partition(":")[0]).summary[:MAX_REASON_CHARS],
        )
        for task in config.task.tasks
    ]
