"""What is asked of an episode's environment, as a value: which problem, all that was said, what was answered to it.

What always holds: a question tells the whole episode, so any process that holds the task can answer it; digests stand
for the answers, since what the policy read is known elsewhere as tokens; two answers have the same digest only if they
are the same.
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
"""16 bytes in hexadecimal: nobody gains by finding two answers that share it."""


@dataclass(frozen=True, kw_only=True)
class EpisodeQuestion:
    """What is answered to the last of `said`, or with `wants_reward` what all of it is worth, in problem `place` of the
    task called `task`.

    `digests` of what was answered to all but the last of `said`. `finished`: the last ended by itself. `tool_format` in
    which the model writes calls, None where prompts are plain text: then words are words. `in_thinking`: each turn
    begins inside thinking that the chat template has opened.
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
            raise ValueError(f"{len(self.digests)} digests of what was answered to {len(self.said)} turns")

    @property
    def heard(self) -> tuple[str, ...]:
        """What the environment is told of it. Words that were cut off in the middle are not: half a call is none."""
        return self.said if self.finished or not self.wants_reward else self.said[:-1]

    @cached_property
    def key(self) -> str:
        """Names the question, but for whether it is about the answer or the reward."""
        return _key(self, len(self.said), self.digests)

    @cached_property
    def key_before(self) -> str:
        """Names the state of an environment that waits for the last of `said`."""
        return _key(self, len(self.said) - 1, self.digests)

    def key_after(self, digest: str) -> str:
        """Names the state of one that has answered so to all that was said."""
        return _key(self, len(self.said), (*self.digests, digest))


def _key(question: EpisodeQuestion, turns: int, digests: tuple[str, ...]) -> str:
    """Names what was said in the first `turns`, with these answers. Transcripts are long, and this is fast."""
    place = question.place
    told = hashlib.sha256(f"{place.index}/{place.held_out}/{turns}/{','.join(digests)}".encode())
    for text in (question.task, *question.said[:turns]):
        data = text.encode("utf-8", "surrogatepass")
        told.update(len(data).to_bytes(8))
        told.update(data)
    return told.hexdigest()[:DIGEST_CHARACTERS]


def digest_of_answer(answer: Answer | None) -> str:
    """The digest of an answer; "" of none. Raises TypeError or ValueError for what cannot be written as JSON."""
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
