"""How long a peer takes for how many rollouts: what its last leases took, by their number.

Pure. An engine that generates a batch at once takes as long for eight rollouts as for one; another takes eight times as
long: which of them a peer has shows only when it was given both. What always holds: for a number that was tried of late
the answer is what that took; for a smaller one, which was not, it is in proportion, so that it will be tried; for a
larger one it is in proportion too, which is the most that it can take.

A plan asks another question, how many admitted rollouts a busy second is worth, and has its own figure
(`learner.provisioning.estimation.peer_profile`): there what was refused counts as time, here a lease that is late is
late either way.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

TRIES = 8
"""Values remembered for each size: old enough for one odd one not to count, young enough for a throttled machine."""

SIZES = 24
"""Powers of two of rollouts at a time that are told apart."""


@dataclass(kw_only=True, slots=True)
class Speed:
    """See the module's paragraph. `prior` is what the peer's own benchmark promises, in rollouts per second."""

    prior: float = 0.0
    _tried: dict[int, deque[tuple[int, float]]] = field(default_factory=dict)
    _medians: dict[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether there is anything to go by."""
        return bool(self._medians) or self.prior > 0

    @property
    def rate(self) -> float:
        """Rollouts per second with as many at a time as suits the peer best; 0 while nothing is known."""
        return max((count / seconds for count, seconds in self._medians.values()), default=self.prior)

    def observe(self, rollouts: int, seconds: float) -> None:
        """So many, given together, took so long."""
        size = min(rollouts.bit_length(), SIZES)
        tried = self._tried.setdefault(size, deque(maxlen=TRIES))
        tried.append((rollouts, max(seconds, 1e-3)))
        each = sorted(took / number for number, took in tried)
        mean = sum(number for number, _ in tried) / len(tried)
        self._medians[size] = mean, mean * each[len(each) // 2]

    def outlasts(self, rollouts: int, seconds: float) -> None:
        """So many, given together, were not done after so long; what is known is right, or too quick."""
        if seconds > self.seconds(rollouts):
            self.observe(rollouts, seconds)

    def seconds(self, rollouts: int) -> float:
        """How long so many take, usually; 0 while nothing is known."""
        if not self._medians:
            return rollouts / self.prior if self.prior > 0 else 0.0
        size = min(rollouts.bit_length(), SIZES)
        nearest = min(self._medians, key=lambda known: (abs(known - size), known))
        count, seconds = self._medians[nearest]
        return seconds * rollouts / count

    def within(self, seconds: float, most: int, step: int) -> int:
        """How many, at most `most`, it makes in so long: whole groups of `step`, or an even share of one.

        Even, so that shares make up wholes.
        """
        if not self.is_known or self.seconds(most) <= seconds:
            return most
        if seconds <= 0 or math.isnan(seconds):
            return 0
        groups = next((count for count in range(most - most % step, 0, -step) if self.seconds(count) <= seconds), 0)
        evens = range(min(step, most) // 2 * 2, 0, -2)
        return groups or next((count for count in evens if self.seconds(count) <= seconds), 0)
