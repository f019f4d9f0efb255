"""Logged groups of completions as a stream beside the swarm's rollouts: off-policy, tagged, never leased.

A pure core. What always holds: each pass gives every group once, in an order of its own; the same stream with the same
`state()` goes on with the very same groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from learner.curriculum.epochs import PassCursor


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One completion: its token ids, at least one, what it was worth, and its logprobs if the log tells them. A log of
    many comes in arrays of 4 bytes a token."""

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
    """See the module's paragraph. `rollouts` is how many sequences a batch takes of it at least: whole groups.

    `fingerprint` changes whenever its groups do; `seed` orders the passes.
    """

    groups: Sequence[LoggedGroup]
    rollouts: int
    fingerprint: str
    seed: str
    _cursor: PassCursor = field(init=False)

    def __post_init__(self) -> None:
        self.rewind()

    def draw(self) -> list[LoggedGroup]:
        """The groups of the next batch."""
        drawn: list[LoggedGroup] = []
        while sum(len(group.completions) for group in drawn) < self.rollouts:
            drawn.append(self.groups[self._cursor.next_index() % len(self.groups)])
        return drawn

    def rewind(self) -> None:
        """Go back to the beginning."""
        self._cursor = PassCursor(size=len(self.groups), seed=self.seed)

    def state(self) -> dict[str, Any]:
        """All of it, for a checkpoint."""
        return {"fingerprint": self.fingerprint, "cursor": self._cursor.state()}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a state; one of other logs, or none, is the beginning of these."""
        self.rewind()
        if state is not None and state["fingerprint"] == self.fingerprint:
            self._cursor.restore(state["cursor"])
