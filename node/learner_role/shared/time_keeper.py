"""Measure how the learner spends its time, as seen from the training loop, and record it in the ledger.

Invariants:

- From `begin` on, every second counts as exactly one kind.
- Time is recorded with each training step, every TOLD_S without a step, and at the end. So a kill loses at most TOLD_S.
- `so_far` includes the time of earlier starts of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from learner.ledger.rows import TimeRow
from learner.provisioning.estimation.learner_time import LearnerTime, Stopwatch, TimeKind
from node.learner_role.shared.signals import LearnerSignals

TOLD_S = 30.0
"""Seconds between two records while no step is taken, so that the report shows if nobody works."""


class TimeKeeper:
    """Measures the learner's time by kind. `now_ms` returns milliseconds since 1970."""

    def __init__(self, signals: LearnerSignals, now_ms: Callable[[], int]) -> None:
        self._signals, self._now_ms = signals, now_ms
        self._watch: Stopwatch | None = None
        self._from_ms = 0
        self.so_far = LearnerTime()
        """Time of the whole run, as far as it was recorded or is about to be."""

    def begin(self, so_far: LearnerTime) -> None:
        """Start to measure. `so_far`: the time of the run in the ledger."""
        self.so_far = so_far
        self._from_ms, self._watch = self._now_ms(), Stopwatch(TimeKind.STARTING, trio.current_time())

    def turn(self, kind: TimeKind) -> None:
        """Count time as `kind` from now on."""
        if self._watch is not None:
            self._watch.turn(kind, trio.current_time())

    @contextmanager
    def during(self, kind: TimeKind) -> Iterator[None]:
        """Count time as `kind` while inside, and afterwards as before."""
        before = TimeKind.STARTING if self._watch is None else self._watch.kind
        self.turn(kind)
        try:
            yield
        finally:
            self.turn(before)

    def move(self, source: TimeKind, target: TimeKind, seconds: float) -> None:
        """Move `seconds` from `source` to `target`, see `Stopwatch.move`."""
        if self._watch is not None:
            self._watch.move(source, target, seconds)

    def take(self, step: int) -> TimeRow | None:
        """Return the row of the time since the last call, during training step `step`. The caller must record it."""
        if self._watch is None:
            return None
        from_ms, self._from_ms = self._from_ms, max(self._from_ms, self._now_ms())
        row = TimeRow(from_ms=from_ms, until_ms=self._from_ms, step=step, time=self._watch.take(trio.current_time()))
        self.so_far += row.time
        self._signals.time_passed.emit(row)
        return row
