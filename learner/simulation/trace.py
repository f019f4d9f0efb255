"""Define the settings of a simulated learner, and the results of the run.

Invariants:

- Machines are paid from their activation until they are deactivated or taken away; standby costs nothing.
- The learner is paid all the time.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

NEVER_S = 1e6
"""Longer than any simulation: leases that never expire."""

LEARNER, SOURCE = "\tlearner", "\tsource"
"""Rows of `Outcome.paid` and of spans beside those of machines, whose names have no tabs."""


@dataclass(frozen=True, kw_only=True)
class Learning:
    """The settings of the operator, and the times of training.

    Args:
        rollouts: R.
        group_size: rollouts of one lease.
        staleness: S; 0 is the sequential mode.
        kappa: training steps between published versions, until a plan changes it.
        train_s: seconds of the trainer for a step.
        train_spread: its standard deviation over its mean (log-normal).
        overhead_s: other seconds of each step: a batch on its way to the trainer, the ledger.
        publish_s: seconds for which a publication, with its checkpoint, keeps the trainer from training.
        tells_kinds: whether these times are known apart; if not, `train_s` is the whole time of a step.
        broadcast_s: seconds for which the source is busy with one version.
        ahead: batches leased or waiting at most; None: by what is measured.
        lease_s: seconds after which a lease that was not delivered is withdrawn.
        copy_s: seconds of each copy, if the source sends each active machine its own, one after the other. None:
            machines relay versions.
        barrier: whether all machines wait until all have the newest version; with S = 0 this is synchronous training.
        price: per hour, of the learner's machine.
        currency: the currency of all prices, for the recording.
    """

    rollouts: int
    group_size: int
    staleness: int
    kappa: int
    train_s: float
    train_spread: float = 0.0
    overhead_s: float = 0.0
    publish_s: float = 0.0
    broadcast_s: float = 0.0
    ahead: float | None = None
    lease_s: float = NEVER_S
    copy_s: float | None = None
    barrier: bool = False
    tells_kinds: bool = True
    price: float = 0.0
    currency: str = "USD"


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One activity of a machine, the learner or the source, with its begin and end. `version` is what it trained, sent
    or generated with. A machine's spans say whether it `works`, or is on standby or away."""

    row: str
    from_s: float
    until_s: float
    version: int
    works: bool = True


@dataclass(kw_only=True)
class Outcome:
    """The results of a run. Steps are in order, with `waited_s` before and `busy_s` during each.

    `active_s`, `paid` and `made` are by machine: seconds that it was active, their cost, and its admitted rollouts.
    `stale` rollouts were made and became too old, `lost` ones were leased and never delivered, `recalled` ones were
    begun and stopped since they would have been too old. `gathered_s` is the time from the lease of the first group of
    a step's batch until the last was there. `prompts` are those that were trained on, in order.
    """

    waited_s: list[float] = field(default_factory=list)
    gathered_s: list[float] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    lags: Counter[int] = field(default_factory=Counter)
    completed: int = 0
    stale: int = 0
    lost: int = 0
    recalled: int = 0
    active_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    paid: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    made: Counter[str] = field(default_factory=Counter)
    cost: float = 0.0
    ended_s: float = 0.0
    spans: deque[Span] = field(default_factory=deque)

    @property
    def stale_share(self) -> float:
        """The share of all finished rollouts that became too old."""
        return self.stale / self.completed if self.completed else 0.0
