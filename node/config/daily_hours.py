"""Read the hours in which an owner lends a machine, and compare them with a wall clock.

Pure.

Invariants:

- Hours are minutes of the local wall clock, the same every day.
- The caller passes the time. A clock that is set, or changes to summer time, counts from the next call on.
- Seconds are those of the clock's face: in a night with a change of time they are an hour off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

MINUTES = 24 * 60

MAX_CHARS = 256
"""Most characters of the text: some twenty ranges, which is more than anybody needs."""

_RANGE = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})", re.ASCII)


class HoursError(ValueError):
    """Raised for a text that names no hours. The message quotes the range that is wrong and says what to write."""


@dataclass(frozen=True)
class Hours:
    """`spells` of the day, each [start, end) in minutes since midnight, in order; no two of them touch."""

    spells: tuple[tuple[int, int], ...]

    @property
    def is_always(self) -> bool:
        """Return whether the hours never end."""
        return self.spells == ((0, MINUTES),)

    def left_s(self, now: datetime) -> float | None:
        """Return the seconds until the hours end, 0 outside them, None if they never end. `now`: the wall clock."""
        if self.is_always:
            return None
        now_s = _since_midnight_s(now)
        end = next((end for start, end in self.spells if 60 * start <= now_s < 60 * end), None)
        if end is None:
            return 0.0
        if end == MINUTES and self.spells[0][0] == 0:
            end += self.spells[0][1]  # they go on after midnight
        return 60 * end - now_s

    def begin_in_s(self, now: datetime) -> float:
        """Return the seconds until the hours begin, 0 within them."""
        if self.left_s(now) != 0:
            return 0.0
        now_s = _since_midnight_s(now)
        start = next((start for start, _ in self.spells if 60 * start > now_s), self.spells[0][0] + MINUTES)
        return 60 * start - now_s

    def end(self, now: datetime) -> str:
        """Return the time of day at which the hours end, as HH:MM; "" outside them, or if they never end."""
        left_s = self.left_s(now)
        return _shown(now, left_s) if left_s else ""

    def begin(self, now: datetime) -> str:
        """Return the time of day at which the hours begin again, as HH:MM; "" within them."""
        return _shown(now, begin_s) if (begin_s := self.begin_in_s(now)) else ""


ALWAYS = Hours(((0, MINUTES),))


def parse_hours(text: str) -> Hours:
    """Return the hours of a text such as "19:00-07:30, 12:00-13:00"; always, if it is empty. Raises HoursError."""
    if not text.strip():
        return ALWAYS
    spells: list[tuple[int, int]] = []
    for part in text.split(","):
        start, end = _read(part.strip())
        spells += [(start, end)] if start < end else [(start, MINUTES), (0, end)]
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spell for spell in spells if spell[0] < spell[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return Hours(tuple(merged))


def _read(part: str) -> tuple[int, int]:
    """Return both ends of a range, in minutes since midnight."""
    found = _RANGE.fullmatch(part)
    if found is None:
        raise HoursError(
            f'{part!r} is not a range of hours. Write "19:00-07:30", several with commas between them, or nothing for '
            "always."
        )
    start, end = (_minute(part, *map(int, ends)) for ends in (found.groups()[:2], found.groups()[2:]))
    if start % MINUTES == end % MINUTES and end - start != MINUTES:
        raise HoursError(f"{part!r} ends when it begins. Leave the hours empty to work always.")
    return start % MINUTES, end


def _minute(part: str, hour: int, minute: int) -> int:
    if minute > 59 or 60 * hour + minute > MINUTES:
        raise HoursError(f"{part!r}: {hour:02}:{minute:02} is not a time of day. Write 00:00 to 24:00.")
    return 60 * hour + minute


def _since_midnight_s(now: datetime) -> float:
    return 3600 * now.hour + 60 * now.minute + now.second + now.microsecond / 1e6


def _shown(now: datetime, in_s: float) -> str:
    return (now.replace(second=0, microsecond=0) + timedelta(minutes=round((in_s + now.second) / 60))).strftime("%H:%M")
