"""Estimate quantities from their last values, so that a single odd value hardly moves the estimate.

Pure. There are three kinds of estimates:

- A quantile (`Recent`) is an order statistic, and so is each end of its interval, for any distribution (binomial ranks,
  as in Conover, Practical Nonparametric Statistics, section 3.2).
- A rate (`RecentRatio`) is a sum over a sum, since what takes longer must count for longer: a median of rates would
  promise too much. Its interval is that of a ratio (Cochran, Sampling Techniques, section 6.4).
- A mean (`Recent.mean`) is for what adds up, as training steps do. Odd values are left out of it, and its interval is
  Student's.

Invariants:

- An estimate uses the last WINDOW values.
- Its interval contains the true value with a probability of 0.95. With too few values for that, an end is open (0 or
  infinity).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from statistics import fmean, median, variance

WINDOW = 32
"""Values that are remembered: half an hour of steps of a minute, and enough for an interval of a few percent."""

CONFIDENCE = 0.95

_MEAN = -1.0
"""The key of a mean among quantiles."""

ENOUGH = 6
"""Least number of values for which the interval of a median, or of a rate, has two ends."""

ODD = 4.0
"""A value that took longer than this many times the usual counts as this many times the usual. A machine that was
asleep for a night has not become slower, and one odd value in WINDOW moves a rate by a tenth."""

RARE = 2
"""Odd values in WINDOW that are left out of a mean: once in sixteen training steps is an accident, more often is a
habit."""

DRIFT = 0.1
"""A quantity has drifted when its interval excludes the planned value, and it differs from that by at least this
share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """An estimated value, the interval that contains the true one, and the number of values behind it."""

    value: float
    low: float
    high: float
    count: int


class Recent:
    """The last values of one quantity; none is negative. An answer is kept until there is a new value: a plan asks for
    the same of a thousand peers every half minute, and most of them delivered nothing meanwhile."""

    def __init__(self, values: Iterable[float] = (), *, window: int = WINDOW) -> None:
        self._values = deque(values, maxlen=window)
        self._known: dict[float, Estimate] = {}

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """Take in one more value, and forget the oldest beyond the window."""
        self._values.append(value)
        self._known.clear()

    def median(self) -> Estimate | None:
        """Return the median; None while there is no value."""
        return self.quantile(0.5)

    def mean(self) -> Estimate | None:
        """Return the mean. Up to RARE values of more than ODD times the median are left out: a step that compiled its
        kernels, or a machine that was asleep. If there are more of them, they happen regularly, and count."""
        if (known := self._known.get(_MEAN)) is not None:
            return known
        if not self._values:
            return None
        most = ODD * median(self._values)
        usual = [value for value in self._values if value <= most]
        values = usual if len(self._values) - len(usual) <= RARE else list(self._values)
        count, value = len(values), fmean(values)
        reach = _student(count - 1) * math.sqrt(variance(values, value) / count) if count >= ENOUGH else math.inf
        self._known[_MEAN] = estimate = Estimate(
            value=value, low=max(0.0, value - reach), high=value + reach, count=len(self._values)
        )
        return estimate

    def quantile(self, share: float) -> Estimate | None:
        """Return the value below which the share `share` (0 to 1) of all values lies."""
        if (known := self._known.get(share)) is not None:
            return known
        values = sorted(self._values)
        if not values:
            return None
        low, high = ranks(len(values), share)
        self._known[share] = estimate = Estimate(
            value=_interpolated(values, share),
            low=values[low] if low is not None else 0.0,
            high=values[high] if high is not None else math.inf,
            count=len(values),
        )
        return estimate


class RecentRatio:
    """The last amounts of one quantity with what each took: for example rollouts in seconds, or tokens for rollouts."""

    def __init__(self, *, window: int = WINDOW) -> None:
        self._pairs: deque[tuple[float, float]] = deque(maxlen=window)
        self._known: Estimate | None = None

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, amount: float, took: float) -> None:
        """Take in one more pair, and forget the oldest beyond the window. Neither value is negative."""
        self._pairs.append((amount, took))
        self._known = None

    def ratio(self) -> Estimate | None:
        """Return the amount per unit of what it took, over all that are remembered. None while nothing has taken
        anything."""
        if self._known is None:
            self._known = self._ratio()
        return self._known

    def _ratio(self) -> Estimate | None:
        usual = self.usual()
        pairs = [(a, min(took, ODD * usual * a) if a and usual else took) for a, took in self._pairs]
        count, total = len(pairs), math.fsum(took for _, took in pairs)
        if total <= 0:
            return None
        value = math.fsum(amount for amount, _ in pairs) / total
        if count < ENOUGH or math.isinf(value):  # the total is too small to divide by
            return Estimate(value=value, low=0.0, high=math.inf, count=count)
        squares = math.fsum((amount - value * took) ** 2 for amount, took in pairs)
        reach = _student(count - 1) * math.sqrt(squares * count / (count - 1)) / total
        return Estimate(value=value, low=max(0.0, value - reach), high=value + reach, count=count)

    def usual(self) -> float:
        """Return the median of what one unit took, over the pairs with an amount; 0 while there is none."""
        paces = [took / amount for amount, took in self._pairs if amount]
        return median(paces) if paces else 0.0


@lru_cache(maxsize=1024)
def ranks(count: int, share: float) -> tuple[int | None, int | None]:
    """Return which of `count` sorted values, from 0, bound the quantile `share` with CONFIDENCE, with half of the rest
    at each end.

    An end is None if even the smallest, or the largest, value is not far enough out.
    """
    tail = (1 - CONFIDENCE) / 2
    below = list(accumulate(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(count + 1)))
    # P(fewer than r + 1 of the values are below the quantile) = below[r].
    low = bisect_right(below, tail) - 1
    high = next((k for k, probability in enumerate(below) if probability >= 1 - tail), count)
    return (low if low >= 0 else None), (high if high < count else None)


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, to 1 % from 5 degrees of freedom on (Abramowitz and Stegun,
    26.7.5)."""
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _interpolated(values: list[float], share: float) -> float:
    place = share * (len(values) - 1)
    index = int(place)
    above = values[min(index + 1, len(values) - 1)]
    return values[index] + (place - index) * (above - values[index])
