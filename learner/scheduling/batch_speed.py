"""Estimate how long a peer takes for a number of rollouts, from what its last leases took.

Pure. An engine that generates a batch at once takes as long for eight rollouts as for one; another takes eight times as
long. Which of them a peer has shows only when it was given both numbers.

A plan asks another question, how many admitted rollouts a busy second brings, and has its own estimate
(`learner.provisioning.estimation.peer_profile`). There, rejected rollouts count as time; here, a late lease is late
either way.

Invariants:

- For a number that was tried recently, the answer is the time that it took.
- For a smaller number that was not tried, the answer is in proportion, so that it will be tried.
- For a larger number it is in proportion too, which is the most that it can take.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

TRIES = 8
"""Values remembered for each size: enough that one odd value does not count, few enough to notice a throttled
machine."""

SIZES = 24
"""Powers of two of rollouts at a time that are told apart."""


@dataclass(kw_only=True, slots=True)
class Speed:
    """The speed of one peer. `prior` is what the peer's own benchmark promises, in rollouts per second."""

    prior: float = 0.0
    _tried: dict[int, deque[tuple[int, float]]] = field(default_factory=dict)
    _medians: dict[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the peer's speed."""
        return bool(self._medians) or self.prior > 0

    @property
    def rate(self) -> float:
        """Rollouts per second with the number at a time that suits the peer best; 0 while nothing is known."""
        return max((count / seconds for count, seconds in self._medians.values()), default=self.prior)

    def observe(self, rollouts: int, seconds: float) -> None:
        """Record that this many rollouts, given together, took this long."""
        size = min(rollouts.bit_length(), SIZES)
        tried = self._tried.setdefault(size, deque(maxlen=TRIES))
        tried.append((rollouts, max(seconds, 1e-3)))
        each = sorted(took / number for number, took in tried)
        mean = sum(number for number, _ in tried) / len(tried)
        self._medians[size] = mean, mean * each[len(each) // 2]

    def outlasts(self, rollouts: int, seconds: float) -> None:
        """Record that this many rollouts, given together, were not done after this long; the known time is right, or
        too short."""
        if seconds > self.seconds(rollouts):
            self.observe(rollouts, seconds)

    def seconds(self, rollouts: int) -> float:
        """Return how long this many rollouts usually take; 0 while nothing is known."""
        if not self._medians:
            return rollouts / self.prior if self.prior > 0 else 0.0
        size = min(rollouts.bit_length(), SIZES)
        nearest = min(self._medians, key=lambda known: (abs(known - size), known))
        count, seconds = self._medians[nearest]
        return seconds * rollouts / count

    def within(self, seconds: float, most: int, step: int) -> int:
        """Return how many rollouts, at most `most`, it makes in this time: whole groups of `step`, or an even share of
        one.

        Shares are even so that they add up to whole groups.
        """
        if not self.is_known or self.seconds(most) <= seconds:
            return most
        if seconds <= 0 or math.isnan(seconds):
            return 0
        groups = next((count for count in range(most - most % step, 0, -step) if self.seconds(count) <= seconds), 0)
        evens = range(min(step, most) // 2 * 2, 0, -2)
        return groups or next((count for count in evens if self.seconds(count) <= seconds), 0)
