"""Virtual time: what is to happen, in order.

What always holds: time never goes back; what is due at the same moment happens in the order in which it was written
down, so that the same seed gives the same run.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count


class Calendar:
    """Actions, each with its time. `now_s` is since the beginning."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    @property
    def now_ms(self) -> int:
        """As messages have it."""
        return round(1000 * self.now_s)

    @property
    def is_empty(self) -> bool:
        """Nothing is to happen any more."""
        return not self._queue

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do it then; after infinity, never."""
        if delay_s < math.inf:
            heapq.heappush(self._queue, (self.now_s + delay_s, next(self._order), action))

    def go_on(self, until_s: float, is_over: Callable[[], bool]) -> None:
        """Let happen what is to, until then or until it `is_over`."""
        while self._queue and not is_over():
            if self._queue[0][0] > until_s:
                self.now_s = until_s
                break
            self.now_s, _, action = heapq.heappop(self._queue)
            action()
