"""Limit the fraction of time that the evaluation engine spends on background audits, which block no training.

It only counts. Code that uses the engine must ask it first.

Invariants:

- After each background use, the engine pauses until all such uses together are `share` of the time.
- Routine checks, which no evidence calls for, are at most ROUTINE_SHARE of the time. Together with audits at the floor
  share they take less than a twentieth of the learner's computing time (`benchmarks/audit_cost.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import trio

ROUTINE_SHARE = 0.01
"""Fraction of time for checks of peers without evidence against them. Audits at the floor share take about as much."""


@dataclass(kw_only=True)
class EngineBudget:
    """The budget of one engine. Times are trio's, in seconds.

    `share`: fraction of time for all background uses. `routine`: fraction of time for routine checks.
    """

    share: float
    routine: float = ROUTINE_SHARE
    _free_s: float = -math.inf
    _routine_s: float = -math.inf

    def rest_s(self, *, routine: bool = False) -> float:
        """Return the seconds for which no background use may begin, or no `routine` one."""
        free_s = max(self._free_s, self._routine_s) if routine else self._free_s
        return max(0.0, free_s - trio.current_time())

    def spend(self, seconds: float, *, routine: bool = False) -> None:
        """Count a background use of `seconds` that ends now."""
        began_s = trio.current_time() - seconds
        self._free_s = max(self._free_s, began_s) + seconds / self.share  # another use may have been just before
        if routine:
            self._routine_s = max(self._routine_s, began_s) + seconds / min(self.share, self.routine)
