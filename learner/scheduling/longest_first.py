"""Choose which of the prompts in the window a peer is leased: the longest that it will have done when all are done.

Pure. A window that all peers take in one go is not sorted if they are about as fast. Each of them then has one batch,
and a batch of long groups alone would take longest.

Invariants:

- Lengths are relative to the mean, and so is a peer's speed, which says how long it takes for them.
- A group that would end later than all else waits for a peer that is faster, or free sooner, unless there is none.
- If no peer would have the longest group done in time, the one that would have it done first gets it. A peer that would
  have no group done in time gets the shortest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

ONE_GO = 1.25
"""A window of up to this many times what all peers take at once is taken in one go and slightly more."""

FAR_APART = 2.0
"""If the fastest peer is this many times as fast as the slowest, it matters which peer has which batch, also in one
go."""

SLACK = 1.2
"""A group may end this many times later than all would if work could be divided freely, since half a batch remains here
and there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Busy:
    """A working peer: the seconds until it is free, the usual rollouts that it makes a second, and the seconds of a
    batch of the size that it asks for, if all were usual."""

    free_s: float
    rate: float
    batch_s: float


def window_of(room: int, group: int, asked: int, rates: Sequence[float]) -> int:
    """Return how many prompts are leased longest first together; 1 means in the order in which they come.

    Args:
        room: rollouts that may be leased now.
        group: rollouts of a group.
        asked: rollouts that all peers together ask for at a time.
        rates: rates of the peers, as far as they are known.
    """
    is_sorted = room > ONE_GO * asked or max(rates, default=0.0) > FAR_APART * min(rates, default=0.0)
    return max(1, room // group) if is_sorted else 1


def all_done_s(work: float, peers: Iterable[Busy]) -> float:
    """Return when this many usual rollouts are made by these peers, each from when it is free on, if work could be
    divided freely."""
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
    """The next batch of a peer, in groups of `group` rollouts. `chosen` has the lengths of the groups chosen so far.
    `everybody` returns the working peers, this one first, or none if nothing is known of this one. It is called once,
    since there may be thousands."""

    everybody: Callable[[], Sequence[Busy]]
    group: int
    chosen: list[float] = field(default_factory=list)
    _time: tuple[float, float] | None = None
    """The seconds available for the batch, and the seconds that it takes if it is usual."""

    def place(self, waiting: Sequence[float]) -> int:
        """Return which of the groups that wait in the window, the longest first, is for this peer: the first that it
        will have done in time, else the last."""
        left_s, batch_s = self._time = self._time or self._time_for(waiting)
        longest, total, count = max(self.chosen, default=0.0), math.fsum(self.chosen), len(self.chosen) + 1

        def takes_s(length: float) -> float:
            """Return the mean of two engines: one takes as long for a batch as for its longest group, the other as for
            all groups."""
            return (max(longest, length) + (total + length) / count) / 2 * batch_s

        return next((place for place, length in enumerate(waiting) if takes_s(length) <= left_s), len(waiting) - 1)

    def _time_for(self, waiting: Sequence[float]) -> tuple[float, float]:
        everybody = self.everybody()
        if not everybody:
            return math.inf, 0.0
        end_s = all_done_s(self.group * math.fsum(waiting), everybody)
        # Some peer has to take the longest group: the one that would have it done first.
        end_s = max(end_s, min(one.free_s + waiting[0] * one.batch_s for one in everybody))
        return SLACK * end_s - everybody[0].free_s, everybody[0].batch_s
