"""Where a number stands on an axis, which numbers are written beside it, and curves with fewer points.

Pure. What always holds: ticks are round numbers inside what the axis covers, in order, and at most as many as asked
for; a curve that is made thinner keeps its order and both of its ends, and each point that is left is a mean, or the
largest, of those it stands for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

CURVE_POINTS = 240
"""Points of a drawn curve: one for each pixel and a half of a small plot, and rows that a table may still have."""

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class TimeUnit:
    """What time is written in."""

    name: str
    seconds: float


UNITS = (
    (300.0, TimeUnit(name="s", seconds=1.0)),
    (10_800.0, TimeUnit(name="min", seconds=60.0)),
    (259_200.0, TimeUnit(name="h", seconds=3600.0)),
    (math.inf, TimeUnit(name="d", seconds=86_400.0)),
)
"""Below 5 minutes seconds are read best, below 3 hours minutes, below 3 days hours."""


def time_unit(wall_s: float) -> TimeUnit:
    """The unit for a time axis of `wall_s`."""
    return next(unit for below, unit in UNITS if wall_s < below)


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    step = _round_up((high - low) / max(1, most - 1))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def ceiling(value: float, most: int) -> float:
    """The round number at which an axis from 0 that shows `value` may end."""
    if value <= 0:
        return 1.0
    step = _round_up(value / max(1, most - 1))
    return round(math.ceil(value / step - 1e-9) * step, 12)


def _round_up(step: float) -> float:
    """The next of 1, 2, 2.5, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))


def compact(value: float) -> str:
    """A number in few characters, as there is room for beside an axis: 0.25, 1,500, 20k, 1.5M."""
    for least, power, sign in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / power:.4g}{sign}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean of at least one value."""
    return math.fsum(values) / len(values)


def thinned(
    points: Sequence[Point], limit: int = CURVE_POINTS, *, take: Callable[[Sequence[float]], float] = mean
) -> tuple[Point, ...]:
    """`points`, in order of x, as at most `limit`: between the ends, one for all in the same stretch of x."""
    if len(points) <= limit:
        return tuple(points)
    first, *between, last = points
    width = (last[0] - first[0]) / (limit - 2)
    if width <= 0:
        return (first, last)
    groups = groupby(between, key=lambda point: min(int((point[0] - first[0]) / width), limit - 3))
    inner = []
    for _, group in groups:
        members = list(group)
        inner.append((mean([x for x, _ in members]), take([y for _, y in members])))
    return (first, *inner, last)


def smoothed(points: Sequence[Point], share: float = 0.03, least: int = 5) -> tuple[Point, ...]:
    """Each point with the mean of those around it, of `share` of all, fewer at the ends."""
    reach = max(least, round(share * len(points))) // 2
    sums = [0.0]
    for _, y in points:
        sums.append(sums[-1] + y)
    found = []
    for at, (x, _) in enumerate(points):
        low, high = max(0, at - reach), min(len(points), at + reach + 1)
        found.append((x, (sums[high] - sums[low]) / (high - low)))
    return tuple(found)
