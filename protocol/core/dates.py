"""Write points in time, given in milliseconds since 1970, as dates in UTC for people.

Invariants:

- Nothing here raises. Peers may sign times that calendars cannot represent; such times are written in milliseconds.
- Nothing here reads a clock: the caller passes the time.
"""

from __future__ import annotations

from datetime import UTC, datetime

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def date(at_ms: int) -> str:
    """Return the date and the time of day, to the second."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def moment(at_ms: int) -> str:
    """Return the date and the time of day with the time zone, UTC."""
    return f"{date(at_ms)} UTC"


def ago(ms: int) -> str:
    """Return a duration in hours, or in days from 36 hours on."""
    return f"{ms / HOUR_MS:.1f} hours" if ms < 1.5 * DAY_MS else f"{ms / DAY_MS:.1f} days"
