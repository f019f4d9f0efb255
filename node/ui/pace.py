"""Tell how fast a run's training steps come, and how long the rest takes. Pure: it is told each step and its time.

The terminal and the live page show the same figures, so they are computed here alone.

Invariant: it stays bounded however long the run is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

MOMENTS = 33
"""Training steps whose times give the pace: enough for a median that a publication or an evaluation does not move."""


@dataclass(kw_only=True)
class Pace:
    """The times of the last training steps."""

    _moments: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=MOMENTS))

    def take(self, at_s: float, step: int) -> None:
        """Note that `step` was taken at `at_s`, in seconds since any moment."""
        if self._moments and step <= self._moments[-1][1]:
            self._moments.clear()  # a restart took steps back
        if self._moments and at_s <= self._moments[-1][0]:
            self._moments.pop()  # the clock is coarse: both steps count from the same moment
        self._moments.append((at_s, step))

    def begin_again(self) -> None:
        """Forget the steps so far: the time until the next one is no step's."""
        self._moments.clear()

    @property
    def step_s(self) -> float | None:
        """The median seconds from one training step to the next; None before the second."""
        gaps = [(later - earlier) / (to - since) for (earlier, since), (later, to) in pairwise(self._moments)]
        return median(gaps) if gaps else None

    def left_s(self, step: int, steps: int) -> float | None:
        """Return the seconds from `step` to the last of `steps` at this pace; None if that is not known."""
        if (step_s := self.step_s) is None or not steps:
            return None
        return step_s * max(0, steps - step)
