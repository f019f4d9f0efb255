"""Compute when the learner waits, if rollouts of older versions count while they are admissible.

Training steps are n = 0, 1, ...; each takes T_train, and R rollouts whose lag, n minus their version, is at most S.
Every kappa steps a version is published, at the end of a step. F(t) is how many rollouts of *one* version are admitted
within t seconds of its publication, if no other follows. Batches are formed in version order. Let s_n be the start of
step n, and p_m the publication of version m. Step n begins as soon as

    s_n >= s_{n-1} + T_train                                 (the step before it is over)
    s_n >= p_m + F^-1((n - i + 1) R)  for every version m    (i is the first step for which all versions before m are
                                                              too old, so steps i to n use only m and later versions)
    s_n >= s_{n-a} + H^-1(R)                                 (its rollouts were not leased before batch n - a was taken)

This recursion in (max, +) grows by the period of the clockwork; what exceeds T_train is wait. Its second line also
counts rollouts that come when they are too old, so if peers are that slow, real waits are longer. Without the third
line, which pacing adds, the learner never waits exactly when

    F((S - kappa + k) T_train) - F((S - 2 kappa + k) T_train) >= k R    for k = 1, ..., kappa

The left side is how much of each version, which the next one ends after kappa T_train, has come when the k-th batch
that needs it is due. For equal peers F(t) = mu (t - T_bcast - T_gen), and the condition is that for k = 1 and mu
T_train >= R. If rollouts are made in batches (`Supplier.lump_s`), `period_s` also counts what that does to waits
(`Lumps`). `docs/explain/provisioning.md` derives all this and says where it is wrong.

Invariants:

- Nothing here uses a clock or randomness.
- Times are seconds, rates are admitted rollouts per second.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

QUORUM = 1 / 1.1
"""T_bcast is the time until this share of the active peers have installed a version (ECHO-2, section 4.3). They are
enough, since a tenth more than that is provisioned."""

STEPS = 300
"""Training steps for which the recursion is followed, at least. With four times as many, the periods of 3000 random
swarms with S up to 11 differed by 0.01 % of T_train at most."""

ROUNDS = 20
"""It is also followed for this many times the S + kappa after which it repeats itself. The error was 0.05 % in 100
swarms with S up to 100."""

_ROUNDING = 1e-9
"""Relative error below which a rate counts as the one that was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Supplier:
    """One peer with its `rate` in rollouts per second. `broadcast_s` is the time from a publication until it has the
    version installed, `generation_s` from the lease of a rollout until it is admitted. For `lump_s` of that it works on
    a batch, whose rollouts are all done together; 0 if they are begun one after the other."""

    rate: float
    broadcast_s: float
    generation_s: float
    lump_s: float = 0.0

    @property
    def delay_s(self) -> float:
        """The time from a publication until its first rollouts are admitted."""
        return self.broadcast_s + self.generation_s


class Supply:
    """How many rollouts have come by a time, each peer giving `rate` from `delay_s` on: piecewise linear and convex."""

    def __init__(self, peers: Iterable[tuple[float, float]]) -> None:
        """Take `peers` as (rate, delay_s)."""
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
        """The time from which on all take part."""
        return self._times[-1] if self._times else math.inf

    def count(self, at_s: float) -> float:
        """Return F(t), in rollouts."""
        index = bisect_left(self._times, at_s) - 1
        return self._counts[index] + self._rates[index] * (at_s - self._times[index]) if index >= 0 else 0.0

    def time(self, rollouts: float) -> float:
        """Return the inverse of `count`, in seconds; `rollouts` > 0."""
        if not self._times:
            return math.inf
        index = bisect_left(self._counts, rollouts) - 1
        return self._times[index] + (rollouts - self._counts[index]) / self._rates[index]


@dataclass(frozen=True, kw_only=True)
class Clockwork:
    """The settings of the operator, and all else that does not depend on the active peers.

    Args:
        train_s: T_train, from a batch to the next version, in seconds.
        rollouts: R.
        staleness: S, at least 1.
        kappa: the publication period, 1 to S.
        ahead: largest number of batches that are leased or wait.
        broadcast_s: seconds for which the source is busy with one version. A version that is published meanwhile waits,
            and is skipped if there is a newer one by then.
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

    @property
    def due_s(self) -> list[float]:
        """The times after a publication at which those batches are due for which this version is not too old, but all
        older ones are."""
        slack = self.staleness - self.kappa
        return [(slack + k) * self.train_s for k in range(1, self.kappa + 1)]


def rate_needed(clock: Clockwork, *, delay_s: float) -> float:
    """Return the least total rate of equal peers that keeps the learner busy, or infinity; `delay_s` is T_bcast +
    T_gen."""
    spare_s = min(clock.train_s, (clock.staleness - clock.kappa + 1) * clock.train_s - delay_s)
    return clock.rollouts / spare_s if spare_s > 0 and not clock.is_overtaken else math.inf


def supply_of(suppliers: Iterable[Supplier]) -> Supply:
    """Return F: rollouts of one version, by the time since its publication."""
    return Supply((one.rate, one.delay_s) for one in suppliers)


class Lumps:
    """The effect of batches on a set of peers that supply something.

    When a version arrives, half a batch is still to do on average if there was work until then, and none if there was
    not. F, which has all of T_gen, is right in the first case, and half a batch too late in the second (`idle`).

    When no more is leased, since no more of that version will be of use, the last of it comes when the slow peers are
    done, `tail_s` after F says. A share QUORUM of what is supplied takes at most that much longer than the mean.
    """

    def __init__(self, peers: Sequence[Supplier]) -> None:
        total = math.fsum(one.rate for one in peers)
        self.idle = Supply((one.rate, one.delay_s - one.lump_s / 2) for one in peers)
        self.delay_s = math.fsum(one.rate * one.delay_s for one in peers if one.rate > 0) / total
        self.lump_s = math.fsum(one.rate * one.lump_s for one in peers) / total
        ordered = sorted((one.lump_s, one.rate) for one in peers)
        supplied = accumulate(rate for _, rate in ordered)
        slow_s = next(took for (took, _), so_far in zip(ordered, supplied, strict=True) if so_far >= QUORUM * total)
        self.tail_s = max(0.0, slow_s - self.lump_s)

    def busy(self, rest_s: float) -> float:
        """Return how busy peers are when a version arrives, from 0 (idle) to 1, if older rollouts go on coming for
        `rest_s`.

        A peer's last older batch ends anywhere within the length of a batch before that. So with a share x of that
        length left, a peer is late by x / 2 in a share x of all cases.
        """
        return min(1.0, max(0.0, rest_s / self.lump_s)) ** 2 if self.lump_s > 0 else 1.0


def period_s(clock: Clockwork, suppliers: Iterable[Supplier]) -> float:
    """Return the seconds per training step in the long run, at least T_train; infinity if no peer supplies anything."""
    peers = list(suppliers)
    supply = supply_of(peers)
    if supply.rate == 0:
        return math.inf
    recursion = _Recursion(clock=clock, supply=supply, lumps=Lumps(peers))
    held = Supply((one.rate, one.generation_s) for one in peers)
    recursion.leased_s = held.time(clock.rollouts)
    num_steps = max(STEPS, ROUNDS * (clock.staleness + clock.kappa))
    starts = [recursion.next_start() for _ in range(num_steps)]
    return max(clock.train_s, _period_s(starts, clock.kappa)) if math.isfinite(starts[-1]) else math.inf


def _period_s(starts: Sequence[float], kappa: int) -> float:
    """Return the period from the means of the second and of the last third. Between two single starts it would depend
    on their place in a circuit of the recursion, which may span publications. The thirds span a whole number of
    publications, for the same reason."""
    third = len(starts) // 3 // kappa * kappa
    return (math.fsum(starts[-third:]) - math.fsum(starts[-2 * third : -third])) / third**2


@dataclass(kw_only=True, slots=True)
class _Sent:
    """A version that is on its way since `at_s`. `first` is the first step for which the versions before it are too
    old.

    `busy` is how busy peers are with older versions when it arrives.
    """

    version: int
    at_s: float
    first: int
    busy: float = 1.0


@dataclass(kw_only=True)
class _Recursion:
    """The starts of training steps, one after the other."""

    clock: Clockwork
    supply: Supply
    lumps: Lumps
    leased_s: float = 0.0
    _starts: list[float] = field(default_factory=list)
    _sent: list[_Sent] = field(default_factory=list)
    _every: set[int] = field(default_factory=set)
    _waiting: tuple[int, float] | None = (0, 0.0)
    _free_s: float = 0.0
    _latest_s: float = -math.inf
    """When the rollouts of the step before were there."""
    _steady_s: float = -math.inf
    """The strictest limit of the versions whose peers all take part by now: it moves on by R / mu with every step."""

    def next_start(self) -> float:
        """Return when the next step begins."""
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
        """Return when batch number `step` was taken; between two batches, in proportion."""
        before = int(step)
        share = step - before
        return self._starts[before] + (share * (self._starts[before + 1] - self._starts[before]) if share else 0.0)

    def _publish(self, step: int) -> None:
        """Publish a version if the end of step `step` - 1 made one."""
        if step and step % self.clock.kappa == 0:
            published_s = self._starts[-1] + self.clock.train_s
            self._send_waiting(published_s)
            self._waiting = (step, published_s)
            self._send_waiting(published_s)

    def _send(self, step: int) -> None:
        """Send a waiting version after all if step `step` cannot do without it."""
        if self._waiting and (not self._sent or step > self._sent[-1].version + self.clock.staleness):
            self._send_waiting(math.inf)

    def _send_waiting(self, now_s: float) -> None:
        if self._waiting is None or max(self._free_s, self._waiting[1]) > now_s:
            return
        version, published_s = self._waiting
        first = self._sent[-1].version + self.clock.staleness + 1 if self._sent else 0
        at_s = max(self._free_s, published_s)
        self._every.add(version)
        self._sent.append(_Sent(version=version, at_s=at_s, first=first))
        self._free_s, self._waiting = at_s + self.clock.broadcast_s, None

    def _supplied(self, step: int) -> float:
        """Return when the rollouts of step `step` are there."""
        rollouts, supply = self.clock.rollouts, self.supply
        self._steady_s += rollouts / supply.rate
        latest, kept = self._steady_s, []
        for sent in self._sent:
            needed_s = -math.inf
            if step == sent.first and step:
                sent.busy = self.lumps.busy(self._latest_s - sent.at_s - self.lumps.delay_s + self.lumps.lump_s)
            if step >= sent.first:
                after_s = self._after_s((step - sent.first + 1) * rollouts, sent.busy)
                needed_s = sent.at_s + after_s
                if after_s >= supply.full_s:
                    self._steady_s = max(self._steady_s, needed_s)
            if sent is self._sent[-1] or needed_s > self._steady_s or step < sent.first:
                kept.append(sent)
            latest = max(latest, needed_s)
        self._sent = kept
        self._latest_s = self._with_last(step, latest)
        return self._latest_s

    def _after_s(self, rollouts: float, busy: float) -> float:
        """Return the time from a version's publication until this many of its rollouts are there."""
        after_s = self.supply.time(rollouts)
        return after_s if busy == 1 else busy * after_s + (1 - busy) * self.lumps.idle.time(rollouts)

    def _with_last(self, step: int, at_s: float) -> float:
        """Return when a batch is there that has the last rollouts of a version, or newer ones in their place."""
        version, lumps = step - self.clock.staleness, self.lumps
        if version not in self._every or lumps.tail_s == 0:
            return at_s
        newer_s = min((sent.at_s for sent in self._sent if sent.version > version), default=math.inf)
        return min(at_s + lumps.tail_s, max(at_s, newer_s + lumps.delay_s))


def least_kappa(source_s: float, train_s: float) -> int:
    """Return the smallest publication period, in steps, at which versions do not overtake each other."""
    return max(1, math.ceil(source_s / train_s - _ROUNDING))
