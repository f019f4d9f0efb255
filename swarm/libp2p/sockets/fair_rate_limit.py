"""Decide how many bytes may go one way, and whose are next: a token bucket that all connections share in turns.

    asked --granted--> over (the caller moves so many bytes at once)
      +-- withdrawn        ... or gives back what it does not use

A pure core. Fairness is start-time fair queueing (Goyal, Vin and Cheng, 1996).

Invariants:

- Over any t seconds at most `bytes_per_s * t` bytes and one burst move. After a change of the rate, requests that wait
  already may move once in pieces of the old size.
- Connections that ask for one piece of bulk after another get equal shares, however large each piece is.
- Small messages go before bulk, into the bucket's overdraft if need be. Between two grants to waiting bulk, they take
  at most one piece, so that nobody starves.
- A withdrawn request costs nothing.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

PIECE_S = 0.02
"""Seconds that a piece takes at the full rate. Nothing overtakes a granted piece; each costs both ends a wake-up."""

MIN_PIECE_BYTES = 4 * 1024
"""Least bytes of a piece: below 1.6 Mbit/s pieces last longer, rather than being mostly headers and wake-ups."""

SLACK_S = 0.02
"""Seconds of the rate that are kept for a task that is woken late: a loop that is busy with encryption is late by
milliseconds."""

OVERDRAFT_S = 0.01
"""Seconds of the rate that small messages may take ahead of time. With piece and slack, the bucket never gives more
than 50 ms at once."""

SMALL_BYTES = 2 * 1024
"""Bytes. A write, or what waits to be read, is a small message up to this size: HAVE, requests, BUSY, heartbeats."""

TOLERANCE_BYTES = 0.5
"""Bytes. A smaller lack comes only from rounding; to wait for it would be to wait for no time at all, repeatedly."""

Ticket = int
"""Names one request; chosen by the caller, never used twice."""

Flow = int
"""Names a connection; chosen by the caller as well."""

MAX_FLOWS = 4096
"""Connections for which it is remembered what they had: four times those of a full node. Beyond, all are forgotten and
equal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Connection `flow` asks to move `size` bytes, at most `Pacing.piece_bytes`; `small`: they are a small message."""

    ticket: Ticket
    flow: Flow
    size: int
    small: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Withdrawn:
    """The asker has gone. No effect if it was granted already."""

    ticket: Ticket


@dataclass(frozen=True, kw_only=True, slots=True)
class Unused:
    """Bytes that were granted, and did not move after all."""

    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """`next_at` has come."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rated:
    """The rate is another one from now on, above 0."""

    bytes_per_s: float


Event = Asked | Withdrawn | Unused | Rated | Tick


@dataclass(kw_only=True)
class Pacing:
    """Grant requests within the rate. `bytes_per_s` is more than 0."""

    bytes_per_s: float
    piece_bytes: int = field(init=False)
    _capacity: float = field(init=False)
    _overdraft: float = field(init=False)
    _level: float = field(init=False)
    _at: float = -math.inf
    _small: TurnQueue = field(default_factory=lambda: TurnQueue())
    _bulk: TurnQueue = field(default_factory=lambda: TurnQueue())
    _overtaken: int = 0
    _turn: int = 0
    _had: dict[Flow, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._scale()
        self._level = self._capacity

    def _scale(self) -> None:
        """Compute the sizes that follow from the rate."""
        self.piece_bytes = max(MIN_PIECE_BYTES, int(self.bytes_per_s * PIECE_S))
        self._capacity = self.piece_bytes + self.bytes_per_s * SLACK_S
        self._overdraft = max(2 * SMALL_BYTES, self.bytes_per_s * OVERDRAFT_S)
        # Both together are granted at once: 50 ms of the rate, more only if two small messages and a piece are more.

    @property
    def next_at(self) -> float:
        """The time at which to send Tick, if nothing happens before; infinity while nobody waits."""
        waits = [self._lack(queue) for queue in (self._small, self._bulk) if self._may_go(queue)]
        return self._at + max(0.0, min(waits)) / self.bytes_per_s if waits else math.inf

    def handle(self, event: Event, now: float) -> list[Ticket]:
        """Handle one event at time `now` (seconds, monotonic); return the granted tickets in order."""
        match event:
            case Asked(ticket=ticket, flow=flow, size=size, small=small):
                if not 0 < size <= self.piece_bytes:
                    raise ValueError(f"{size} bytes were asked for, a piece has 1 to {self.piece_bytes}")
                if small:
                    self._small.add(ticket, size, 0)
                else:
                    self._bulk.add(ticket, size, self._take_turn(flow, size))
            case Withdrawn(ticket=ticket):
                self._small.remove(ticket)
                self._bulk.remove(ticket)
            case Unused(size=size):
                self._level += size
            case Rated(bytes_per_s=bytes_per_s):
                self._refill(now)
                self.bytes_per_s = bytes_per_s
                self._scale()
            case Tick():
                pass
        self._refill(now)
        granted: list[Ticket] = []
        for queue in (self._small, self._bulk, self._small):  # bulk that was granted may let small messages go on
            while self._may_go(queue) and self._lack(queue) <= TOLERANCE_BYTES:
                granted.append(self._grant(queue))
        return granted

    def _refill(self, now: float) -> None:
        since = max(now, self._at) - self._at if self._at > -math.inf else 0.0
        self._level = min(self._capacity, self._level + since * self.bytes_per_s)
        self._at = max(now, self._at)

    def _take_turn(self, flow: Flow, size: int) -> int:
        """Return the turn of `flow`, in virtual time: the bytes that a connection which never pauses has had by then.

        Each turn comes after the bytes that the flow itself has had.
        """
        turn = max(self._turn, self._had.get(flow, 0))
        if len(self._had) >= MAX_FLOWS:
            self._had.clear()
        self._had[flow] = turn + size
        return turn

    def _may_go(self, queue: TurnQueue) -> bool:
        """Return whether the first in `queue` may go, apart from tokens."""
        if queue is self._small and queue and self._bulk:
            return self._overtaken + queue.size <= self.piece_bytes
        return bool(queue)

    def _lack(self, queue: TurnQueue) -> float:
        """Return the bytes that the first of `queue` still lacks; negative if there are more than enough.

        A request from before the rate fell may be larger than the bucket. A full bucket suffices, and the rest is owed.
        """
        return min(queue.size, self._capacity) - self._level - (self._overdraft if queue is self._small else 0.0)

    def _grant(self, queue: TurnQueue) -> Ticket:
        turn, ticket, size = queue.pop()
        self._level -= size
        if queue is self._bulk:
            self._turn = max(self._turn, turn)
        self._overtaken = self._overtaken + size if queue is self._small and self._bulk else 0
        return ticket


class TurnQueue:
    """Queue requests, by turn and then by ticket. `size` is that of the first."""

    def __init__(self) -> None:
        self._sizes: dict[Ticket, int] = {}
        self._heap: list[tuple[int, Ticket]] = []

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def size(self) -> int:
        return self._sizes[self._heap[0][1]]

    def add(self, ticket: Ticket, size: int, turn: int) -> None:
        self._sizes[ticket] = size
        heapq.heappush(self._heap, (turn, ticket))

    def remove(self, ticket: Ticket) -> None:
        """Forget the request, if it is there."""
        self._sizes.pop(ticket, None)
        self._forget_gone()

    def pop(self) -> tuple[int, Ticket, int]:
        """Take out the first; return its turn, its ticket and its size."""
        turn, ticket = heapq.heappop(self._heap)
        size = self._sizes.pop(ticket)
        self._forget_gone()
        return turn, ticket, size

    def _forget_gone(self) -> None:
        while self._heap and self._heap[0][1] not in self._sizes:
            heapq.heappop(self._heap)
