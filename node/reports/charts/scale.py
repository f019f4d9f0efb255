"""Place numbers on an axis, choose its ticks, and thin out curves. Pure.

Invariants:

- Ticks are round numbers inside the range of the axis, in order, and at most as many as requested.
- A thinned curve keeps its order and both ends. Each remaining point is the mean, or the largest, of those that it
  stands for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

CURVE_POINTS = 240
"""Points of a drawn curve: one for each pixel and a half of a small plot, and still few enough rows for a table."""

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class TimeUnit:
    """The unit in which time is written."""

    name: str
    seconds: float


UNITS = (
    (300.0, TimeUnit(name="s", seconds=1.0)),
    (10_800.0, TimeUnit(name="min", seconds=60.0)),
    (259_200.0, TimeUnit(name="h", seconds=3600.0)),
    (math.inf, TimeUnit(name="d", seconds=86_400.0)),
)
"""Time below 5 minutes is read best in seconds, below 3 hours in minutes, below 3 days in hours."""


def time_unit(wall_s: float) -> TimeUnit:
    """Return the unit for a time axis of `wall_s` seconds."""
    return next(unit for below, unit in UNITS if wall_s < below)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    step = _round_up((high - low) / max(1, most - 1))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def ceiling(value: float, most: int) -> float:
    """Return the round number at which an axis from 0 that shows `value` may end."""
    if value <= 0:
        return 1.0
    step = _round_up(value / max(1, most - 1))
    return round(math.ceil(value / step - 1e-9) * step, 12)


def _round_up(step: float) -> float:
    """Return the next of 1, 2, 2.5, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))


def compact(value: float) -> str:
    """Return a number in few characters, for the space beside an axis: 0.25, 1,500, 20k, 1.5M."""
    for least, power, sign in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / power:.4g}{sign}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean of at least one value."""
    return math.fsum(values) / len(values)


def thinned(
    points: Sequence[Point], limit: int = CURVE_POINTS, *, take: Callable[[Sequence[float]], float] = mean
) -> tuple[Point, ...]:
    """Return `points`, which are in order of x, as at most `limit`: between the ends, one for each stretch of x."""
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
    """Return each point with the mean of those around it: a `share` of all points, fewer at the ends."""
    reach = max(least, round(share * len(points))) // 2
    sums = [0.0]
    for _, y in points:
        sums.append(sums[-1] + y)
    found = []
    for at, (x, _) in enumerate(points):
        low, high = max(0, at - reach), min(len(points), at + reach + 1)
        found.append((x, (sums[high] - sums[low]) / (high - low)))
    return tuple(found)
