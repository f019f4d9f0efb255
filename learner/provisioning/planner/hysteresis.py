"""For how long something has been so without a break: what is told from noise by staying.

Pure. What always holds: it follows from what was told and when, so whoever tells it more often learns nothing else.
"""

from __future__ import annotations

from learner.provisioning.model.machine_selection import MARGIN
from learner.provisioning.planner.constants import BETTER_REVIEWS, HELD, SEVERE, SEVERE_REVIEWS, SHORT, SHORT_REVIEWS


class ConditionTimer:
    """Times are those of one clock that never goes back."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def update(self, is_so: bool, now_s: float) -> float:
        """Seconds; negative if it is not so."""
        if not is_so:
            self._since_s = None
            return -1.0
        self._since_s = now_s if self._since_s is None else self._since_s
        return now_s - self._since_s

    def restart(self) -> None:
        """What follows counts anew."""
        self._since_s = None


class Shortages:
    """Whether a pool that supplies too little has done so for long enough to be added to: the longer, the less it
    lacks. `review_s` lies between two reviews.

    Invariants: a peer that left is a fact, and acted upon at once. What is only estimated must last, and any break
    begins it anew.
    """

    def __init__(self, review_s: float) -> None:
        self._review_s = review_s
        self._severe, self._short, self._thin = ConditionTimer(), ConditionTimer(), ConditionTimer()
        self.lasted_s = 0.0
        """For so long, at the last look, had half of the reserve been gone."""

    def is_due(self, share: float, num_left: int, now_s: float, *, patience: float) -> bool:
        """Whether it is time to add to a pool that supplies `share`, `num_left` of which have left since the last look.

        `patience`: so many times longer must last what nobody waits for yet.
        """
        severe_s = self._severe.update(share < SEVERE, now_s)
        short_s = self._short.update(share < SHORT, now_s)
        thin_s = self._thin.update(share < HELD, now_s)
        self.lasted_s = max(0.0, thin_s)
        return (
            (num_left > 0 and share < MARGIN)
            or severe_s >= SEVERE_REVIEWS * self._review_s
            or short_s >= SHORT_REVIEWS * self._review_s
            or thin_s >= BETTER_REVIEWS * self._review_s * patience
        )

    def made_good(self) -> None:
        """It was added to."""
        for lasting in (self._severe, self._short, self._thin):
            lasting.restart()
