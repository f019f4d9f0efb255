"""Measure one peer: how fast it is, how long versions take to reach it, how often it leaves.

Pure.

Invariants:

- A peer's rate is what it can do, not what it was asked to do: rollouts per second while it was busy.
- If it stood still until it was leased something, its true rate is at least the measured one (`is_least`). Its batches
  may be smaller than its engine could take, and the way to the verdict counts, during which a peer that is kept busy
  already works on its next batch.
- A peer's claim about itself counts only until it has delivered ENOUGH batches, and less with each.
- Memory is bounded: WINDOW values per quantity.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from learner.provisioning.estimation.estimates import ENOUGH, WINDOW, Estimate, Recent, RecentRatio
from learner.provisioning.estimation.recording import Delivered, Joined

SAME_START = 0.1
"""Deliveries are of one batch when their starts differ by less than this share of the time they took: an engine takes a
batch at a time, and reports each start in turn. If two batches are taken for one, nothing is lost: the rollouts and the
seconds of both count."""

IN_HAND = 0.5
"""A lease that waited at least this share of the time that its batch then took was there while the engine worked on the
batch before. One that waited less may have come when the engine already stood still: the way to a peer takes time, too.
"""

TAIL = 0.95
"""T_gen is the time that this share of deliveries takes at most."""

STOPS_PER_HOUR = 0.1
"""Stops of a peer about which nothing is known: once in a working day, as the owner of a home computer comes and
goes."""

KNOWN_HOURS = 2.0
"""Weight of STOPS_PER_HOUR: as if the peer had been watched for this many hours."""

BRIEF_S = 60.0
"""Seconds: a peer that is back so soon lost a connection, not a machine, and that is no stop."""

SLOWEST = 1e-9
"""Rollouts per second. A lower claim counts as none, so that no division overflows."""

SPELLS = 32
"""Separate spells remembered, for one that began before them and ends now: more than an engine works on."""

_HOUR = 3600.0


class BusyTime:
    """How long a peer was busy when several things went on at once: each moment counts once.

    Spells come in the order of their ends, as deliveries do.

    Invariants:

    - The seconds that `add` returns add up to the length of the union of all spells, as far back as SPELLS separate
      ones.
    """

    def __init__(self) -> None:
        self._spells: deque[tuple[float, float]] = deque(maxlen=SPELLS)

    def add(self, start_s: float, end_s: float) -> float:
        """Take in a spell; return by how many seconds the peer was busy longer than was known."""
        spells, known_s = self._spells, 0.0
        if spells:
            end_s = max(end_s, spells[-1][1])
        start_s = min(start_s, end_s)
        while spells and spells[-1][1] >= start_s:
            start, end = spells.pop()
            known_s += end - start
            start_s = min(start_s, start)
        spells.append((start_s, end_s))
        return max(0.0, end_s - start_s - known_s)


@dataclass(slots=True, eq=False)
class Profile:
    """The measured behaviour of one peer. All times are seconds, `price` is per hour."""

    peer: str
    name: str = ""
    price: float = 0.0
    claimed_rate: float = 0.0
    present: bool = False
    joined_s: float = 0.0
    left_s: float | None = None
    until_s: float | None = None
    _busy: BusyTime = field(default_factory=BusyTime)
    _open: _Batch | None = None
    _rates: RecentRatio = field(default_factory=RecentRatio)
    _in_hand: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _batches: Recent = field(default_factory=Recent)
    _generation: Recent = field(default_factory=Recent)
    _broadcast: Recent = field(default_factory=Recent)
    _start: Recent = field(default_factory=Recent)
    _stops: int = 0
    _present_s: float = 0.0

    # Events

    def joined(self, event: Joined) -> None:
        """Record that the peer came, or described itself again."""
        self.name, self.price = event.name, event.price
        self.until_s = event.until_s
        self.claimed_rate = event.rate if event.rate >= SLOWEST else 0.0
        if self.present:
            return
        self.present, self.joined_s = True, event.at_s
        if self.left_s is not None and event.at_s - self.left_s < BRIEF_S:
            self._stops -= 1
        self.left_s = None

    def left(self, at_s: float) -> None:
        """Record that the peer left. That may prove to be a stop, unless its owner's hours were over anyway, or
        nearly."""
        if self.present:
            self.interrupted(at_s)
            if self.remaining_s(at_s) <= BRIEF_S:
                return
            self._stops += 1
            self.left_s = at_s

    def interrupted(self, at_s: float) -> None:
        """Record that the peer is no longer here, for no reason of its own."""
        if self.present:
            self.present = False
            self._present_s += max(0.0, at_s - self.joined_s)

    def set_back(self) -> None:
        """Record that the clock was set back between two runs: what follows is later than all before, whatever its
        time."""
        self._close()
        self._busy, self.left_s = BusyTime(), None

    def installed(self, delays_s: list[float], first_after_s: float | None) -> None:
        """Record the delays from publication until versions came into service, and, for the first one of a session, the
        delay since the peer came."""
        for delay_s in delays_s:
            self._broadcast.add(delay_s)
        if first_after_s is not None:
            self._start.add(first_after_s)

    def delivered(self, event: Delivered) -> None:
        """Record that the peer delivered a lease."""
        at_s, started_s = event.at_s, min(event.started_s, event.at_s)
        batch = self._open
        if batch is None or started_s - batch.started_s > SAME_START * (at_s - batch.started_s):
            self._close()
            batch = self._open = _Batch(started_s)
        batch.held_s = max(batch.held_s, started_s - event.leased_s)
        batch.admitted += event.admitted
        batch.rollouts += event.admitted + event.refused
        batch.busy_s += self._busy.add(started_s, at_s)
        batch.until_s = at_s
        self._generation.add(at_s - started_s)

    def expired(self, rollouts: int) -> None:
        """Record that leases of `rollouts` rollouts expired or were recalled: the peer was busy with them as long as
        with others, for nothing."""
        self._close()
        each_s = self._rates.usual() or (1 / self.claimed_rate if self.claimed_rate > 0 else 0.0)
        self._rates.add(0, rollouts * each_s)

    # Estimates

    def rate(self, most: float = math.inf) -> Estimate | None:
        """Return the admitted rollouts per busy second; None if the peer has shown and claimed nothing.

        Its claim, at most `most`, counts in seconds per rollout, in proportion to the batches that are missing from
        ENOUGH. So the first batch already limits a false claim, to ENOUGH times what the batch shows.
        """
        claim = min(self.claimed_rate, most)
        shown = self.shown_rate
        if shown is None:
            return Estimate(value=claim, low=0.0, high=math.inf, count=0) if claim > 0 else None
        if claim <= 0 or shown.count >= ENOUGH:
            return shown
        weight = shown.count / ENOUGH
        value = 1 / ((1 - weight) / claim + weight / shown.value) if shown.value > 0 else 0.0
        return Estimate(value=value, low=0.0, high=math.inf, count=shown.count)

    @property
    def shown_rate(self) -> Estimate | None:
        """The same from the peer's batches alone. The batch that is still being delivered counts if it is the only
        one."""
        if (shown := self._rates.ratio()) is not None:
            return shown
        batch = self._open
        if batch is None or batch.busy_s <= 0:
            return None
        return Estimate(value=batch.admitted / batch.busy_s, low=0.0, high=math.inf, count=1)

    @property
    def is_least(self) -> bool:
        """Whether the peer may be faster than it has shown, since it was not kept busy: most of its last batches did
        not wait at the peer until the one before was done."""
        return 2 * sum(self._in_hand) < len(self._in_hand)

    @property
    def broadcast_s(self) -> Estimate | None:
        """The median time from a publication until that version or a newer one is in service here."""
        return self._broadcast.median()

    @property
    def generation_s(self) -> Estimate | None:
        """The 95th percentile of the time from the start of a lease until its verdict; with few values nearly the
        largest."""
        return self._generation.quantile(TAIL)

    @property
    def usual_generation_s(self) -> Estimate | None:
        """The median of the same."""
        return self._generation.median()

    @property
    def start_s(self) -> Estimate | None:
        """The median time from joining until the first version is in service."""
        return self._start.median()

    @property
    def batch_rollouts(self) -> Estimate | None:
        """The median number of rollouts that are delivered at a time."""
        if len(self._batches) or self._open is None:
            return self._batches.median()
        return Recent([self._open.rollouts]).median()

    def remaining_s(self, now_s: float) -> float:
        """Return for how many more seconds its owner's hours last: 0 outside them, infinity if there are none."""
        return math.inf if self.until_s is None else max(0.0, self.until_s - now_s)

    def stops_per_hour(self, now_s: float) -> float:
        """Return how often it is taken away, per hour of its presence."""
        present_s = self._present_s + (max(0.0, now_s - self.joined_s) if self.present else 0.0)
        return (self._stops + STOPS_PER_HOUR * KNOWN_HOURS) / (present_s / _HOUR + KNOWN_HOURS)

    def _close(self) -> None:
        if (batch := self._open) is not None:
            self._rates.add(batch.admitted, batch.busy_s)
            self._in_hand.append(batch.was_in_hand)
            self._batches.add(batch.rollouts)
            self._open = None


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch of an engine, as far as it was delivered."""

    started_s: float
    held_s: float = 0.0
    """Seconds that it waited at the peer."""
    until_s: float = 0.0
    admitted: int = 0
    rollouts: int = 0
    busy_s: float = 0.0

    @property
    def was_in_hand(self) -> bool:
        """Whether it was leased while the engine worked on the batch before."""
        return self.held_s >= IN_HAND * (self.until_s - self.started_s)
