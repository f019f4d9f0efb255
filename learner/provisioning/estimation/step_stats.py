"""Compute waits, lags and losses of training steps, to compare them with what was predicted.

Pure.

Invariants:

- A share is of what was counted; if nothing was counted, it is 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from learner.provisioning.estimation.learner_time import LearnerTime, TimeKind, read_time, summed
from learner.provisioning.estimation.recording import Began, Passed, Recorded, Stepped


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A number of training steps: the seconds that they waited and were busy, the kinds of all their time, and their
    rollouts by lag. `stale` rollouts were dropped."""

    count: int
    waited_s: float
    busy_s: float
    time: LearnerTime
    lags: Mapping[int, int]
    stale: int

    @property
    def bubble(self) -> float:
        """The share of its time that the learner waited, see `LearnerTime.bubble`."""
        return self.time.bubble or 0.0

    @property
    def train_s(self) -> float:
        """The mean time that a step was busy, to compare waits with."""
        return self.busy_s / self.count if self.count else 0.0

    @property
    def lag(self) -> float:
        """The mean lag, in training steps."""
        return sum(lag * count for lag, count in self.lags.items()) / (sum(self.lags.values()) or 1)

    @property
    def shares(self) -> dict[int, float]:
        """The share of each lag in the rollouts that were trained on; empty if there were none."""
        trained = sum(self.lags.values())
        return {lag: count / trained for lag, count in self.lags.items() if trained}

    @property
    def wait_s(self) -> float | None:
        """The mean wait of a step; None without a step."""
        return self.waited_s / self.count if self.count else None

    @property
    def step_s(self) -> float | None:
        """The mean time from one step to the next; None without a step."""
        return (self.waited_s + self.busy_s) / self.count if self.count else None

    @property
    def stale_share(self) -> float:
        """The share of the admitted rollouts that was too old when a batch formed."""
        total = self.stale + sum(self.lags.values())
        return self.stale / total if total else 0.0


def steps_of(events: Iterable[Stepped]) -> Steps:
    """Return these steps together."""
    steps = list(events)
    lags: Counter[int] = Counter()
    for step in steps:
        lags.update(step.lags)
    return Steps(
        count=len(steps),
        waited_s=math.fsum(step.waited_s for step in steps),
        busy_s=math.fsum(step.busy_s for step in steps),
        time=summed(map(time_of_step, steps)),
        lags=dict(sorted(lags.items())),
        stale=sum(step.stale for step in steps),
    )


def time_of_step(step: Stepped) -> LearnerTime:
    """Return the kinds of a step's time. For a recording without kinds, return waiting and the rest."""
    if step.time:
        return read_time(step.time)
    return LearnerTime({TimeKind.WAITING: step.waited_s, TimeKind.UNDIVIDED: step.busy_s})


def time_of_run(events: Iterable[Recorded]) -> LearnerTime:
    """Return the kinds of the learner's time, without the pauses between its starts."""
    parts: list[LearnerTime] = []
    before_s, untold_s = 0.0, 0.0
    tells = True
    for event in events:
        if isinstance(event, Began):
            before_s, tells = event.at_s, event.format > 1
        if not tells:
            untold_s, before_s = untold_s + event.at_s - before_s, event.at_s
        match event:
            case Stepped():
                parts.append(time_of_step(event))
                untold_s -= 0.0 if tells else event.waited_s + event.busy_s
            case Passed():
                parts.append(read_time(event.time))
    return summed([*parts, LearnerTime({TimeKind.UNTOLD: untold_s} if untold_s > 0 else {})])


def steady(events: Iterable[Recorded]) -> tuple[list[Stepped], int]:
    """Return the steps without the first S + 1 of every start, whose waits are for machines to come at all, and how
    many steps that leaves out. Return all of them if less than half would remain."""
    everything: list[Stepped] = []
    kept: list[Stepped] = []
    ahead = 0
    for event in events:
        match event:
            case Began():
                ahead = event.staleness + 1
            case Stepped():
                everything.append(event)
                ahead -= 1
                if ahead < 0:
                    kept.append(event)
    chosen = kept if 2 * len(kept) >= len(everything) else everything
    return chosen, len(everything) - len(chosen)


def seconds(events: Iterable[Recorded]) -> float:
    """Return how long the run took, without the pauses between its starts."""
    total, began_s, before_s = 0.0, 0.0, 0.0
    for event in events:
        if isinstance(event, Began):
            total += before_s - began_s
            began_s = event.at_s
        before_s = event.at_s
    return total + before_s - began_s
