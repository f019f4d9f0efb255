"""What a review of the plan is given, and what it answers; `planner` makes the one into the other.

What always holds: these are values; a situation is complete, so that the same one can come from a running swarm, from a
recording, or from a simulation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from learner.provisioning.estimation.estimator import SwarmEstimator
from learner.provisioning.model.machine_selection import Candidate
from learner.provisioning.planner.constants import REVIEW_S


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the operator set.

    Args:
        rollouts: R, taken by one training step.
        staleness: S; 0 is sequential.
        kappa: the publication period, None to have it chosen.
        activate: choose who is on; else everybody is, and only the publication period is planned.
        currency: of all prices, for reasons.
        review_s: REVIEW_S, which all that is counted in reviews goes by.

    Raises ValueError for what is out of range.
    """

    rollouts: int
    staleness: int
    kappa: int | None = None
    activate: bool = True
    currency: str = "USD"
    review_s: float = REVIEW_S

    def __post_init__(self) -> None:
        if self.rollouts < 1 or self.staleness < 0:
            raise ValueError(f"R = {self.rollouts} must be at least 1 and S = {self.staleness} at least 0")
        if self.kappa is not None and not 1 <= self.kappa <= max(1, self.staleness):
            raise ValueError(f"kappa = {self.kappa} must be 1 to S = {self.staleness}, 1 for S = 0")
        if not self.review_s > 0:
            raise ValueError(f"review_s = {self.review_s} must be above 0")


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What is known now.

    Args:
        now_s: seconds of a clock that never goes back.
        train_s: T_train, without publication; None as long as there was no step.
        candidates: all peers present, each once; a rate of 0 of an unproven one: nothing is known of it.
        resting: names of those who are present and outside their owners' hours, and so no candidates.
        unproven: names of those whose rate is a prior, since nothing of theirs was admitted yet.
        broadcast_s: so long is the source busy with one version.
        publish_s: so long does a publication hold the learner up.
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
    """Somebody is switched on or off, and why."""

    peer: str
    on: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Who is to be on from now on.

    `share`: what they supply of what the learner takes, 1 is just enough; None where everybody is on whatever it is.
    `price` per hour. `next_review_s`: seconds until the next review is due, sooner when somebody came or left.
    `kappa_reason`: empty while kappa stays.
    """

    active: frozenset[str]
    kappa: int
    changes: tuple[Change, ...]
    share: float | None
    price: float
    next_review_s: float
    kappa_reason: str = ""


def situation_of(observatory: SwarmEstimator, now_s: float) -> Situation:
    """The situation at `now_s`, by the clock of the recording: it follows from that alone, so a running swarm, its
    recording and a simulation of it ask the same. A peer that has nothing admitted to show is unproven."""
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
