"""Define the input and the result of a review of the plan; `planner` turns the one into the other.

Invariants:

- These are values.
- A situation is complete, so that a running swarm, a recording and a simulation can give the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from learner.provisioning.estimation.estimator import SwarmEstimator
from learner.provisioning.model.machine_selection import Candidate
from learner.provisioning.planner.constants import REVIEW_S


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The operator's settings.

    Args:
        rollouts: R, taken by one training step.
        staleness: S; 0 is sequential.
        kappa: the publication period; None lets the planner choose it.
        activate: whether to choose the active peers; if not, all are active, and only the publication period is
            planned.
        currency: of all prices, for reasons.
        review_s: seconds between two reviews (REVIEW_S), the unit of all that is counted in reviews.

    Raises ValueError for a value that is out of range.
    """

    rollouts: int
    staleness: int
    kappa: int | None = None
    activate: bool = True
    currency: str = "USD"
    review_s: float = REVIEW_S

    def __post_init__(self) -> None:
        if self.rollouts < 1 or self.staleness < 0:
            raise ValueError(f"R = {self.rollouts} must be at least 1, and S = {self.staleness} at least 0")
        if self.kappa is not None and not 1 <= self.kappa <= max(1, self.staleness):
            raise ValueError(f"kappa = {self.kappa} must be between 1 and S = {self.staleness}, and 1 for S = 0")
        if not self.review_s > 0:
            raise ValueError(f"review_s = {self.review_s} must be above 0")


@dataclass(frozen=True, kw_only=True)
class Situation:
    """All that is known now.

    Args:
        now_s: seconds of a clock that never goes back.
        train_s: T_train, without publication; None as long as there was no step.
        candidates: all peers present, each once. A rate of 0 of an unproven one means that nothing is known of it.
        resting: names of peers that are present and outside their owners' hours, and so no candidates.
        unproven: names of peers whose rate is a promise, since nothing of theirs was admitted yet.
        broadcast_s: seconds for which the source is busy with one version.
        publish_s: seconds for which a publication holds the learner up.
    """

    now_s: float
    train_s: float | None
    candidates: Sequence[Candidate]
    unproven: Collection[str] = frozenset()
    resting: Collection[str] = frozenset()
    broadcast_s: float = 0.0
    publish_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Change:
    """A peer is activated or deactivated, and why."""

    peer: str
    active: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The active peers from now on.

    `share` is what they supply of what the learner takes, 1 being just enough; None if all are active for another
    reason. `price` is per hour. `next_review_s` is the time until the next review is due; it is due sooner if a peer
    comes or leaves. `kappa_reason` is empty while kappa stays.
    """

    active: frozenset[str]
    kappa: int
    changes: tuple[Change, ...]
    share: float | None
    price: float
    next_review_s: float
    kappa_reason: str = ""


def situation_of(observatory: SwarmEstimator, now_s: float) -> Situation:
    """Return the situation at `now_s`, by the clock of the recording. It depends on nothing else, so a running swarm,
    its recording and a simulation of it get the same. A peer with nothing admitted is unproven."""
    step, publish = observatory.step_s, observatory.publish_s
    return Situation(
        now_s=now_s,
        train_s=step.value if step is not None and step.value > 0 else None,
        candidates=observatory.candidates(now_s),
        resting=observatory.resting(now_s),
        unproven=frozenset(
            one.peer for one in observatory.profiles() if (shown := one.shown_rate) is None or shown.value <= 0
        ),
        broadcast_s=observatory.source_s or 0.0,
        publish_s=publish.value if publish is not None else 0.0,
    )
