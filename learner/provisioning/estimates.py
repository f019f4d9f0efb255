"""What a swarm takes, estimated from what it took of late: medians that a single odd value does not move.

Pure. What always holds: an estimate is an order statistic of the last WINDOW values, and so is each end of its
interval, which contains the true quantile with a probability of at least 0.95 whatever the distribution (binomial
ranks, as in Conover, Practical Nonparametric Statistics, section 3.2); with too few values for that, an end is open
(0 or infinity). What has drifted is a rule on such an interval: noise alone does not cross it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

WINDOW = 32
"""Values that are remembered: half an hour of steps of a minute, and enough for an interval of a few percent."""

CONFIDENCE = 0.95

DRIFT = 0.1
"""A quantity has drifted when its interval excludes what was planned with, and it lies at least so far from it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A quantile, the interval that contains the true one, and of how many values."""

    value: float
    low: float
    high: float
    count: int

    def has_drifted(self, planned: float) -> bool:
        """Whether what was `planned` with is no longer so."""
        outside = not self.low <= planned <= self.high
        return outside and abs(self.value - planned) > DRIFT * abs(planned)


class Recent:
    """The last values of one quantity; not negative."""

    def __init__(self, values: Iterable[float] = (), *, window: int = WINDOW) -> None:
        self._values = deque(values, maxlen=window)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """Take in one more, and forget the oldest beyond the window."""
        self._values.append(value)

    def median(self) -> Estimate | None:
        """None while there is nothing to go by."""
        return self.quantile(0.5)

    def quantile(self, share: float) -> Estimate | None:
        """The value that `share` (0 to 1) of all stay below."""
        values = sorted(self._values)
        if not values:
            return None
        low, high = ranks(len(values), share)
        return Estimate(
            value=_interpolated(values, share),
            low=values[low] if low is not None else 0.0,
            high=values[high] if high is not None else math.inf,
            count=len(values),
        )


def ranks(count: int, share: float) -> tuple[int | None, int | None]:
    """Which of `count` sorted values, from 0, bound the quantile `share` with CONFIDENCE, half of the rest at each end.

    None where even the least, or the largest, is not far enough out.
    """
    tail = (1 - CONFIDENCE) / 2
    below = list(accumulate(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(count + 1)))
    # P(fewer than r + 1 of the values are below the quantile) = below[r].
    low = bisect_right(below, tail) - 1
    high = next((k for k, probability in enumerate(below) if probability >= 1 - tail), count)
    return (low if low >= 0 else None), (high if high < count else None)


def _interpolated(values: list[float], share: float) -> float:
    place = share * (len(values) - 1)
    index = int(place)
    above = values[min(index + 1, len(values) - 1)]
    return values[index] + (place - index) * (above - values[index])
