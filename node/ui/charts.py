"""Draw small pictures out of characters: a line of blocks, a chart with a scale, bars, shares by lag. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"


def clock(seconds: float) -> str:
    """Return seconds since the start as mm:ss, or h:mm:ss."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes:02}:{whole % 60:02}"


def sparkline(values: Sequence[float]) -> str:
    """Return one block for each value, scaled from the lowest value to the highest."""
    return "".join(BLOCKS[height - 1] for height in _heights(values, len(BLOCKS)))


def chart(values: Sequence[float], height: int) -> list[str]:
    """Return `height` rows of blocks, the top one first, with a column for each value. The lowest value has one eighth
    of a row, the highest fills all rows."""
    eighths = len(BLOCKS)
    heights = list(_heights(values, eighths * height))
    return [
        "".join(" " if h <= eighths * row else BLOCKS[min(h - eighths * row, eighths) - 1] for h in heights)
        for row in reversed(range(height))
    ]


def _heights(values: Sequence[float], most: int) -> Iterator[int]:
    """Yield a height from 1 to `most` for each value."""
    low, high = min(values), max(values)
    span = high - low or 1.0
    # Divide first: the reciprocal of the smallest floating-point numbers is infinite.
    return (1 + round((value - low) / span * (most - 1)) for value in values)


def bar(share: float, width: int) -> str:
    """Return a bar of `width` characters, with the fraction `share` in [0, 1] of them filled."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return "█" * filled + "░" * (width - filled)


def divided(shares: Sequence[float], width: int) -> list[int]:
    """Return how many of `width` characters belong to each of `shares`, which add up to 1."""
    ends, passed = [0], 0.0
    for share in shares:
        passed += share
        ends.append(max(ends[-1], min(width, round(passed * width))))
    return [end - begin for begin, end in pairwise(ends)]


def lag_line(lags: Mapping[int, int], shown: int = 5) -> str:
    """Return the histogram in one line: a bar and a share for each lag. Lags from `shown` on are added up."""
    total = sum(lags.values())
    if not total:
        return "no rollout yet"
    cells = [(str(lag), lags.get(lag, 0)) for lag in range(min(shown, max(lags) + 1))]
    if rest := sum(number for lag, number in lags.items() if lag >= shown):
        cells.append((f"{shown}+", rest))
    return "  ".join(f"{lag} {BLOCKS[round(7 * n / total)]} {100 * n / total:.0f}%" for lag, n in cells)
