"""Draws among tasks by weight, as even as draws can be.

A pure core. What always holds: after n draws each task was drawn within as many of its n-fold share as there are tasks,
from whatever point on one counts, so no task is starved and none comes in runs (smooth weighted round robin, as nginx
balances servers); no randomness, and `state()` is all there is: a restored one goes on with the very same sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Shares:
    """See the module's paragraph. `shares` are positive and sum to 1; weights may change between two runs."""

    shares: tuple[float, ...]
    credits: list[float] = field(default_factory=list)
    """What each is owed, in draws; they sum to zero."""

    @classmethod
    def of(cls, weights: Sequence[float]) -> Shares:
        """By these weights, which are positive."""
        total = sum(weights)
        return cls(shares=tuple(weight / total for weight in weights), credits=[0.0] * len(weights))

    def draw(self) -> int:
        """The number of the task that the next prompt is of."""
        owed = [credit + share for credit, share in zip(self.credits, self.shares, strict=True)]
        chosen = owed.index(max(owed))
        owed[chosen] -= 1.0
        self.credits = owed
        return chosen
