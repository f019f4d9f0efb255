"""Define a question to an episode's environment: which problem, what was said, what was answered so far.

Invariants:

- A question contains the whole episode, so any process that has the task can answer it.
- Digests stand for the answers, because what the policy read is known elsewhere only as tokens.
- Two answers have the same digest only if they are equal.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

from node.tasks.api.interface import Answer
from node.tasks.gate import Place
from node.tasks.tools.formats import ToolFormat

DIGEST_CHARACTERS = 32
"""16 bytes in hexadecimal. An attacker would gain nothing from two answers with the same digest."""


@dataclass(frozen=True, kw_only=True)
class EpisodeQuestion:
    """A question about problem `place` of the task called `task`: the answer to the last turn in `said`, or with
    `wants_reward` the reward of the episode.

    `digests`: of the answers to all turns but the last. `finished`: the last turn ended by itself. `tool_format`: how
    the model writes tool calls; None if prompts are plain text, in which there are no calls. `in_thinking`: each turn
    begins inside a <think> that the chat template has opened.
    """

    task: str
    place: Place
    said: tuple[str, ...]
    digests: tuple[str, ...]
    finished: bool
    wants_reward: bool
    tool_format: ToolFormat | None = None
    in_thinking: bool = False

    def __post_init__(self) -> None:
        if not self.said or len(self.digests) != len(self.said) - 1:
            raise ValueError(f"there are {len(self.digests)} digests of earlier answers for {len(self.said)} turns")

    @property
    def heard(self) -> tuple[str, ...]:
        """The turns that the environment hears. A last turn that was cut off is left out: it may end in half a call."""
        return self.said if self.finished or not self.wants_reward else self.said[:-1]

    @cached_property
    def key(self) -> str:
        """A text that identifies the episode so far. It does not say whether the answer or the reward is asked for."""
        return _key(self, len(self.said), self.digests)

    @cached_property
    def key_before(self) -> str:
        """A text that identifies the state of an environment before the last turn in `said`."""
        return _key(self, len(self.said) - 1, self.digests)

    def key_after(self, digest: str) -> str:
        """Return the text that identifies the state of an environment after its answer to the last turn in `said`."""
        return _key(self, len(self.said), (*self.digests, digest))


def _key(question: EpisodeQuestion, turns: int, digests: tuple[str, ...]) -> str:
    """Return a text that identifies the first `turns` with these answers. It is fast, as transcripts may be long."""
    place = question.place
    told = hashlib.sha256(f"{place.index}/{place.held_out}/{turns}/{','.join(digests)}".encode())
    for text in (question.task, *question.said[:turns]):
        data = text.encode("utf-8", "surrogatepass")
        told.update(len(data).to_bytes(8))
        told.update(data)
    return told.hexdigest()[:DIGEST_CHARACTERS]


def digest_of_answer(answer: Answer | None) -> str:
    """Return the digest of an answer, "" for None. Raises TypeError or ValueError if JSON cannot write it."""
    if answer is None:
        return ""
    told = (
        answer
        if isinstance(answer, str)
        else [
            [
                message.role,
                message.content,
                message.name,
                message.tool_call_id,
                [[call.id, call.name, dict(call.arguments)] for call in message.tool_calls],
            ]
            for message in answer
        ]
    )
    canonical = json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_CHARACTERS]
