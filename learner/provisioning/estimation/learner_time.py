"""Divide the learner's time into kinds that add up to the wall clock.

Pure. Reports, pages, plans and simulations all take from `LearnerTime` how busy a learner was. "Utilisation" is
training time over wall time. "Bubble" is ECHO-2's (arXiv 2602.02192): the share of the time of training steps in which
the learner waited for rollouts.

Invariants:

- Exactly one kind passes at every moment, so the kinds of a stretch of time add up to its length.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class TimeKind(StrEnum):
    """The kinds of time. The words are those of recordings, ledgers and reports."""

    TRAINING = "training"
    """The trainer runs a training step."""
    WAITING = "waiting"
    """The learner waits for rollouts: no batch is complete."""
    PUBLICATION = "publication"
    """Training could go on, but waits for the publication of a version."""
    CHECKPOINT = "checkpoint"
    """Training could go on, but waits for a checkpoint."""
    EVALUATION = "evaluation"
    """Training is over, and the last version is evaluated. Other evaluations run beside training."""
    BATCH = "batch"
    """A batch is made into arrays and sent to the trainer, and its numbers are sent back."""
    LEDGER = "ledger"
    """A training step is written to the ledger."""
    STARTING = "starting"
    """The model is loaded, the newest checkpoint restored, the run tried out, the first version published."""
    ENDING = "ending"
    """The learner says farewell to its peers."""
    UNDIVIDED = "undivided"
    """Training steps of a recording without kinds: training, publication and checkpoints together."""
    UNTOLD = "untold"
    """All but training and waiting, in a run whose program did not record kinds."""


BLOCKED = (TimeKind.PUBLICATION, TimeKind.CHECKPOINT)

OF_STEPS = (TimeKind.TRAINING, TimeKind.WAITING, *BLOCKED, TimeKind.BATCH, TimeKind.LEDGER, TimeKind.UNDIVIDED)
"""The kinds that pass from one training step to the next."""

OTHER = tuple(
    kind for kind in TimeKind if kind not in (TimeKind.TRAINING, TimeKind.WAITING, *BLOCKED, TimeKind.EVALUATION)
)
"""Kinds that reports show together as "other", and then by name."""


@dataclass(frozen=True)
class LearnerTime:
    """Seconds of each kind; kinds with none are left out."""

    seconds: Mapping[TimeKind, float] = field(default_factory=dict)

    @property
    def wall_s(self) -> float:
        """The sum of all kinds: how long the learner ran."""
        return math.fsum(self.seconds.values())

    def of(self, *kinds: TimeKind) -> float:
        """Return the seconds of these kinds together."""
        return math.fsum(self.seconds.get(kind, 0.0) for kind in kinds)

    def share(self, *kinds: TimeKind) -> float | None:
        """Return the share of these kinds in the wall time, 0 to 1; None if no time has passed."""
        wall_s = self.wall_s
        return self.of(*kinds) / wall_s if wall_s > 0 else None

    @property
    def utilisation(self) -> float | None:
        """Training time over wall time, 0 to 1; None if no time has passed, or it is not known how much of it was
        training."""
        return None if self.of(TimeKind.UNDIVIDED) else self.share(TimeKind.TRAINING)

    @property
    def blocked(self) -> float | None:
        """Share of the wall time in which publication or a checkpoint kept the trainer from training; None if that is
        not known."""
        return None if self.of(TimeKind.UNDIVIDED, TimeKind.UNTOLD) else self.share(*BLOCKED)

    @property
    def bubble(self) -> float | None:
        """ECHO-2's bubble ratio, 0 to 1: the share of the time of training steps that was spent waiting for rollouts.
        None without a training step, or if it is not known what belongs to one."""
        of_steps = self.of(*OF_STEPS)
        known = self.of(TimeKind.TRAINING, TimeKind.UNDIVIDED) > 0 and not self.of(TimeKind.UNTOLD)
        return self.of(TimeKind.WAITING) / of_steps if known else None

    def __add__(self, other: LearnerTime) -> LearnerTime:
        return summed([self, other])


def summed(times: Iterable[LearnerTime]) -> LearnerTime:
    """Return the sum of these times."""
    found: dict[TimeKind, list[float]] = {}
    for time in times:
        for kind, seconds in time.seconds.items():
            found.setdefault(kind, []).append(seconds)
    return LearnerTime({kind: math.fsum(found[kind]) for kind in TimeKind if kind in found})


def read_time(told: Mapping[str, float]) -> LearnerTime:
    """Return the inverse of `told_time`. A kind that only a newer program knows counts as untold."""
    found: defaultdict[TimeKind, float] = defaultdict(float)
    for name, seconds in told.items():
        found[TimeKind(name) if name in _NAMES else TimeKind.UNTOLD] += seconds
    return summed([LearnerTime(found)])


def seconds_by_kind(time: LearnerTime) -> dict[str, float]:
    """Return the seconds by the words of the kinds, for files."""
    return {kind.value: round(seconds, 6) for kind, seconds in time.seconds.items()}


_NAMES = frozenset(TimeKind)


class Stopwatch:
    """Measures which kind passes now, and how much of each has passed since the last `take`. `now_s` never falls."""

    def __init__(self, kind: TimeKind, now_s: float) -> None:
        self.kind = kind
        self._since_s = now_s
        self._passed: defaultdict[TimeKind, float] = defaultdict(float)

    def turn(self, kind: TimeKind, now_s: float) -> None:
        """Let `kind` pass from now on."""
        self._note(now_s)
        self.kind = kind

    def move(self, source: TimeKind, target: TimeKind, seconds: float) -> None:
        """Count `seconds` that passed as `source` as `target`: at most what `source` has since the last `take`."""
        moved = max(0.0, min(seconds, self._passed[source]))
        self._passed[source] -= moved
        self._passed[target] += moved

    def take(self, now_s: float) -> LearnerTime:
        """Return what passed since the last call."""
        self._note(now_s)
        passed, self._passed = self._passed, defaultdict(float)
        return LearnerTime({kind: passed[kind] for kind in TimeKind if passed[kind] > 0})

    def _note(self, now_s: float) -> None:
        self._passed[self.kind] += now_s - self._since_s
        self._since_s = now_s
