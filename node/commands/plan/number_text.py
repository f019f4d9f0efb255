"""Figures of a plan as people read them, and how much of a table they get.

Pure. What always holds: what is said to be enough is rounded to the side on which it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from node.runtime import formatting as words

KIND_CHARS = 24
"""Of a machine's name: the columns beside it take the rest of 100."""

KINDS_LISTED = 40
"""Rows of the table of machines; those that nobody chose are left out first."""

TOO_FEW = "too few"


def machines(count: int) -> str:
    """How many."""
    return "1 machine" if count == 1 else f"{count:,} machines"


def rate(value: float) -> str:
    """Rollouts per second."""
    return f"{words.rate(value)} a second"


def per_hour(price: float, currency: str) -> str:
    """A price."""
    return f"{words.money(price, currency)} an hour"


def times(value: float) -> str:
    """A ratio: three decimals near 1, three digits far from it."""
    return f"{value:.3f}" if value < 10 else words.rate(value)


def over(value: float) -> str:
    """The same, of what may be out of reach."""
    return times(value) if math.isfinite(value) else words.NOTHING


def signed(amount: float, currency: str) -> str:
    """A difference of money."""
    if abs(amount) < 1e-9:
        return words.money(0.0, currency)
    return f"{'+' if amount > 0 else '-'}{words.money(abs(amount), currency)}"


def seconds(value: float) -> str:
    """With its unit."""
    return f"{figure(value)} s"


def figure(value: float) -> str:
    """Three digits, and no fewer than whole numbers have."""
    if value < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def histogram(shares: Mapping[int, float], most: int) -> str:
    """Shares by lag; the first and the last lag alone, where there are more than `most`."""
    if len(shares) > most:
        return f"{min(shares)} to {max(shares)}"
    return ", ".join(f"{lag}: {words.share(share)}" for lag, share in shares.items())


def up(value: float) -> str:
    """Four digits, rounded up."""
    return f"{_rounded(value, math.ceil):g}"


def down(value: float) -> str:
    """Four digits, rounded down."""
    return f"{_rounded(value, math.floor):g}"


def _rounded(value: float, rounding: Callable[[float], int]) -> float:
    if value == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    return rounding(value / unit) * unit
