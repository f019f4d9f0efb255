"""How much of its time the engine that verifies spends on what nobody waits for.

What always holds: after each use it rests until all uses that nobody waited for were `share` of the time, and those
that nothing gave a reason for ROUTINE_SHARE of it, so that audits at the floor share and these take less than a
twentieth of what the learner computes (`benchmarks/audit_cost.py`). It only counts; who uses the engine asks it first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import trio

ROUTINE_SHARE = 0.01
"""Of the time, for looks at peers that nothing speaks against; audits at the floor share take about as much again."""


@dataclass(kw_only=True)
class EngineBudget:
    """See the module's paragraph; times are trio's, in seconds. `routine`: share of what nothing gave a reason for."""

    share: float
    routine: float = ROUTINE_SHARE
    _free_s: float = -math.inf
    _routine_s: float = -math.inf

    def rest_s(self, *, routine: bool = False) -> float:
        """For how long nothing that nobody waits for may begin, or nothing that is routine."""
        free_s = max(self._free_s, self._routine_s) if routine else self._free_s
        return max(0.0, free_s - trio.current_time())

    def spend(self, seconds: float, *, routine: bool = False) -> None:
        """It was used for so long, until now, by something that nobody waited for."""
        began_s = trio.current_time() - seconds
        self._free_s = max(self._free_s, began_s) + seconds / self.share  # another may have used it just before
        if routine:
            self._routine_s = max(self._routine_s, began_s) + seconds / min(self.share, self.routine)
