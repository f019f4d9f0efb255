"""Turn readings of devices into joules by source. Core.

Invariants:

- Sums never fall.
- Impossible gains are not counted: a counter that ran backwards (a driver that was loaded again), or faster than any
  device draws.
- A gap is not counted if it is too long, for devices that report only watts.
- A counter that wrapped once since the last reading is read across the wrap.
- Nothing counts between two readings if one of them fell into the owner's own time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from protocol.accounting.claims import EnergySource

MAX_DEVICE_WATTS = 2000.0
"""Upper bound of what a board or package draws for seconds; GPUs of 2025 draw up to 1400 W."""

MAX_GAP_S = 60.0
"""Longest gap, in seconds, over which watts are joined by a straight line: nobody saw what a device drew in a longer
one."""


@dataclass(frozen=True, kw_only=True)
class Counter:
    """A device's joules since some moment of its own. They begin again at 0 after `wraps_at`; None: never."""

    device: str
    source: EnergySource
    joules: float
    wraps_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Power:
    """The watts that a device draws now."""

    device: str
    source: EnergySource
    watts: float


Reading = Counter | Power


@dataclass(kw_only=True)
class Meter:
    """Sums of joules by source. Times are seconds of a clock that stands still while the machine sleeps."""

    _sums: dict[EnergySource, float] = field(default_factory=dict)
    _last: dict[str, tuple[float, Reading]] = field(default_factory=dict)

    @property
    def joules(self) -> Mapping[EnergySource, float]:
        """Return the joules so far, by source. A source that was never read is missing."""
        return dict(self._sums)

    def look(self, readings: Iterable[Reading], now_s: float, *, lent: bool) -> None:
        """Add the devices' `readings` at `now_s`. A device without a reading continues at its next one."""
        if not lent:
            self._last.clear()
            return
        for reading in readings:
            before_s, before = self._last.get(reading.device, (now_s, reading))
            gained = _between(before, reading, now_s - before_s)
            self._sums[reading.source] = self._sums.get(reading.source, 0.0) + gained
            self._last[reading.device] = (now_s, reading)


def _between(before: Reading, now: Reading, seconds: float) -> float:
    """Return the joules between two readings of a device; 0 if they cannot be known."""
    match before, now:
        case Counter(), Counter():
            gained = now.joules - before.joules
            if gained < 0 and now.wraps_at is not None:
                gained += now.wraps_at
        case Power(), Power() if seconds <= MAX_GAP_S:
            gained = (before.watts + now.watts) / 2 * seconds
        case _:
            return 0.0
    return gained if 0 <= gained <= MAX_DEVICE_WATTS * seconds else 0.0
