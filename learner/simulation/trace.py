"""What a simulated learner is told to do, and what came of it.

What always holds: machines are paid from when they are switched on until they are switched off or taken away, and who
stands by costs nothing; the learner is paid all the time.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

NEVER_S = 1e6
"""Longer than any simulation: leases that never run out."""

LEARNER, SOURCE = "\tlearner", "\tsource"
"""Rows of `Outcome.paid` and of spans beside those of machines, whose names have no tabs."""


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What the operator set, and what training takes.

    Args:
        rollouts: R.
        group_size: rollouts of one lease.
        staleness: S; 0 is the sequential mode.
        kappa: training steps between published versions, until a plan says otherwise.
        train_s: how long the trainer takes for a step.
        train_spread: its standard deviation over its mean (log-normal).
        overhead_s: what else each step takes: a batch on its way to the trainer, the ledger.
        publish_s: for so long a publication, its checkpoint included, keeps the trainer from training.
        tells_kinds: whether these times are known apart; else `train_s` is what a step took in all.
        broadcast_s: so long is the source busy with one version.
        ahead: batches leased or waiting at most; None: by what is measured.
        lease_s: a lease that is not delivered by then is withdrawn.
        copy_s: the source sends each machine that is on a copy of its own, one after the other, each taking so long;
            None: machines pass versions on.
        barrier: nobody begins before everybody has the newest version; with S = 0 this is synchronous training.
        price: per hour, of the learner's machine.
        currency: of that and of everybody's price, for the recording.
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
    """What somebody did from when until when: `version` it trained, sent or generated with. A machine's spans say
    whether it `works`, or stands by or is away."""

    row: str
    from_s: float
    until_s: float
    version: int
    works: bool = True


@dataclass(kw_only=True)
class Outcome:
    """What happened. Steps are in order; `waited_s` before and `busy_s` during each.

    `on_s`, `paid` and `made`, by machine: seconds that it was on, what that cost, and its admitted rollouts. `stale`
    rollouts were made and grew too old, `lost` ones were leased and never delivered, `recalled` ones were begun and
    stopped since they would have been too old. `gathered_s`: from when the first group of a step's batch was leased
    until the last was there; `prompts` are those that were trained on, in order.
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
    on_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    paid: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    made: Counter[str] = field(default_factory=Counter)
    cost: float = 0.0
    ended_s: float = 0.0
    spans: deque[Span] = field(default_factory=deque)

    @property
    def stale_share(self) -> float:
        """Rollouts that were made and grew too old, of all that were made."""
        return self.stale / self.completed if self.completed else 0.0
