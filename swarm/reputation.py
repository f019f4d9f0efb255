"""Observations in, scores out: how far a peer may be relied upon.

A plain function of counts. Availability is the share of the time since it first joined that a peer was here;
timeliness the share of its leases that came back in time; honesty the share of its judged records that no rule blamed
it for. Staleness is nobody's fault and counts nowhere. What always holds: every share lies in [0, 1] and is 1 for a
peer of whom nothing is known; timeliness and honesty start from a prior of one good observation, so that a newcomer
is neither trusted nor condemned; size does not enter, so a slow volunteer is judged like a fast one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.errors import Fault
from protocol.ids import PeerId

PRIOR = 1.0
"""Good observations everybody starts with: one bad one then halves a newcomer's share, and hardly moves a veteran's."""

Report = Callable[[PeerId, Fault, str], None]
"""Told of a peer's fault: who, what kind, and a sentence."""


def unreported(peer: PeerId, fault: Fault, detail: str) -> None:
    """A `Report` for those who keep none."""


@dataclass(frozen=True, kw_only=True)
class Observations:
    """What was seen of one peer. Times in seconds."""

    present_s: float
    known_s: float
    leases_in_time: int
    leases_failed: int
    records_honest: int
    records_blamed: int


@dataclass(frozen=True, kw_only=True)
class Reputation:
    """Three shares in [0, 1], and their product."""

    availability: float
    timeliness: float
    honesty: float

    @property
    def score(self) -> float:
        return self.availability * self.timeliness * self.honesty


def reputation_of(seen: Observations) -> Reputation:
    """Return the reputation that follows from what was seen."""
    return Reputation(
        availability=min(1.0, max(0.0, seen.present_s) / seen.known_s) if seen.known_s > 0 else 1.0,
        timeliness=_share(seen.leases_in_time, seen.leases_failed),
        honesty=_share(seen.records_honest, seen.records_blamed),
    )


def _share(good: int, bad: int) -> float:
    return (good + PRIOR) / (good + bad + PRIOR)
