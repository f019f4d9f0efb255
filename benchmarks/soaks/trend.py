"""Whether what was measured grows: the slope through it, and how sure of it one may be.

The slope is the median of those between all pairs of measurements (Theil and Sen), with its 95 % interval, so that no
single measurement decides. A pure function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import theilslopes

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Of a quantity by another: `slope`, and the ends of its interval."""

    slope: float
    low: float
    high: float


def trend(at: Sequence[float], values: Sequence[float]) -> Trend:
    """The trend of `values` measured at `at`, two or more."""
    found = theilslopes(values, at, CONFIDENCE)
    return Trend(slope=float(found.slope), low=float(found.low_slope), high=float(found.high_slope))
