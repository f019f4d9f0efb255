"""What the learner's time goes into, measured on the line of training and written into the ledger.

What always holds: from `begin` on, every second is of one kind. What has passed is written down with each training
step, every TOLD_S without one, and at the end, so a kill loses TOLD_S at most. `so_far` counts in what earlier starts
of the run wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from learner.ledger.rows import TimeRow
from learner.provisioning.estimation.learner_time import LearnerTime, Stopwatch, TimeKind
from node.learner_role.shared.signals import LearnerSignals

TOLD_S = 30.0
"""As often is written what passes while no step is taken: a swarm in which nobody works shall say so in its report."""


class TimeKeeper:
    """See the module's paragraph. `now_ms` is asked for milliseconds since 1970."""

    def __init__(self, signals: LearnerSignals, now_ms: Callable[[], int]) -> None:
        self._signals, self._now_ms = signals, now_ms
        self._watch: Stopwatch | None = None
        self._from_ms = 0
        self.so_far = LearnerTime()
        """Of the whole run, as far as it was written down, or is about to be."""

    def begin(self, so_far: LearnerTime) -> None:
        """The learner is there, and starts; `so_far` is what the ledger has of the run."""
        self.so_far = so_far
        self._from_ms, self._watch = self._now_ms(), Stopwatch(TimeKind.STARTING, trio.current_time())

    def turn(self, kind: TimeKind) -> None:
        """From now on `kind` passes."""
        if self._watch is not None:
            self._watch.turn(kind, trio.current_time())

    @contextmanager
    def during(self, kind: TimeKind) -> Iterator[None]:
        """`kind` passes while inside, and afterwards what passed before."""
        before = TimeKind.STARTING if self._watch is None else self._watch.kind
        self.turn(kind)
        try:
            yield
        finally:
            self.turn(before)

    def move(self, source: TimeKind, target: TimeKind, seconds: float) -> None:
        """See `Stopwatch.move`."""
        if self._watch is not None:
            self._watch.move(source, target, seconds)

    def take(self, step: int) -> TimeRow | None:
        """What passed since the last time, while the learner was at training step `step`: to be written down."""
        if self._watch is None:
            return None
        from_ms, self._from_ms = self._from_ms, max(self._from_ms, self._now_ms())
        row = TimeRow(from_ms=from_ms, until_ms=self._from_ms, step=step, time=self._watch.take(trio.current_time()))
        self.so_far += row.time
        self._signals.time_passed.emit(row)
        return row
