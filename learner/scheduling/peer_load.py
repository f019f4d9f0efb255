"""Define what the learner remembers of a working peer, and why a peer's request waits.

Invariants:

- Nothing here decides; `learner.scheduling.lease_scheduler` does, and keeps these values true.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from learner.scheduling.batch_speed import Speed
from protocol.core.ids import PolicyVersion


class Held(Enum):
    """Why a request waits; each value names what it waits for."""

    STANDBY = "standing by"
    HOURS = "its owner's hours"
    DEBT = "its leases to bring a record"
    VERSION = "the next version"
    AUDIT = "audits of what it delivered"
    SHARE = "training on what it delivered"
    ROOM = "a batch to be taken"
    PROMPT = "the next prompts to be written"


@dataclass(kw_only=True, slots=True)
class Together:
    """Leases that a peer began to generate at the same time. `longest` is the largest predicted length among them,
    relative to the mean."""

    began_ms: int
    rollouts: int = 0
    left: int = 0
    longest: float = 0.0

    def usual_s(self, now_ms: int) -> float:
        """Return how long they would have taken until now, if they were usual."""
        return (now_ms - self.began_ms) / 1000 / (self.longest or 1.0)


@dataclass(kw_only=True, slots=True)
class Worker:
    """A peer that works.

    `installed` is the version that it says it has; `used` is the newest version in its records. `standby` is why it is
    on standby, "" if it is active. `until_ms` is when its owner's hours end; it is past while the peer is outside them.
    `quota` is how many of its rollouts may be under way at a time, leased or held until their audit. `takes_parts` is
    whether it continues completions that others began.
    """

    installed: PolicyVersion | None = None
    used: PolicyVersion | None = None
    speed: Speed = field(default_factory=Speed)
    free_ms: float = 0.0
    asked: int = 0
    standby: str = ""
    until_ms: float = math.inf
    quota: float = math.inf
    newest: Together | None = None
    takes_parts: bool = False

    @property
    def has(self) -> PolicyVersion | None:
        """The newest version that it is known to have. Its next leases ask for no older one, so that a peer that has
        used a version can no longer choose among those before it."""
        return max((version for version in (self.installed, self.used) if version is not None), default=None)
