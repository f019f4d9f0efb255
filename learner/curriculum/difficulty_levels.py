"""A cursor over a task without end: each ordinal once, at a difficulty that rises with recent success.

A pure core. What always holds: no index is given twice; `state()` is a plain JSON object, and a cursor that is given it
goes on with the very same indexes; the difficulty rises one level at a time and never falls, so a lucky streak costs
one level of patience at most (`REHEARSAL` keeps the lower levels in the mixture)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from learner.curriculum.problem_index import index_at, place_of

WINDOW = 32
"""Groups that a judgement rests on: two training steps of 16 prompts, so that chance moves the mean a few percent."""

MASTERED = 0.8
"""Pass rate over the window at which the next level begins: above it most groups are all right and teach nothing."""

REHEARSAL = 4
"""Every fourth problem comes from a lower level, so that what was learnt is not lost."""

MEMORY = 1 / WINDOW
"""Weight of one group in the pass rate that is told of its level, once there were so many; before it is their mean."""

SETTLED = 8
"""Groups of a level after which its pass rate is no longer that of a few lucky prompts, and its best may be kept."""


@dataclass(kw_only=True)
class LevelCursor:
    """See the module's paragraph. `ordinal` counts the problems given, `recent` holds pass rates at `level`, `rates`
    those of every level that was asked, as moving means, `best` the highest that those were, `seen` how many groups of
    each there were, counted up to WINDOW."""

    levels: int
    ordinal: int = 0
    level: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    rates: dict[int, float] = field(default_factory=dict)
    best: dict[int, float] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)

    def next_index(self) -> int:
        [index] = self.upcoming(1)
        self.ordinal += 1
        return index

    def upcoming(self, count: int) -> list[int]:
        """The next `count` indexes, if nothing is observed meanwhile."""
        return [self._index(ordinal) for ordinal in range(self.ordinal, self.ordinal + count)]

    def _index(self, ordinal: int) -> int:
        if self.level > 0 and ordinal % REHEARSAL == 0:
            return index_at(ordinal, ordinal // REHEARSAL % self.level, self.levels)
        return index_at(ordinal, self.level, self.levels)

    def observe(self, index: int, pass_rate: float) -> None:
        """Take note of a finished group. Those of other levels do not move the level."""
        _, level = place_of(index, self.levels)
        seen = self.seen[level] = min(self.seen.get(level, 0) + 1, WINDOW)
        before = self.rates.get(level, pass_rate)
        rate = self.rates[level] = before + max(MEMORY, 1 / seen) * (pass_rate - before)
        self.best[level] = rate if seen <= SETTLED else max(rate, self.best[level])
        if level != self.level:
            return
        self.recent.append(pass_rate)
        if self.level + 1 < self.levels and len(self.recent) == WINDOW and sum(self.recent) >= MASTERED * WINDOW:
            self.level += 1
            self.recent.clear()

    def expected(self, index: int) -> float | None:
        """The highest pass rate that the level of that problem has had, its first groups aside."""
        return self.best.get(place_of(index, self.levels)[1])

    def alike(self, index: int) -> tuple[int, int]:
        """No problem comes twice; those of a level are of one kind."""
        return index, place_of(index, self.levels)[1]

    def state(self) -> dict[str, Any]:
        """All of it, for a checkpoint: at most WINDOW numbers and three for each level."""
        return {
            "ordinal": self.ordinal,
            "level": self.level,
            "recent": list(self.recent),
            "rates": {str(level): rate for level, rate in self.rates.items()},
            "best": {str(level): rate for level, rate in self.best.items()},
            "seen": {str(level): count for level, count in self.seen.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same task."""
        self.ordinal, self.level = int(state["ordinal"]), int(state["level"])
        self.recent = deque((float(rate) for rate in state["recent"]), maxlen=WINDOW)
        self.rates = {int(level): float(rate) for level, rate in state["rates"].items()}
        # A state of before these were kept has the rates alone.
        self.best = {int(level): float(rate) for level, rate in state.get("best", state["rates"]).items()}
        self.seen = {int(level): int(state.get("seen", {}).get(level, WINDOW)) for level in state["rates"]}

    def standing(self) -> dict[str, float]:
        """What is told of it: problems given, and the pass rate of each level that was asked."""
        rates = {f"rate_{level}": round(rate, 4) for level, rate in sorted(self.rates.items())}
        return {"given": self.ordinal, "level": self.level, **rates}
