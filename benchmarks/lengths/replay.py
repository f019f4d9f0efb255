"""Replay the prompts and lengths of a recorded run in the simulated swarm (`learner.simulation.world`).

Prompts come in the order of the recording, from the beginning again after its last. A group has its recorded lengths,
whichever node generates it, and in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, cycle, islice

from benchmarks.lengths.recording import RecordedGroup, Recording
from learner.rollouts.admission import GrantedLease
from learner.rollouts.open_leases import Prompt


@dataclass(kw_only=True)
class Replay:
    """One walk through `recording`. Unless problems `repeat`, each is treated as new, as in a task without end: its
    length can then be predicted only from the size of its prompt."""

    recording: Recording
    repeat: bool = True
    usual: float = field(init=False)
    """Mean tokens of a completion."""

    def __post_init__(self) -> None:
        self.usual = self.recording.mean
        self._numbers = count()

    def next_prompt(self) -> Prompt:
        """Return the next prompt; of its tokens only the count has a meaning."""
        index = next(self._numbers)
        return Prompt(task="recorded", index=index, tokens=(1,) * self._group(index).prompt_tokens)

    def alike(self, index: int) -> tuple[int, int]:
        """Return the problem of that index; all are of one kind."""
        return (self._group(index).problem if self.repeat else index), 0

    def lengths(self, granted: GrantedLease) -> Sequence[int]:
        """Return the tokens of each completion of a lease."""
        return list(islice(cycle(self._group(granted.prompt_index).lengths), len(granted.lease.seeds)))

    def longest(self, index: int) -> int:
        """Return the tokens of the longest completion of that index's group."""
        return max(self._group(index).lengths)

    def _group(self, index: int) -> RecordedGroup:
        return self.recording.groups[index % len(self.recording.groups)]
