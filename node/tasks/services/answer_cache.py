"""Answers that were given before, the one that was not asked for longest forgotten first.

A pure core. What always holds: at most `entries` answers and `size` bytes of them are remembered; a question is known
by its digest, so its text is not kept. Only answers are remembered: who could not say may be asked again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from node.tasks.services.terms import Worth

MAX_BYTES = 64 << 20
"""Of one service's answers in one process: a hundred for each of 10,000 entries, and room for names."""

ENTRY_BYTES = 200
"""What a digest, a number and their places in a dictionary take; each name of several takes as much again."""


@dataclass(kw_only=True)
class AnswerCache:
    """See the module's paragraph."""

    entries: int
    size: int = MAX_BYTES
    _answers: OrderedDict[bytes, Worth] = field(default_factory=OrderedDict)
    _held: int = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, digest: bytes) -> Worth | None:
        """The answer; None where it is not known."""
        if (answer := self._answers.get(digest)) is not None:
            self._answers.move_to_end(digest)
        return answer

    def put(self, digest: bytes, answer: Worth) -> None:
        """Remember it, and forget others until there is room."""
        if (before := self._answers.pop(digest, None)) is not None:
            self._held -= _size(before)
        self._answers[digest] = answer
        self._held += _size(answer)
        while len(self._answers) > self.entries or self._held > self.size:
            _, oldest = self._answers.popitem(last=False)
            self._held -= _size(oldest)


def _size(answer: Worth) -> int:
    names = sum(ENTRY_BYTES + len(name) for name in answer) if isinstance(answer, Mapping) else 0
    return ENTRY_BYTES + names
