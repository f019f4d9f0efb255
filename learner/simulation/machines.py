"""What a simulated machine is: its figures, and how long it takes for what it is given.

Pure. What always holds: a machine's own luck comes from a generator of its own, seeded by the world's seed and its
name, so that adding a machine changes nobody else's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Absence:
    """From when until when a machine is gone, in seconds; it loses what it holds."""

    from_s: float
    until_s: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """From `at_s` on, what is given replaces what was: a price, a factor on its rate, a factor on its lines' delay."""

    at_s: float
    price: float | None = None
    speed: float | None = None
    delay: float | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A rollout node as figures.

    Args:
        name: unique.
        rate: rollouts per second when it generates `batch_rollouts` at a time, all of which are done together.
        batch_rollouts: what its engine takes at once.
        fixed_share: of the seconds that a full batch takes, those that a batch of one takes too.
        spread: standard deviation over mean of a batch's seconds (log-normal); stragglers are its tail.
        broadcast_s: from a publication until the version is complete on its disk.
        delay_spread: the same spread, of that.
        install_s: loading it, while nothing is generated.
        line_s: one way to the learner, judging included.
        price: per hour that it is on.
        start_s: after joining, until it can generate: download, loading.
        start_price: what being switched on for the first time after joining costs beside the hours.
        claimed_rate: what its own benchmark promises when it joins, 0 if nothing.
        stops_per_hour: it is taken away at random so often, and comes back after `back_s` in the mean.
    """

    name: str
    rate: float
    batch_rollouts: int
    fixed_share: float = 0.0
    spread: float = 0.1
    broadcast_s: float = 0.0
    delay_spread: float = 0.1
    install_s: float = 0.0
    line_s: float = 0.05
    price: float = 0.0
    start_s: float = 0.0
    start_price: float = 0.0
    claimed_rate: float = 0.0
    stops_per_hour: float = 0.0
    back_s: float = 300.0
    absences: Sequence[Absence] = field(default=())
    changes: Sequence[Change] = field(default=())

    @property
    def batch_s(self) -> float:
        """Mean seconds of a full batch."""
        return self.batch_rollouts / self.rate


class Luck:
    """One machine's draws."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self._machine = machine
        self._random = random.Random(f"{seed}/{machine.name}")

    def generation_s(self, rollouts: int, speed: float, lengths: Sequence[float] = ()) -> float:
        """Seconds for a batch of so many; `lengths` are theirs over what is usual, where they differ.

        It is over with its longest, and rows that are done cost nothing any more.
        """
        machine = self._machine
        full = machine.batch_s / speed
        longest, total = (max(lengths), math.fsum(lengths)) if lengths else (1.0, float(rollouts))
        share = machine.fixed_share * longest + (1 - machine.fixed_share) * total / machine.batch_rollouts
        return full * share * log_normal(self._random, machine.spread)

    def broadcast_s(self, mean_s: float) -> float:
        """Seconds until a version is here."""
        return mean_s * log_normal(self._random, self._machine.delay_spread)

    def up_s(self) -> float:
        """Seconds until it is taken away."""
        rate = self._machine.stops_per_hour / 3600
        return self._random.expovariate(rate) if rate > 0 else math.inf

    def away_s(self) -> float:
        """Seconds until it is back."""
        return self._random.expovariate(1 / self._machine.back_s)


def log_normal(rng: random.Random, spread: float) -> float:
    """A factor of mean 1 whose standard deviation is `spread`."""
    if spread <= 0:
        return 1.0
    sigma = math.sqrt(math.log1p(spread * spread))
    return rng.lognormvariate(-sigma * sigma / 2, sigma)


def batch_for(rate: float, generation_s: float, group: int) -> int:
    """How many rollouts a machine makes at a time if one takes `generation_s`: by Little's law, in whole groups."""
    return max(group, group * round(rate * generation_s / group))
