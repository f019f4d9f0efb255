"""Measure for how long a condition has held without a break, since what lasts is no noise.

Pure.

Invariants:

- The result depends on what was reported and when, and not on how often.
"""

from __future__ import annotations

from learner.provisioning.model.machine_selection import MARGIN
from learner.provisioning.planner.constants import BETTER_REVIEWS, HELD, SEVERE, SEVERE_REVIEWS, SHORT, SHORT_REVIEWS


class ConditionTimer:
    """Times one condition. All times are of one clock that never goes back."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def update(self, is_so: bool, now_s: float) -> float:
        """Return for how many seconds the condition has held; a negative number if it does not hold."""
        if not is_so:
            self._since_s = None
            return -1.0
        self._since_s = now_s if self._since_s is None else self._since_s
        return now_s - self._since_s

    def restart(self) -> None:
        """Count again from zero."""
        self._since_s = None


class Shortages:
    """Decides whether a pool has supplied too little for long enough to get an addition: the less it lacks, the longer
    that takes. `review_s` is the time between two reviews.

    Invariants:

    - A peer that left is a fact, and acted on at once.
    - An estimate must last, and any break starts the time again.
    """

    def __init__(self, review_s: float) -> None:
        self._review_s = review_s
        self._severe, self._short, self._thin = ConditionTimer(), ConditionTimer(), ConditionTimer()
        self.lasted_s = 0.0
        """For how many seconds half of the reserve had been gone at the last look."""

    def is_due(self, share: float, num_left: int, now_s: float, *, caution: float) -> bool:
        """Return whether it is time to add to a pool that supplies `share`, and from which `num_left` peers have left
        since the last look.

        `caution`: factor on the time that a shortage must last for which nothing waits yet.
        """
        severe_s = self._severe.update(share < SEVERE, now_s)
        short_s = self._short.update(share < SHORT, now_s)
        thin_s = self._thin.update(share < HELD, now_s)
        self.lasted_s = max(0.0, thin_s)
        return (
            (num_left > 0 and share < MARGIN)
            or severe_s >= SEVERE_REVIEWS * self._review_s
            or short_s >= SHORT_REVIEWS * self._review_s
            or thin_s >= BETTER_REVIEWS * self._review_s * caution
        )

    def made_good(self) -> None:
        """Start all times again, since the pool got an addition."""
        for lasting in (self._severe, self._short, self._thin):
            lasting.restart()
