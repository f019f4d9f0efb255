"""What the learner remembers of a peer that works, and why a request of one waits.

What always holds: nothing here decides; `learner.scheduling.lease_scheduler` does, and keeps these true.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from learner.scheduling.batch_speed import Speed
from protocol.core.ids import PolicyVersion


class Held(Enum):
    """Why a request waits, which is also what it waits for."""

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
    """Leases that a peer began to generate at the same time; `longest` is what they were thought to take at the most,
    over what is usual."""

    began_ms: int
    rollouts: int = 0
    left: int = 0
    longest: float = 0.0

    def usual_s(self, now_ms: int) -> float:
        """How long they would have taken until now, had they been usual."""
        return (now_ms - self.began_ms) / 1000 / (self.longest or 1.0)


@dataclass(kw_only=True, slots=True)
class Worker:
    """A peer: what it has installed by its own word, and what it has `used`; how fast it is, when it will have done
    what it holds, why it stands by if so, when its owner's hours end (that is past while it is outside them), how many
    of its rollouts may be under way, leased or held until their audit, at a time, and whether it goes on with
    completions that others began.
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
        """The newest version that it is known to have: its next leases ask for no older one, so that whoever has used a
        version cannot choose among those before it any more."""
        return max((version for version in (self.installed, self.used) if version is not None), default=None)
