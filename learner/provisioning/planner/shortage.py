"""Whether a pool that supplies too little has done so for long enough to be added to: the longer, the less it lacks.

Pure. What always holds: somebody who left is a fact, and acted upon at once; what is only estimated must last, and any
break begins it anew. The numbers are in `pace`.
"""

from __future__ import annotations

from learner.provisioning.model.machine_selection import MARGIN
from learner.provisioning.planner.constants import BETTER_REVIEWS, HELD, SEVERE, SEVERE_REVIEWS, SHORT, SHORT_REVIEWS
from learner.provisioning.planner.hysteresis import Lasting


class Shortages:
    """For how long one pool has lacked how much. `review_s` lies between two reviews."""

    def __init__(self, review_s: float) -> None:
        self._review_s = review_s
        self._severe, self._short, self._thin = Lasting(), Lasting(), Lasting()
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
