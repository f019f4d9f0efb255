"""Remember earlier answers, and forget the least recently used ones first.

A pure core.

Invariants:

- At most `entries` answers of at most `size` bytes are remembered.
- A question is known by its digest, so its text is not kept.
- Only answers are remembered. A question without an answer may be asked again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from node.tasks.services.terms import ServiceReward

MAX_BYTES = 64 << 20
"""Maximum bytes of one service's answers in one process. 10,000 plain answers take a thirtieth of it."""

ENTRY_BYTES = 200
"""Bytes of a digest, a number and their places in a dictionary. Each further name takes as much again."""


@dataclass(kw_only=True)
class AnswerCache:
    """The answers of one service, by the digest of the question."""

    entries: int
    size: int = MAX_BYTES
    _answers: OrderedDict[bytes, ServiceReward] = field(default_factory=OrderedDict)
    _held: int = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, digest: bytes) -> ServiceReward | None:
        """Return the answer, or None if it is not known."""
        if (answer := self._answers.get(digest)) is not None:
            self._answers.move_to_end(digest)
        return answer

    def put(self, digest: bytes, answer: ServiceReward) -> None:
        """Remember an answer, and forget others until there is room."""
        if (before := self._answers.pop(digest, None)) is not None:
            self._held -= _size(before)
        self._answers[digest] = answer
        self._held += _size(answer)
        while len(self._answers) > self.entries or self._held > self.size:
            _, oldest = self._answers.popitem(last=False)
            self._held -= _size(oldest)


def _size(answer: ServiceReward) -> int:
    names = sum(ENTRY_BYTES + len(name) for name in answer) if isinstance(answer, Mapping) else 0
    return ENTRY_BYTES + names
