"""What a swarm takes, estimated from what it took of late: figures that a single odd value hardly moves.

Pure. What always holds: an estimate comes of the last WINDOW values, and its interval contains the true figure with a
probability of 0.95; with too few values for that, an end is open (0 or infinity). There are three kinds. A quantile
(`Recent`) is an order statistic, and so is each end of its interval, whatever the distribution (binomial ranks, as in
Conover, Practical Nonparametric Statistics, section 3.2). A rate (`RecentRatio`) is a sum over a sum, since what takes
longer must count for longer: a median of rates would promise more than comes. Its interval is that of a ratio (Cochran,
Sampling Techniques, section 6.4). A mean (`Recent.mean`) is for what adds up, as training steps do; what is odd is left
out of it, and its interval is Student's.
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
"""Values from which on the interval of a median, or of a rate, has two ends."""

ODD = 4.0
"""What took longer than so many times the usual counts as so many times: a machine that was asleep for a night has not
become slower, and one odd value in WINDOW moves a rate by a tenth."""

RARE = 2
"""Of WINDOW values: once in sixteen training steps is an accident, more often is a habit."""

DRIFT = 0.1
"""A quantity has drifted when its interval excludes what was planned with, and it lies at least so far from it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A figure, the interval that contains the true one, and of how many values."""

    value: float
    low: float
    high: float
    count: int


class Recent:
    """The last values of one quantity; not negative. What was asked is remembered until there is one more: a plan asks
    the same of a thousand peers every half minute, of whom most delivered nothing meanwhile."""

    def __init__(self, values: Iterable[float] = (), *, window: int = WINDOW) -> None:
        self._values = deque(values, maxlen=window)
        self._known: dict[float, Estimate] = {}

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """Take in one more, and forget the oldest beyond the window."""
        self._values.append(value)
        self._known.clear()

    def median(self) -> Estimate | None:
        """None while there is nothing to go by."""
        return self.quantile(0.5)

    def mean(self) -> Estimate | None:
        """The mean. RARE values of more than ODD times the median are left out: a step that compiled its kernels, or a
        machine that was asleep. If there are more of them they are what comes again and again, and count."""
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
        """The value that `share` (0 to 1) of all stay below."""
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
    """The last amounts of one quantity with what each took: rollouts in seconds, say, or tokens for rollouts."""

    def __init__(self, *, window: int = WINDOW) -> None:
        self._pairs: deque[tuple[float, float]] = deque(maxlen=window)
        self._known: Estimate | None = None

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, amount: float, took: float) -> None:
        """Take in one more, and forget the oldest beyond the window. Neither is negative."""
        self._pairs.append((amount, took))
        self._known = None

    def ratio(self) -> Estimate | None:
        """Amount per unit of what it took, over all that are remembered. None while nothing has taken anything."""
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
        if count < ENOUGH or math.isinf(value):  # a total so small that it is no time at all
            return Estimate(value=value, low=0.0, high=math.inf, count=count)
        squares = math.fsum((amount - value * took) ** 2 for amount, took in pairs)
        reach = _student(count - 1) * math.sqrt(squares * count / (count - 1)) / total
        return Estimate(value=value, low=max(0.0, value - reach), high=value + reach, count=count)

    def usual(self) -> float:
        """The median of what a unit took where there was an amount at all; 0 while there was none."""
        paces = [took / amount for amount, took in self._pairs if amount]
        return median(paces) if paces else 0.0


@lru_cache(maxsize=1024)
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


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to 1 % from 5 degrees of freedom on (Abramowitz and Stegun, 26.7.5)."""
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _interpolated(values: list[float], share: float) -> float:
    place = share * (len(values) - 1)
    index = int(place)
    above = values[min(index + 1, len(values) - 1)]
    return values[index] + (place - index) * (above - values[index])
