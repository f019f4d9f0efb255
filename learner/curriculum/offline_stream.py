"""Give logged groups of completions as a stream beside the swarm's rollouts: off-policy, tagged, never leased.

A pure core.

Invariants:

- Each pass gives every group once, in its own order.
- The same stream, restored from the same `state()`, continues with exactly the same groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from learner.curriculum.epochs import PassCursor


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One completion: its token ids (at least one), its reward, and its log probabilities if the log has them. A long
    log has arrays of 4 bytes a token here."""

    tokens: Sequence[int]
    reward: float
    logprobs: Sequence[float] | None = None


@dataclass(frozen=True, kw_only=True)
class LoggedGroup:
    """The completions of one prompt."""

    prompt: Sequence[int]
    completions: tuple[Logged, ...]


@dataclass(kw_only=True)
class OfflineStream:
    """The stream of logged groups.

    `rollouts` is the least number of sequences that a batch takes from it, in whole groups. `fingerprint` changes
    whenever the groups do. `seed` determines the order of the passes.
    """

    groups: Sequence[LoggedGroup]
    rollouts: int
    fingerprint: str
    seed: str
    _cursor: PassCursor = field(init=False)

    def __post_init__(self) -> None:
        self.rewind()

    def draw(self) -> list[LoggedGroup]:
        """Return the groups of the next batch."""
        drawn: list[LoggedGroup] = []
        while sum(len(group.completions) for group in drawn) < self.rollouts:
            drawn.append(self.groups[self._cursor.next_index() % len(self.groups)])
        return drawn

    def rewind(self) -> None:
        """Go back to the beginning."""
        self._cursor = PassCursor(size=len(self.groups), seed=self.seed)

    def state(self) -> dict[str, Any]:
        """Return the whole state, for a checkpoint."""
        return {"fingerprint": self.fingerprint, "cursor": self._cursor.state()}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continue from a state. Without one, or with one of other logs, start from the beginning."""
        self.rewind()
        if state is not None and state["fingerprint"] == self.fingerprint:
            self._cursor.restore(state["cursor"])
