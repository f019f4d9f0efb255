"""Describe simulated machines: their numbers, and how long each takes for its work.

Pure.

Invariants:

- Each machine has its own random generator, seeded by the world's seed and its name, so adding a machine changes no
  other machine's luck.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Absence:
    """The seconds from when until when a machine is gone. It loses the leases that it holds."""

    from_s: float
    until_s: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Values that apply from `at_s` on: a price, a factor on its rate, a factor on the delay of its versions."""

    at_s: float
    price: float | None = None
    speed: float | None = None
    delay: float | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A rollout node as numbers.

    Args:
        name: unique.
        rate: rollouts per second when it generates `batch_rollouts` at a time, which are all done together.
        batch_rollouts: rollouts that its engine takes at once.
        fixed_share: share of the seconds of a full batch that a batch of one takes too.
        spread: standard deviation over mean of a batch's seconds (log-normal); stragglers are its tail.
        broadcast_s: from a publication until the version is complete on its disk.
        delay_spread: the same spread, of `broadcast_s`.
        install_s: time to load a version, in which nothing is generated.
        latency_s: one way to the learner, judging included.
        price: per hour that it is active.
        start_s: after joining, until it can generate: download, loading.
        start_price: cost of its first activation after joining, beside the hours.
        claimed_rate: rollouts per second that its own benchmark promises when it joins, 0 if there is none.
        stops_per_hour: how often it is taken away at random; it comes back after `back_s` on average.
    """

    name: str
    rate: float
    batch_rollouts: int
    fixed_share: float = 0.0
    spread: float = 0.1
    broadcast_s: float = 0.0
    delay_spread: float = 0.1
    install_s: float = 0.0
    latency_s: float = 0.05
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
    """The random draws of one machine."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self._machine = machine
        self._random = random.Random(f"{seed}/{machine.name}")

    def generation_s(self, rollouts: int, speed: float, lengths: Sequence[float] = ()) -> float:
        """Return the seconds for a batch of this many rollouts. `lengths` are theirs relative to the mean, if they
        differ.

        A batch ends with its longest rollout, and rows that are done cost nothing from then on.
        """
        machine = self._machine
        full = machine.batch_s / speed
        longest, total = (max(lengths), math.fsum(lengths)) if lengths else (1.0, float(rollouts))
        share = machine.fixed_share * longest + (1 - machine.fixed_share) * total / machine.batch_rollouts
        return full * share * log_normal(self._random, machine.spread)

    def broadcast_s(self, mean_s: float) -> float:
        """Return the seconds until a version is here."""
        return mean_s * log_normal(self._random, self._machine.delay_spread)

    def up_s(self) -> float:
        """Return the seconds until the machine is taken away."""
        rate = self._machine.stops_per_hour / 3600
        return self._random.expovariate(rate) if rate > 0 else math.inf

    def away_s(self) -> float:
        """Return the seconds until it is back."""
        return self._random.expovariate(1 / self._machine.back_s)


def log_normal(rng: random.Random, spread: float) -> float:
    """Return a random factor of mean 1 whose standard deviation is `spread`."""
    if spread <= 0:
        return 1.0
    sigma = math.sqrt(math.log1p(spread * spread))
    return rng.lognormvariate(-sigma * sigma / 2, sigma)


def batch_for(rate: float, generation_s: float, group: int) -> int:
    """Return how many rollouts a machine makes at a time if one takes `generation_s`: by Little's law, in whole
    groups."""
    return max(group, group * round(rate * generation_s / group))
