"""Which of the prompts in the window a peer is leased: the longest that it will have done when all of them are done.

Pure. What always holds: lengths are over what is usual, and so is a peer's speed, which says how long it takes for
them; a group whose end would be later than that of everything else waits for a peer that is faster, or free sooner,
unless there is none; what nobody could do in time is the longest's turn all the same. A window that all peers take in
one go is not sorted if they are about as fast: each of them then has one batch, and a batch of long groups alone would
take longest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

ONE_GO = 1.25
"""A window of so many times what all peers take at once is taken in one go and a little more."""

FAR_APART = 2.0
"""Where the fastest peer is so many times as fast as the slowest, it matters who has which batch, also in one go."""

SLACK = 1.2
"""A group may end so much later than all would if work were fluid: half a batch is left over here and there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Busy:
    """A peer that works: after how many seconds it will be free, how many usual rollouts it makes a second, and how
    long a batch as it asks for takes, were all usual."""

    free_s: float
    rate: float
    batch_s: float


def window_of(room: int, group: int, asked: int, rates: Sequence[float]) -> int:
    """How many prompts are leased longest first together, where `room` rollouts may be leased now, in groups of so
    many, and all peers together ask for `asked` at a time; 1: in the order in which they come. `rates` of the peers,
    as far as they are known."""
    is_sorted = room > ONE_GO * asked or max(rates, default=0.0) > FAR_APART * min(rates, default=0.0)
    return max(1, room // group) if is_sorted else 1


def all_done_s(work: float, peers: Iterable[Busy]) -> float:
    """When so many usual rollouts are made by these, each from when it is free on, if work were fluid."""
    rate = begun = 0.0
    order = sorted((one for one in peers if one.rate > 0), key=lambda one: one.free_s)
    for number, one in enumerate(order):
        rate, begun = rate + one.rate, begun + one.rate * one.free_s
        until = (work + begun) / rate
        if number + 1 == len(order) or until <= order[number + 1].free_s:
            return until
    return math.inf


@dataclass(kw_only=True)
class NextBatch:
    """What a peer is about to be leased: groups of `group` rollouts; `chosen` are the lengths of those that it has by
    now. `everybody` tells who works, the peer first, and of nobody if nothing is known of the peer. It is asked once:
    there may be thousands."""

    everybody: Callable[[], Sequence[Busy]]
    group: int
    chosen: list[float] = field(default_factory=list)
    _time: tuple[float, float] | None = None
    """Seconds that there are for it, and that it takes if it is usual."""

    def place(self, waiting: Sequence[float]) -> int:
        """Which of the groups that wait in the window, the longest first, is one for this peer: the first that it will
        have done in time, else the last."""
        left_s, batch_s = self._time = self._time or self._time_for(waiting)
        longest, total, count = max(self.chosen, default=0.0), math.fsum(self.chosen), len(self.chosen) + 1

        def takes_s(length: float) -> float:
            """Between an engine that takes as long for a batch as for its longest, and one that does as for all."""
            return (max(longest, length) + (total + length) / count) / 2 * batch_s

        return next((place for place, length in enumerate(waiting) if takes_s(length) <= left_s), len(waiting) - 1)

    def _time_for(self, waiting: Sequence[float]) -> tuple[float, float]:
        everybody = self.everybody()
        if not everybody:
            return math.inf, 0.0
        end_s = all_done_s(self.group * math.fsum(waiting), everybody)
        # Somebody has to take the longest: who would have it done first.
        end_s = max(end_s, min(one.free_s + waiting[0] * one.batch_s for one in everybody))
        return SLACK * end_s - everybody[0].free_s, everybody[0].batch_s
