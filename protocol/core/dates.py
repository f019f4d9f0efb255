"""Write points in time for people: dates in UTC, of milliseconds since 1970.

Invariants:
- Nothing here raises: what peers sign may lie beyond what calendars hold, and is told in milliseconds then.
- No clock is read here: whoever asks brings the time.
"""

from __future__ import annotations

from datetime import UTC, datetime

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def date(at_ms: int) -> str:
    """The date and the time of day, to the second."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def moment(at_ms: int) -> str:
    """The same with the zone that it is of."""
    return f"{date(at_ms)} UTC"


def ago(ms: int) -> str:
    """A length of time, in hours, or from 36 on in days."""
    return f"{ms / HOUR_MS:.1f} hours" if ms < 1.5 * DAY_MS else f"{ms / DAY_MS:.1f} days"
