"""Measure how long the event loop makes others wait: figures of the last minute, and since the start.

A pure core. A turn of the loop is what it does between two checks of its sockets and timers. An event that comes
meanwhile waits for the end of the turn. A random moment falls into a long turn more often than into a short one, so the
percentile counts moments and not turns: with turns of length L_i in T seconds, P(wait > x) = sum (L_i - x)+ / T.

Invariants:

- Memory and time are bounded, no matter how long the loop runs.
- The longest turn of the last minute is exact. The percentile is rounded up, by a few percent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

LEAST_S = 0.001
"""Seconds below which turns are not counted: nobody notices them, and there are thousands a second."""

EDGES_S = tuple(LEAST_S * 2 ** (number / 4) for number in range(81))
"""Bounds between classes of turns by length, in seconds: four per doubling, up to a quarter of an hour."""

SLOT_S, SLOTS = 5.0, 12
"""The last minute in slots of SLOT_S seconds. The oldest slot is forgotten as a whole."""

TAIL = 0.01
"""Fraction of moments that wait longer than the percentile."""


@dataclass(frozen=True, kw_only=True)
class LoopFigures:
    """How long the event loop makes others wait, in seconds.

    Args:
        p99_s: longest wait of 99 of 100 moments in the last minute.
        longest_s: longest turn in the last minute.
        step_cpu_s: processor time of the costliest task step in the last minute.
        worst_s: longest turn since the start.
        worst_cpu_s: processor time of the costliest task step since the start.
        culprit: the task step that held the loop for the longest time since the start; "" if none did for long.
    """

    p99_s: float = 0.0
    longest_s: float = 0.0
    step_cpu_s: float = 0.0
    worst_s: float = 0.0
    worst_cpu_s: float = 0.0
    culprit: str = ""


@dataclass(kw_only=True, slots=True)
class _Slot:
    """Turns by length, and the largest values, of one slot."""

    counts: list[int] = field(default_factory=lambda: [0] * len(EDGES_S))
    sums_s: list[float] = field(default_factory=lambda: [0.0] * len(EDGES_S))
    longest_s: float = 0.0
    step_cpu_s: float = 0.0


@dataclass(kw_only=True)
class LoopDelay:
    """Record turns and steps. Times are of one steady clock, in seconds; `began_s` is the start."""

    began_s: float
    worst_s: float = 0.0
    worst_cpu_s: float = 0.0
    _slots: deque[_Slot] = field(default_factory=lambda: deque([_Slot()], maxlen=SLOTS))
    _slot_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._slot_s = self.began_s

    def turned(self, length_s: float, now_s: float) -> None:
        """Record a turn that has ended."""
        if length_s < LEAST_S:
            return
        self._go_on(now_s)
        slot, place = self._slots[-1], bisect_right(EDGES_S, length_s) - 1
        slot.counts[place] += 1
        slot.sums_s[place] += length_s
        slot.longest_s = max(slot.longest_s, length_s)
        self.worst_s = max(self.worst_s, length_s)

    def stepped(self, cpu_s: float, now_s: float) -> None:
        """Record a task step that has ended, with its processor time."""
        self._go_on(now_s)
        self._slots[-1].step_cpu_s = max(self._slots[-1].step_cpu_s, cpu_s)
        self.worst_cpu_s = max(self.worst_cpu_s, cpu_s)

    def figures(self, now_s: float, culprit: str = "") -> LoopFigures:
        """Return the figures now."""
        self._go_on(now_s)
        return LoopFigures(
            p99_s=self._percentile(now_s),
            longest_s=max(slot.longest_s for slot in self._slots),
            step_cpu_s=max(slot.step_cpu_s for slot in self._slots),
            worst_s=self.worst_s,
            worst_cpu_s=self.worst_cpu_s,
            culprit=culprit,
        )

    def _percentile(self, now_s: float) -> float:
        """Return the longest wait of all but TAIL of the moments; LEAST_S if it is less."""
        window_s = max(LEAST_S, min(now_s - self.began_s, (SLOTS - 1) * SLOT_S + now_s - self._slot_s))
        count, total_s, above_s, above = 0, 0.0, 0.0, EDGES_S[-1]
        for place in reversed(range(len(EDGES_S))):
            count += sum(slot.counts[place] for slot in self._slots)
            total_s += sum(slot.sums_s[place] for slot in self._slots)
            edge_s, waits_s = EDGES_S[place], total_s - count * EDGES_S[place]  # moments that wait longer than the edge
            if waits_s > TAIL * window_s:
                return edge_s + (above - edge_s) * (waits_s - TAIL * window_s) / max(waits_s - above_s, 1e-12)
            above_s, above = waits_s, edge_s
        return LEAST_S if count else 0.0

    def _go_on(self, now_s: float) -> None:
        """Make the slot of this moment the last one."""
        if (missed := int((now_s - self._slot_s) / SLOT_S)) <= 0:
            return
        self._slots.extend(_Slot() for _ in range(min(missed, SLOTS)))
        self._slot_s += missed * SLOT_S
