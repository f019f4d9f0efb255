"""Find a better set of peers: one that has been cheaper for a while, by more than what moving to it costs.

Pure. The numbers are in `constants`.

Invariants:

- A set that is moved to has paid off at every review for BETTER_REVIEWS times `caution`.
- `caution` doubles with every move that had to be taken back (`regret`), and falls again while there is none. So
  changes that undo each other become rare, whatever the noise.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from learner.provisioning.model.machine_selection import MARGIN, PLAN_STANDS_S, Choice, cheapest
from learner.provisioning.planner.constants import (
    BETTER_REVIEWS,
    CAUTION_MOST,
    HELD,
    LOOK_REVIEWS,
    PAYS,
    SAVING,
    SURPLUS,
)
from learner.provisioning.planner.pool import Pool


@dataclass(kw_only=True)
class Aim:
    """A better set, since when it has been better, and whether moving to it has begun."""

    names: frozenset[str]
    since_s: float
    begun: bool = False


class CheaperSetSearch:
    """The search of one planner. `review_s` is the time between two reviews."""

    def __init__(self, review_s: float) -> None:
        self.aim: Aim | None = None
        self.caution = 1.0
        self._review_s = review_s
        self._changed_s = -math.inf
        """When caution last changed."""
        self._looked_s = -math.inf
        self._offers: frozenset[tuple[str, float]] = frozenset()
        self._offered_s = 0.0
        """The peers that are there with their prices, and since when that has not changed."""

    def note_offers(self, pool: Pool, now_s: float) -> None:
        """Record the peers that are there now, and their prices."""
        offers = frozenset((one.name, one.running_price) for one in pool.candidates)
        if offers != self._offers:
            self._offers, self._offered_s = offers, now_s

    def stands_s(self, now_s: float) -> float:
        """Return for how long a plan is likely to stand: what has not changed for hours will probably stay for some
        more."""
        return max(PLAN_STANDS_S, now_s - self._offered_s)

    def price_to_be_active(self, pool: Pool, active: Collection[str], name: str, now_s: float) -> float:
        """Return the price per hour, roughly, at or below which this peer would be active; there is none if it is not
        positive.

        It is the price of those that it could replace, less what a move must save, and less the cost of its starts.
        """
        one = pool[name]
        stands_s = one.charged_s(self.stands_s(now_s))
        saved = pool.price(pool.replaceable(active, name)) - SAVING * pool.price(active)
        starts_per_hour = PAYS * 3600 / stands_s + one.stops_per_hour
        return (saved - one.start_price * starts_per_hour) / (1 + PAYS * one.start_s / stands_s)

    def regret(self, now_s: float) -> None:
        """Record that a peer that was deactivated is needed again: the next better set must look better for longer."""
        self.caution, self._changed_s = min(CAUTION_MOST, 2 * self.caution), now_s

    def review(self, pool: Pool, active: frozenset[str], now_s: float) -> Aim | None:
        """Return the set to move to now, if there is one."""
        if now_s - self._changed_s >= PLAN_STANDS_S:
            self.caution, self._changed_s = max(1.0, self.caution / 2), now_s
        if self.aim is not None:
            has_lost = not self.aim.names <= pool.names
            if not self._stands(pool, active, self.aim, now_s):
                self.aim = None
                if has_lost:  # else a peer that comes and goes could keep us from all others
                    self._looked_s = -math.inf
        aim = self.aim = self.aim or self._look(pool, active, now_s)
        if aim is None or aim.begun:
            return aim
        return aim if now_s - aim.since_s >= BETTER_REVIEWS * self._review_s * self.caution else None

    def _look(self, pool: Pool, active: frozenset[str], now_s: float) -> Aim | None:
        """Search for a better set, unless that was done a moment ago."""
        pause = LOOK_REVIEWS if self._offered_s > self._looked_s else BETTER_REVIEWS
        if now_s - self._looked_s < pause * self._review_s:
            return None
        self._looked_s = now_s
        choice = cheapest(pool.target, active, stands_s=self.stands_s(now_s))
        if not isinstance(choice, Choice):
            return None
        names = frozenset(one.name for one in choice.chosen)
        return Aim(names=names, since_s=now_s) if self._pays_off(pool, active, names, now_s) else None

    def _pays_off(self, pool: Pool, active: frozenset[str], names: frozenset[str], now_s: float) -> bool:
        """Return whether moving to this set pays, or deactivates a peer that is not needed at all."""
        saved = pool.price(active) - pool.price(names) - PAYS * pool.moving_price(names - active, self.stands_s(now_s))
        if saved > 0 and saved >= SAVING * pool.price(active):
            return True
        return saved >= 0 and len(names) < len(active) and pool.share(active) >= SURPLUS * MARGIN

    def _stands(self, pool: Pool, active: frozenset[str], aim: Aim, now_s: float) -> bool:
        """Return whether to continue moving to it, without the peers that left: of a thousand, some leave each
        minute."""
        aim.names &= pool.names
        if pool.share(aim.names) < HELD:
            return False
        return aim.begun or self._pays_off(pool, active, aim.names, now_s)
