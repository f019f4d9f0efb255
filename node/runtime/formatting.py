"""Format numbers, times and names for people.

Invariants:

- A name that a peer chose comes out without control or direction characters, and no longer than asked. So no name can
  move our cursor or stretch our tables.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping

from protocol.accounting.claims import JOULES_PER_KWH, MICROS
from protocol.core.dates import date as date
from protocol.core.dates import moment as moment

NAME_CHARS = 16
"""Characters of a name, enough to tell machines apart. Longer names would squeeze the figures beside them at 80
columns."""

NOTHING = "-"

_PIECES = re.compile(r"`[^`]*`\S*|(?:Type|Its report|Anybody can check it): .*|\S+")
"""What `folded` keeps whole: a command between backquotes, one that ends the line, and a word."""

_LABEL = re.compile(r" *\S+(?: \S+)* {2,}")
_MARGIN = re.compile(r" *(?:\d+\. )?")
"""Where the first line of a row, or of a paragraph or point, begins: after the label, or after the margin."""


def plain_name(name: str, limit: int = NAME_CHARS) -> str:
    """Return `name` on one line, without control and direction characters, shortened to `limit` characters.

    The characters are left out, not written out as in `protocol.core.visible`, so that two names that look alike are
    equal.
    """
    clean = " ".join("".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in name).split())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def folded(line: str, width: int) -> str:
    """Return `line` on lines of at most `width` characters, which begin below its second column if it has one.

    Commands and words that are longer stay whole, so that they can be copied.
    """
    begins = _LABEL.match(line) or _MARGIN.match(line)
    indent = min(begins.end() if begins else 0, width // 2)
    lines, end = [""], 0
    for piece in _PIECES.finditer(line):
        gap, end = line[end : piece.start()], piece.end()
        if len(lines[-1] + gap) > indent and len(lines[-1] + gap + piece[0]) > width:
            lines.append(" " * indent + piece[0])
        else:
            lines[-1] += gap + piece[0]
    return "\n".join(lines)


def count(value: int | None) -> str:
    """Return 12345 as 12,345."""
    return NOTHING if value is None else f"{value:,}"


def counted(number: int, one: str, several: str = "") -> str:
    """Return 1 as "1 lease", 12345 as "12,345 leases". `several`: the plural, if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def were(number: int) -> str:
    """Return the verb that goes with `number` things."""
    return "was" if number == 1 else "were"


def risen(first: float, last: float, *, once: bool) -> str:
    """Return a score from the first evaluation to the last. `once`: there was only one, so there is one figure."""
    return f"{last:.3f}" if once else f"{first:.3f} to {last:.3f}"


def steps(number: float) -> str:
    """Return a mean number of training steps as text, such as "1 step" or "1.25 steps"."""
    shown = figure(number)
    return "1 step" if shown == "1" else f"{shown} steps"


def times(number: int) -> str:
    """Return how often: once, 3 times."""
    return "once" if number == 1 else f"{number:,} times"


def share(value: float | None) -> str:
    """Return a fraction in [0, 1] as per cent."""
    return NOTHING if value is None else f"{100 * value:.1f}%"


def rate(value: float | None) -> str:
    """Return a rate with three significant digits."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def figure(value: float | None) -> str:
    """Return a figure of any size with three significant digits."""
    return NOTHING if value is None else f"{value:.3g}"


SCALES = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def large(value: float | None) -> str:
    """Return a figure that may be very large, with three significant digits: 12,300, 1.3 million, over 10^15."""
    if value is None or value < 999.5:
        return figure(value)
    whole = float(f"{value:.3g}")
    if whole >= 1e15:
        return "over 10^15"
    for scale, name in SCALES:
        if whole >= scale:
            return f"{whole / scale:.3g} {name}"
    return f"{whole:,.0f}"


def rarity(odds: float) -> str:
    """Return in how many lives an honest peer looks like this once; NOTHING if in any life."""
    return NOTHING if (shown := large(odds)) == "1" else shown


def once_in(odds: float) -> str:
    """Return the same for the end of a sentence: once in 12,300 lives."""
    return "at any time" if (shown := rarity(odds)) == NOTHING else f"once in {shown} lives"


def size(num_bytes: int) -> str:
    """Return bytes in binary units, with three significant digits."""
    amount = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:,.3g} TiB" if amount < 999.5 else f"{amount:,.0f} TiB"


def decimal_size(num_bytes: float) -> str:
    """Return bytes in decimal units, as disks and memory are sold, with three significant digits."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} GB" if num_bytes < 999.5 else f"{num_bytes:,.0f} GB"


def duration(seconds: float) -> str:
    """Return seconds as people say them: 42 s, 3 min 20 s, 5 h 12 min, 3 d 4 h."""
    whole = round(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{minutes} min {whole % 60} s"
    if days < 2:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def short_duration(seconds: float) -> str:
    """Return the same, with decimals below 10 s."""
    return f"{seconds:.2f} s" if 0 < seconds < 9.995 else duration(seconds)


def hours(seconds: float) -> str:
    """Return seconds in hours."""
    return in_hours(seconds / 3600)


def in_hours(value: float) -> str:
    """Return hours, exact enough for a version of a second, a demo of three minutes and a run of a month."""
    if 0 < value < 0.01:
        return f"{value:.5f}"
    return f"{value:.3f}" if value < 10 else f"{value:,.1f}"


def kwh(joules: float | None) -> str:
    """Return joules in kWh, with three significant digits even for small values."""
    if joules is None:
        return NOTHING
    value = joules / JOULES_PER_KWH
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}" if value >= 0.0001 else "0" if not value else "<0.0001"


def money(units: float | None, currency: str) -> str:
    """Return an amount in whole units of `currency` (empty: not named), with two decimals, more for small amounts."""
    if units is None:
        return NOTHING
    if units == 0:
        return f"0 {currency}".rstrip()
    decimals = 2 if units >= 1 else 4 if units >= 0.001 else 7
    return f"{units:,.{decimals}f} {currency}".rstrip()


def cents(value: float | None, currency: str) -> str:
    """Return hundredths of a unit of `currency` (empty: not named), with three significant digits."""
    if value is None:
        return NOTHING
    return f"{rate(value) if value >= 0.0001 or not value else '<0.0001'} {currency}".rstrip()


def money_of(micros: int, currency: str) -> str:
    """Return an amount in millionths of `currency`."""
    return money(micros / MICROS, currency)


def signed_money(amount: float, currency: str) -> str:
    """Return a difference of money, with its sign."""
    if abs(amount) < 1e-9:
        return money(0.0, currency)
    return f"{'+' if amount > 0 else '-'}{money(abs(amount), currency)}"


def per_hour(price: float, currency: str) -> str:
    """Return a price per hour."""
    return f"{money(price, currency)} an hour"


def per_second(value: float) -> str:
    """Return a rate in rollouts per second."""
    return f"{rate(value)} a second"


def ratio(value: float) -> str:
    """Return three decimals near 1, three digits far from it, and NOTHING for infinity or NaN."""
    return NOTHING if not math.isfinite(value) else f"{value:.3f}" if value < 10 else rate(value)


def whole_figure(value: float) -> str:
    """Return three digits, and all digits of whole numbers."""
    if value < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def seconds(value: float) -> str:
    """Return the same with the unit, seconds."""
    return f"{whole_figure(value)} s"


def histogram(shares: Mapping[int, float], most: int) -> str:
    """Return fractions by lag; only the first and the last lag if there are more than `most`."""
    if len(shares) > most:
        return f"{min(shares)} to {max(shares)}"
    return ", ".join(f"{lag}: {share(part)}" for lag, part in shares.items())


def enough(value: float, rounding: Callable[[float], int]) -> str:
    """Return four digits of a sufficient value, rounded up or down (math.ceil, math.floor) so that it still
    suffices."""
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3) if value else 1.0
    return f"{rounding(value / unit) * unit:g}"
