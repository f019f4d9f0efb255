"""Find whether a measurement grows: the slope through its values, and a confidence interval.

The slope is the median of those between all pairs of values (Theil and Sen), with its 95 % interval, so that no single
value decides. A pure function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import theilslopes

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The trend of one quantity over another: `slope`, and the ends of its interval."""

    slope: float
    low: float
    high: float


def trend(at: Sequence[float], values: Sequence[float]) -> Trend:
    """Return the trend of `values` measured at `at`, two or more."""
    found = theilslopes(values, at, CONFIDENCE)
    return Trend(slope=float(found.slope), low=float(found.low_slope), high=float(found.high_slope))
