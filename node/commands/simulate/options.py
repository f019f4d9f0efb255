"""What `volery simulate` can be asked by a number or a mode, and within which bounds."""

from __future__ import annotations

from enum import Enum

from node.commands.plan.pool_keys import OPTIONS as OF_PLANS
from node.commands.plan.pool_keys import Key

MOST_HOURS = 10_000


class Mode(Enum):
    """How learner and machines work together."""

    ASYNC = "async"
    SEQUENTIAL = "sequential"
    SYNCHRONOUS = "synchronous"


OF_SWARM = tuple(
    key for key in OF_PLANS if key.name not in ("staleness", "max_staleness", "kappa", "ahead", "margin", "hours")
)
"""Figures of the swarm, as a plan takes them."""

OPTIONS = (
    Key(name="hours", meaning="Simulate so long; 1, or as long as the run.", above=True, high=MOST_HOURS),
    Key(name="steps", meaning="Or so many training steps.", low=1, high=1_000_000, whole=True),
    Key(name="staleness", short="-S", meaning="What if S were this?", high=1000, whole=True),
    Key(name="kappa", meaning="What if versions were published every so many steps?", low=1, high=1000, whole=True),
    Key(name="machines", meaning="What if there were so many times the machines?", above=True, high=100),
    *OF_SWARM,
)
