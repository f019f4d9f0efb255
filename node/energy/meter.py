"""Core: from looks at devices to joules by source.

What always holds: sums never fall; what cannot be is not counted, be it that a counter ran backwards (a driver that was
loaded anew) or faster than any device draws, or that nobody looked for too long at what tells watts alone. A counter
that wrapped once since the last look is read across it. Between two looks of which one fell into the owner's own time
nothing counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from protocol.accounting.claims import EnergySource

MAX_DEVICE_WATTS = 2000.0
"""No board or package draws more for seconds; GPUs of 2025 take up to 1400 W."""

MAX_GAP_S = 60.0
"""Watts are joined by straight lines over at most so long: what a device drew in a longer gap, nobody saw."""


@dataclass(frozen=True, kw_only=True)
class Counter:
    """A device's joules since some moment of its own; they begin again at 0 after `wraps_at`, if they ever do."""

    device: str
    source: EnergySource
    joules: float
    wraps_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Power:
    """What a device draws just now."""

    device: str
    source: EnergySource
    watts: float


Reading = Counter | Power


@dataclass(kw_only=True)
class Meter:
    """See the module's paragraph. Times are seconds of a clock that stands still while the machine sleeps."""

    _sums: dict[EnergySource, float] = field(default_factory=dict)
    _last: dict[str, tuple[float, Reading]] = field(default_factory=dict)

    @property
    def joules(self) -> Mapping[EnergySource, float]:
        """What was counted so far; a source that was never read is not among them."""
        return dict(self._sums)

    def look(self, readings: Iterable[Reading], now_s: float, *, lent: bool) -> None:
        """Devices show `readings` at `now_s`; one that shows nothing this time is taken up at its next reading."""
        if not lent:
            self._last.clear()
            return
        for reading in readings:
            before_s, before = self._last.get(reading.device, (now_s, reading))
            gained = _between(before, reading, now_s - before_s)
            self._sums[reading.source] = self._sums.get(reading.source, 0.0) + gained
            self._last[reading.device] = (now_s, reading)


def _between(before: Reading, now: Reading, seconds: float) -> float:
    """Joules between two readings of a device, 0 where they cannot be known."""
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
