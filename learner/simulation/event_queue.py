"""Run actions in virtual time, in order.

Invariants:

- Time never goes back.
- Actions that are due at the same moment run in the order in which they were added, so that the same seed gives the
  same run.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count


class Calendar:
    """Actions, each with its time. `now_s` is the time since the beginning."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    @property
    def now_ms(self) -> int:
        """The time as messages have it."""
        return round(1000 * self.now_s)

    @property
    def is_empty(self) -> bool:
        """Whether no action is left."""
        return not self._queue

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run the action after `delay_s`; never, if that is infinite."""
        if delay_s < math.inf:
            heapq.heappush(self._queue, (self.now_s + delay_s, next(self._order), action))

    def go_on(self, until_s: float, is_over: Callable[[], bool]) -> None:
        """Run actions until `until_s`, or until it `is_over`."""
        while self._queue and not is_over():
            if self._queue[0][0] > until_s:
                self.now_s = until_s
                break
            self.now_s, _, action = heapq.heappop(self._queue)
            action()
