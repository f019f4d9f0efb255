"""The times of a swarm's clockwork, and what T_bcast is the time until.

What always holds: times are seconds, finite, and in their range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

QUORUM = 1 / 1.1
"""T_bcast is the time until so large a share of the active peers have installed a version (ECHO-2, section 4.3): with a
tenth more machines than it takes, as the paper has, these are enough."""


@dataclass(frozen=True, kw_only=True)
class Timings:
    """What the clockwork of a swarm was measured, or is assumed, to take.

    Args:
        train_s: T_train, one training step.
        rollouts: R, taken by one training step.
        broadcast_s: T_bcast, from the end of a step until QUORUM of the active peers have its version installed.
        generation_s: T_gen, from the start of a rollout until it is admitted; the 95th percentile.

    Raises ValueError for what is not a finite number, or is out of range.
    """

    train_s: float
    rollouts: int
    broadcast_s: float
    generation_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("T_train", self.train_s), ("R", self.rollouts)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} = {value} is not a positive number")
        for name, value in (("T_bcast", self.broadcast_s), ("T_gen", self.generation_s)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} = {value} is not zero or a positive number")

    @property
    def delay_s(self) -> float:
        """T_bcast + T_gen: from a version's publication until its first rollouts are admitted."""
        return self.broadcast_s + self.generation_s
