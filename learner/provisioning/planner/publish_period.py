"""Choose how often versions are published: the period kappa, from what publishing costs the learner, with hysteresis.

Pure. A period of 1 to S training steps is admissible under two conditions. The source must have sent one version before
the next is due, T_source <= kappa T_train. And the period must not need another machine. The first batch that needs a
version is due (S - kappa + 1) T_train after it, and its rollouts start T_bcast + T_gen after it. So with kappa <= S -
(T_bcast + T_gen) / T_train the rate alone decides (`learner.provisioning.model.capacity`).

If none is admissible, the smallest period is chosen that versions can keep up with: machines can be had, time cannot.
`choose_kappa` returns the period that is best now; `Period` has the one in use, which follows when the better one
lasts.

Invariants:

- The chosen period is the smallest admissible one with which publications cost hardly more of the learner's time than
  with any other, since a smaller one gives younger rollouts.
- The one in use stays until another is better by more than noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from learner.provisioning.estimation.estimates import DRIFT
from learner.provisioning.model.capacity import QUORUM, Supplier, least_kappa
from learner.provisioning.planner.constants import SHORT_REVIEWS
from learner.provisioning.planner.hysteresis import ConditionTimer

TOLERATED_LOSS = 0.01
"""Share of T_train: if a step is longer by less, that is no reason to train on older rollouts."""

DEAD_BAND = 0.5
"""A period is left for a larger one when it loses more than (1 + DEAD_BAND) TOLERATED_LOSS, for a smaller one when that
loses less than (1 - DEAD_BAND) TOLERATED_LOSS. Publication times of a few per cent of T_train vary by less than
this."""

_RESERVE = 1 + DRIFT
"""A new period must also be admissible if all times are longer by this factor; the one in use, with the times as they
are."""

_ROUNDING = 1e-9
"""Tolerance for rounding: seven steps over one step are seven."""


@dataclass(frozen=True, kw_only=True)
class Publishing:
    """The times that the period depends on, in seconds.

    Args:
        train_s: T_train, without publication.
        delay_s: T_bcast + T_gen, of the peers that matter.
        source_s: time for which the source is busy with one version.
        publish_s: time for which a publication holds the learner up.
    """

    train_s: float
    delay_s: float
    source_s: float = 0.0
    publish_s: float = 0.0

    def lost(self, kappa: int) -> float:
        """Return the learner's time that publications take, as a share of T_train."""
        return self.publish_s / (kappa * self.train_s)

    def is_admissible(self, kappa: int, staleness: int, reserve: float = 1.0) -> bool:
        """Return whether versions keep up and the period needs no other machine, with times `reserve` as long."""
        keeps_up = reserve * self.source_s <= kappa * self.train_s * (1 + _ROUNDING)
        return keeps_up and reserve * self.delay_s <= (staleness - kappa) * self.train_s

    def keeping_up(self, staleness: int) -> int:
        """Return the smallest period with which versions do not overtake each other, S if there is none."""
        return min(staleness, least_kappa(self.source_s, self.train_s))


class Period:
    """The period in use; None before anything was measured. `review_s` is the time between two reviews."""

    def __init__(self, review_s: float) -> None:
        self.kappa: int | None = None
        self._review_s = review_s
        self._other = ConditionTimer()

    def review(self, publishing: Publishing, staleness: int, now_s: float) -> int:
        """Return the period in use, which changes when another has been better for as long as a shortage of peers must
        last."""
        best = choose_kappa(publishing, staleness, current=self.kappa)
        lasted_s = self._other.update(best != self.kappa, now_s)
        if self.kappa is None or lasted_s >= SHORT_REVIEWS * self._review_s:
            self.kappa = best
            self._other.restart()
        return self.kappa


def choose_kappa(publishing: Publishing, staleness: int, *, current: int | None = None) -> int:
    """Return the period for the window S = `staleness`. `current` is the one in use, which is preferred in doubt.

    It is 1 for S = 0, where every step is published.
    """
    if staleness == 0:
        return 1
    if current is not None and not publishing.is_admissible(current, staleness):
        current = None
    periods = [
        kappa
        for kappa in range(1, staleness + 1)
        if kappa == current or publishing.is_admissible(kappa, staleness, _RESERVE)
    ]
    if not periods:
        return publishing.keeping_up(staleness)
    least = publishing.lost(periods[-1])
    if current is None or publishing.lost(current) > least + (1 + DEAD_BAND) * TOLERATED_LOSS:
        return _smallest(publishing, periods, least + TOLERATED_LOSS)
    return min(current, _smallest(publishing, periods, least + (1 - DEAD_BAND) * TOLERATED_LOSS))


def usual_delay_s(suppliers: Iterable[Supplier]) -> float:
    """Return T_bcast + T_gen: the seconds after a publication at which QUORUM of the supply flows; 0 if they supply
    nothing."""
    ordered = sorted((one.delay_s, one.rate) for one in suppliers)
    wanted = QUORUM * math.fsum(rate for _, rate in ordered)
    supplied = accumulate(rate for _, rate in ordered)
    return next((delay_s for (delay_s, _), so_far in zip(ordered, supplied, strict=True) if 0 < wanted <= so_far), 0.0)


def _smallest(publishing: Publishing, periods: list[int], most: float) -> int:
    return next(k for k in periods if publishing.lost(k) <= most)
