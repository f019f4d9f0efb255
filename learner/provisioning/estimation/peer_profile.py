"""What one peer has shown of itself: how fast it is, how long versions take to reach it, how often it leaves.

Pure.

Invariants:
- Its rate is what it can do, not what it was asked to: rollouts per second during which it was busy.
- Where it stood still until it was leased something, its rate is known to be at least so much (`is_least`): its batches
  may be smaller than its engine could take, and the way to the verdict counts, during which a peer that is kept busy
  is at its next batch.
- What it says of itself counts only until it has delivered ENOUGH batches, and less with each.
- Memory is bounded: WINDOW values per quantity.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from learner.provisioning.estimation.estimates import ENOUGH, WINDOW, Estimate, Recent, RecentRatio
from learner.provisioning.estimation.recording import Delivered, Joined

SAME_START = 0.1
"""Deliveries are of one batch when their starts lie closer than this share of the time they took: an engine takes a
batch at a time, and says of each of its leases in turn that it began. Where two batches pass for one nothing is lost:
both their rollouts and their seconds count."""

IN_HAND = 0.5
"""A lease that waited at least so much of the time that its batch then took was there while the engine was at the batch
before. One that waited less may have come when the engine stood still already: the way to a peer takes time, too."""

TAIL = 0.95
"""T_gen is what so large a share of deliveries take at most."""

STOPS_PER_HOUR = 0.1
"""Of a peer of which nothing is known: once in a working day, as a home computer's owner comes and goes."""

KNOWN_HOURS = 2.0
"""How much that counts: as if it had been watched for so long."""

BRIEF_S = 60.0
"""Who is back so soon lost a line, not a machine: that is no stop."""

SLOWEST = 1e-9
"""Rollouts per second: who claims less claims nothing, and no division overflows."""

SPELLS = 32
"""Separate spells that are remembered, for one that began before them and ends now: more than an engine works on."""

_HOUR = 3600.0


class BusyTime:
    """How long a peer was busy when several things went on at once: each moment counts once.

    Invariant: the seconds given out add up to the length of the union of all spells, as far back as SPELLS separate
    ones. They come in the order of their ends, as deliveries do.
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
    """One peer; see the module's paragraph. All times are seconds, `price` is per hour."""

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

    # What happens to it.

    def joined(self, event: Joined) -> None:
        """It came, or says again who it is."""
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
        """It went. That may prove to be a stop, unless its owner's hours were over anyway, or nearly."""
        if self.present:
            self.interrupted(at_s)
            if self.stays_s(at_s) <= BRIEF_S:
                return
            self._stops += 1
            self.left_s = at_s

    def interrupted(self, at_s: float) -> None:
        """It is here no more, and not by its own doing."""
        if self.present:
            self.present = False
            self._present_s += max(0.0, at_s - self.joined_s)

    def set_back(self) -> None:
        """The clock was set back between two runs: what follows is later than all that was, whatever it says."""
        self._close()
        self._busy, self.left_s = BusyTime(), None

    def installed(self, delays_s: list[float], first_after_s: float | None) -> None:
        """Versions came into service so long after their publication; the first one of a stay so long after it came."""
        for delay_s in delays_s:
            self._broadcast.add(delay_s)
        if first_after_s is not None:
            self._start.add(first_after_s)

    def delivered(self, event: Delivered) -> None:
        """It delivered a lease."""
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
        """It let leases of so many rollouts run out, or they were recalled: it was busy with them as long as with
        others, for nothing.
        """
        self._close()
        each_s = self._rates.usual() or (1 / self.claimed_rate if self.claimed_rate > 0 else 0.0)
        self._rates.add(0, rollouts * each_s)

    # What follows from it.

    def rate(self, most: float = math.inf) -> Estimate | None:
        """Admitted rollouts per busy second; None when it has shown and said nothing.

        What it says of itself, `most` at most, counts in seconds per rollout, in proportion to the batches that are
        lacking from ENOUGH: so the first batch already limits a boast, to ENOUGH times what the batch shows.
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
        """The same from its batches alone. The one that is still being delivered counts when it is the only one."""
        if (shown := self._rates.ratio()) is not None:
            return shown
        batch = self._open
        if batch is None or batch.busy_s <= 0:
            return None
        return Estimate(value=batch.admitted / batch.busy_s, low=0.0, high=math.inf, count=1)

    @property
    def is_least(self) -> bool:
        """Whether it may be faster than it has shown, since it was not kept busy: most of its last batches did not wait
        in its hands until the one before was done."""
        return 2 * sum(self._in_hand) < len(self._in_hand)

    @property
    def broadcast_s(self) -> Estimate | None:
        """From a publication until that version or a newer one is in service here: the median."""
        return self._broadcast.median()

    @property
    def generation_s(self) -> Estimate | None:
        """From the start of a lease until it was judged: the 95th percentile, of few values nearly the largest."""
        return self._generation.quantile(TAIL)

    @property
    def usual_generation_s(self) -> Estimate | None:
        """The same, the median."""
        return self._generation.median()

    @property
    def start_s(self) -> Estimate | None:
        """From coming until the first version is in service: the median."""
        return self._start.median()

    @property
    def batch_rollouts(self) -> Estimate | None:
        """Rollouts delivered at a time: the median."""
        if len(self._batches) or self._open is None:
            return self._batches.median()
        return Recent([self._open.rollouts]).median()

    def stays_s(self, now_s: float) -> float:
        """So long will its owner's hours go on, 0 outside them, without end if there are none."""
        return math.inf if self.until_s is None else max(0.0, self.until_s - now_s)

    def stops_per_hour(self, now_s: float) -> float:
        """How often it is taken away, per hour that it is here."""
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
    """What an engine made at a time, as far as it was delivered."""

    started_s: float
    held_s: float = 0.0
    """So long it waited in the peer's hands."""
    until_s: float = 0.0
    admitted: int = 0
    rollouts: int = 0
    busy_s: float = 0.0

    @property
    def was_in_hand(self) -> bool:
        """Whether it was leased while the engine was at the batch before."""
        return self.held_s >= IN_HAND * (self.until_s - self.started_s)
