"""Our capacity model: when does the learner wait, if rollouts of older versions count while they are admissible?

Training steps are n = 0, 1, ...; each takes T_train, and R rollouts whose lag, n minus their version, is at most S.
Every kappa steps a version is published, at the end of a step. F(t) is how many rollouts of *one* version are admitted
within t seconds of its publication, if no other follows. Batches are formed in version order. With s_n the start of
step n and p_m the publication of version m, step n begins as soon as

    s_n >= s_{n-1} + T_train                                 (the step before it is over)
    s_n >= p_m + F^-1((n - i + 1) R)  for every version m    (i is the first step for which all versions before m are
                                                              too old, so steps i to n live on m and what follows it)
    s_n >= s_{n-a} + H^-1(R)                                 (its rollouts were not leased before batch n - a was taken)

This recursion in (max, +) grows by the period of the clockwork; what exceeds T_train is wait. Without the third line,
which pacing adds, the learner never waits exactly when

    F((S - kappa + k) T_train) >= k R    for k = 1, 2, ...

For equal peers F(t) = mu (t - T_bcast - T_gen), and k = 1 is the strictest besides mu T_train >= R. What always holds:
nothing here knows a clock or randomness; times are seconds, rates are admitted rollouts per second.
`docs/provisioning.md` derives all this and says where it is wrong.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

STEPS = 300
"""Training steps the recursion is followed for. It repeats itself after some S + kappa steps."""

_ROUNDING = 1e-9
"""Relative error below which a rate is what was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Supplier:
    """One peer: so many rollouts per second. `broadcast_s` from a publication until it has the version installed,
    `generation_s` from the lease of a rollout until it is admitted."""

    rate: float
    broadcast_s: float
    generation_s: float

    @property
    def delay_s(self) -> float:
        """From a publication until its first rollouts are admitted."""
        return self.broadcast_s + self.generation_s


class Supply:
    """How many rollouts have come by a time, each peer giving `rate` from `delay_s` on: piecewise linear and convex."""

    def __init__(self, peers: Iterable[tuple[float, float]]) -> None:
        """`peers` are (rate, delay_s)."""
        ordered = sorted((delay_s, rate) for rate, delay_s in peers if rate > 0)
        self._times = [delay_s for delay_s, _ in ordered]
        self._rates = list(accumulate(rate for _, rate in ordered))
        spans = zip(pairwise(self._times), self._rates, strict=False)
        self._counts = list(accumulate((rate * (end - start) for (start, end), rate in spans), initial=0.0))

    @property
    def rate(self) -> float:
        """Rollouts per second once all take part."""
        return self._rates[-1] if self._rates else 0.0

    @property
    def full_s(self) -> float:
        """From when on all take part."""
        return self._times[-1] if self._times else math.inf

    def count(self, at_s: float) -> float:
        """F(t), in rollouts."""
        index = bisect_left(self._times, at_s) - 1
        return self._counts[index] + self._rates[index] * (at_s - self._times[index]) if index >= 0 else 0.0

    def time(self, rollouts: float) -> float:
        """The inverse of `count`, in seconds; `rollouts` > 0."""
        if not self._times:
            return math.inf
        index = bisect_left(self._counts, rollouts) - 1
        return self._times[index] + (rollouts - self._counts[index]) / self._rates[index]


@dataclass(frozen=True, kw_only=True)
class Clockwork:
    """What the operator set, and what does not depend on who works.

    Args:
        train_s: T_train, from a batch to the next version, in seconds.
        rollouts: R.
        staleness: S, at least 1.
        kappa: the publication period, 1 to S.
        ahead: batches that are leased or wait at most.
        broadcast_s: so long is the source busy with one version. What is published meanwhile waits, and is skipped
            when something newer is there by then.
    """

    train_s: float
    rollouts: int
    staleness: int
    kappa: int
    ahead: float = math.inf
    broadcast_s: float = 0.0

    @property
    def is_overtaken(self) -> bool:
        """Whether versions are published faster than the source can send them."""
        return self.broadcast_s > self.kappa * self.train_s

    def due_s(self, full_s: float) -> list[float]:
        """How long after a publication the first, second, third ... batch that needs it, or what follows, is due.

        So many that F grows at its full rate, from `full_s` on, before the last: beyond, they say nothing new.
        """
        slack = self.staleness - self.kappa
        num_batches = max(1, math.ceil(full_s / self.train_s) + 1)
        return [(slack + k) * self.train_s for k in range(1, num_batches + 1)]


def never_waits(clock: Clockwork, suppliers: Iterable[Supplier]) -> bool:
    """The condition of the module's paragraph, for versions that do not overtake each other and no limit on pacing."""
    supply = supply_of(suppliers)
    enough = clock.rollouts * (1 - _ROUNDING)
    if supply.rate * clock.train_s < enough or clock.is_overtaken:
        return False
    return all(supply.count(at_s) >= k * enough for k, at_s in enumerate(clock.due_s(supply.full_s), start=1))


def rate_needed(clock: Clockwork, *, delay_s: float) -> float:
    """The least total rate of equal peers that keeps the learner busy, or infinity; `delay_s` is T_bcast + T_gen."""
    spare_s = min(clock.train_s, (clock.staleness - clock.kappa + 1) * clock.train_s - delay_s)
    return clock.rollouts / spare_s if spare_s > 0 and not clock.is_overtaken else math.inf


def supply_of(suppliers: Iterable[Supplier]) -> Supply:
    """F: rollouts of one version, by the time since its publication."""
    return Supply((one.rate, one.delay_s) for one in suppliers)


def period_s(clock: Clockwork, suppliers: Iterable[Supplier]) -> float:
    """Seconds per training step in the long run, at least T_train; infinity when nobody supplies anything."""
    peers = list(suppliers)
    recursion = _Recursion(clock=clock, supply=supply_of(peers))
    if recursion.supply.rate == 0:
        return math.inf
    held = Supply((one.rate, one.generation_s) for one in peers)
    recursion.leased_s = held.time(clock.rollouts)
    starts = [recursion.next_start() for _ in range(STEPS)]
    settled = STEPS // 2
    # A whole number of publications, or the mean depends on where it is cut.
    last = settled + (STEPS - 1 - settled) // clock.kappa * clock.kappa
    return (starts[last] - starts[settled]) / (last - settled)


def bubble(clock: Clockwork, suppliers: Iterable[Supplier]) -> float:
    """The share of its time that the learner waits (ECHO-2's bubble ratio), 0 to 1."""
    return 1 - clock.train_s / period_s(clock, suppliers)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sent:
    """A version that is on its way since `at_s`; `first` is the first step for which those before it are too old."""

    version: int
    at_s: float
    first: int


@dataclass(kw_only=True)
class _Recursion:
    """The starts of training steps, one after the other."""

    clock: Clockwork
    supply: Supply
    leased_s: float = 0.0
    _starts: list[float] = field(default_factory=list)
    _sent: list[_Sent] = field(default_factory=list)
    _waiting: tuple[int, float] | None = (0, 0.0)
    _free_s: float = 0.0
    _steady_s: float = -math.inf
    """The strictest limit of versions whose peers all take part by now: it moves on by R / mu with every step."""

    def next_start(self) -> float:
        """When the next step begins."""
        clock, step = self.clock, len(self._starts)
        self._publish(step)
        self._send(step)
        at_s = self._starts[-1] + clock.train_s if self._starts else 0.0
        at_s = max(at_s, self._supplied(step))
        if step >= clock.ahead:
            at_s = max(at_s, self._paced(step - clock.ahead) + self.leased_s)
        self._starts.append(at_s)
        return at_s

    def _paced(self, step: float) -> float:
        """When batch number `step` was taken; between two, in proportion."""
        before = int(step)
        share = step - before
        return self._starts[before] + (share * (self._starts[before + 1] - self._starts[before]) if share else 0.0)

    def _publish(self, step: int) -> None:
        """Step `step` - 1 is over: it may have made a version to publish."""
        if step and step % self.clock.kappa == 0:
            published_s = self._starts[-1] + self.clock.train_s
            self._send_waiting(published_s)
            self._waiting = (step, published_s)
            self._send_waiting(published_s)

    def _send(self, step: int) -> None:
        """What waits is sent after all if step `step` cannot do without it."""
        if self._waiting and (not self._sent or step > self._sent[-1].version + self.clock.staleness):
            self._send_waiting(math.inf)

    def _send_waiting(self, now_s: float) -> None:
        if self._waiting is None or max(self._free_s, self._waiting[1]) > now_s:
            return
        version, published_s = self._waiting
        first = self._sent[-1].version + self.clock.staleness + 1 if self._sent else 0
        at_s = max(self._free_s, published_s)
        self._sent.append(_Sent(version=version, at_s=at_s, first=first))
        self._free_s, self._waiting = at_s + self.clock.broadcast_s, None

    def _supplied(self, step: int) -> float:
        """When the rollouts of step `step` are there."""
        rollouts, supply = self.clock.rollouts, self.supply
        self._steady_s += rollouts / supply.rate
        latest, kept = self._steady_s, []
        for sent in self._sent:
            needed_s = -math.inf
            if step >= sent.first:
                after_s = supply.time((step - sent.first + 1) * rollouts)
                needed_s = sent.at_s + after_s
                if after_s >= supply.full_s:
                    self._steady_s = max(self._steady_s, needed_s)
            if sent is self._sent[-1] or needed_s > self._steady_s or step < sent.first:
                kept.append(sent)
            latest = max(latest, needed_s)
        self._sent = kept
        return latest
