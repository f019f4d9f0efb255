"""Choose problems of a task without end, at a difficulty that rises with recent success.

A pure core. A lucky streak raises the difficulty by one level at most, and `REHEARSAL` keeps the lower levels in the
mixture.

Invariants:

- Each ordinal, and so each index, is given once.
- `state()` is a plain JSON object. A cursor that is restored from it continues with exactly the same indexes.
- The difficulty rises one level at a time and never falls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from learner.curriculum.problem_index import index_at, place_of

WINDOW = 32
"""Groups that a decision about the level rests on: two training steps of 16 prompts, so that chance moves the mean by a
few percent only."""

MASTERED = 0.8
"""Pass rate over the window at which the next level begins. Above it, most groups are all right and teach nothing."""

REHEARSAL = 4
"""Every fourth problem comes from a lower level, so that the policy does not lose what it learned there."""

MEMORY = 1 / WINDOW
"""Weight of the newest group in a level's reported pass rate, once the level has WINDOW groups. Before that, the rate
is the mean of its groups."""

SETTLED = 8
"""Groups of a level before its best pass rate is kept. A rate over fewer groups could come from a few lucky prompts."""


@dataclass(kw_only=True)
class LevelCursor:
    """The position in one generated task: which problem is next, and how well each level went.

    `ordinal` counts the problems given. `recent` holds the pass rates at `level`. For each level that was given,
    `rates` holds the moving mean of its pass rates, `best` the highest value of that mean, and `seen` its groups,
    counted up to WINDOW.
    """

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
        """Return the next `count` indexes, if nothing is observed meanwhile."""
        return [self._index(ordinal) for ordinal in range(self.ordinal, self.ordinal + count)]

    def _index(self, ordinal: int) -> int:
        if self.level > 0 and ordinal % REHEARSAL == 0:
            return index_at(ordinal, ordinal // REHEARSAL % self.level, self.levels)
        return index_at(ordinal, self.level, self.levels)

    def observe(self, index: int, pass_rate: float) -> None:
        """Record the pass rate of a finished group. Groups of other levels do not change the current level."""
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
        """Return the highest mean pass rate that this problem's level has reached, not counting its first groups."""
        return self.best.get(place_of(index, self.levels)[1])

    def alike(self, index: int) -> tuple[int, int]:
        """Return the index itself, since no problem comes twice, and its level, since the problems of a level are of
        one kind."""
        return index, place_of(index, self.levels)[1]

    def state(self) -> dict[str, Any]:
        """Return the whole state, for a checkpoint: at most WINDOW numbers, and three for each level."""
        return {
            "ordinal": self.ordinal,
            "level": self.level,
            "recent": list(self.recent),
            "rates": {str(level): rate for level, rate in self.rates.items()},
            "best": {str(level): rate for level, rate in self.best.items()},
            "seen": {str(level): count for level, count in self.seen.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same task."""
        self.ordinal, self.level = int(state["ordinal"]), int(state["level"])
        self.recent = deque((float(rate) for rate in state["recent"]), maxlen=WINDOW)
        self.rates = {int(level): float(rate) for level, rate in state["rates"].items()}
        # A state from before `best` and `seen` existed has the rates only.
        self.best = {int(level): float(rate) for level, rate in state.get("best", state["rates"]).items()}
        self.seen = {int(level): int(state.get("seen", {}).get(level, WINDOW)) for level in state["rates"]}

    def standing(self) -> dict[str, float]:
        """Return the numbers for reports: problems given, the level, and the pass rate of each level that was given."""
        rates = {f"rate_{level}": round(rate, 4) for level, rate in sorted(self.rates.items())}
        return {"given": self.ordinal, "level": self.level, **rates}
