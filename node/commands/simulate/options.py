"""Define the numbers and modes that `volery simulate` accepts, and their bounds."""

from __future__ import annotations

from enum import Enum

from node.commands.plan.pool_keys import OPTIONS as OF_PLANS
from node.commands.plan.pool_keys import Key

MOST_HOURS = 10_000


class Mode(Enum):
    """How the learner and the machines work together."""

    ASYNC = "async"
    SEQUENTIAL = "sequential"
    SYNCHRONOUS = "synchronous"


OF_SWARM = tuple(
    key for key in OF_PLANS if key.name not in ("staleness", "max_staleness", "kappa", "ahead", "margin", "hours")
)
"""Settings of the swarm that a plan has, too."""

OPTIONS = (
    Key(name="hours", meaning="Hours to simulate. Default: 1, or as long as the run.", above=True, high=MOST_HOURS),
    Key(name="steps", meaning="Training steps to simulate, instead of --hours.", low=1, high=1_000_000, whole=True),
    Key(name="staleness", short="-S", meaning="What if the staleness window S were N?", high=1000, whole=True),
    Key(name="kappa", meaning="What if a version were published every N steps?", low=1, high=1000, whole=True),
    Key(name="machines", meaning="What if there were X times as many machines?", above=True, high=100),
    *OF_SWARM,
)
