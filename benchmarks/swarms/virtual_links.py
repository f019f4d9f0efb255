"""Simulate links in virtual time: uplinks, downlinks, and the queues of the routers between.

Every node has a `Port`. Its uplink sends pieces of the current transfers in turn; its downlink receives them in the
order of their arrival. A transfer has at most a few pieces between the two, as with a congestion window. A small
message overtakes pieces in its sender, but waits for the router's queue, and queues at the receiver; its bytes count on
both links.

Invariants:

- The same calls give the same times.
- A link is never idle while something could use it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf
from typing import Any

PIECE_OVERHEAD = 0.006
"""Overhead over a piece's bytes: TLS records, muxer frames, window updates. TCP and IP headers are taken off the
rates."""

WINDOW_PIECES = 3
"""Pieces of one transfer under way, besides those that the latency holds: the path is full, and its queues short."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """Rates in Mbit/s of payload; one-way latency to the middle of the network in seconds."""

    up: float
    down: float
    latency_s: float = 0.0005


@dataclass(frozen=True, kw_only=True)
class Router:
    """The queue before a busy uplink: this many bytes, or this many seconds if that is more. Messages wait for it."""

    queue_bytes: int = 0
    queue_s: float = 0.0


NO_QUEUE = Router()


class Clock:
    """Virtual time: due actions run in order, and those due at the same time in the order of their requests."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = count()
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, when: float, act: Callable[..., None], *args: Any) -> None:
        """Call `act(*args)` at `when`."""
        heappush(self._due, (when, next(self._order), act, args))

    def run(self, goes_on: Callable[[], bool], until: float) -> None:
        """Let time pass while `goes_on()`, an action is due, and it is not yet `until`."""
        while self._due and goes_on():
            when, _, act, args = heappop(self._due)
            if when > until:
                return
            self.now = when
            act(*args)


class Transfer:
    """One chunk on its way to `to`, in `num_pieces` pieces of `piece_bytes`.

    `moved` is called when a piece other than the last has left, `sent` when the last has, `landed` when it has arrived.
    """

    __slots__ = ("landed", "landings", "left", "moved", "piece_bytes", "sent", "to", "window")

    def __init__(
        self,
        *,
        to: Port,
        num_pieces: int,
        piece_bytes: float,
        moved: Callable[[], None],
        sent: Callable[[], None],
        landed: Callable[[], None],
    ) -> None:
        self.to = to
        self.left = num_pieces
        self.piece_bytes = piece_bytes
        self.moved, self.sent, self.landed = moved, sent, landed
        self.window = WINDOW_PIECES
        self.landings: deque[float] = deque()  # arrival times of the pieces under way


class Port:
    """One node's uplink and downlink. Nothing leaves or reaches a port that is not `present`."""

    def __init__(self, name: str, clock: Clock, link: Link, router: Router) -> None:
        self.name = name
        self._clock = clock
        self._router = router
        self.present = False
        self.sent_bytes = 0.0
        self.control_bytes = 0
        self._heard: dict[str, float] = {}  # by sender: when its last piece arrives
        self._said: dict[Port, float] = {}
        self._turns: deque[Transfer] = deque()
        self._sending = False
        self._wakes_at = inf
        self._debt_s = 0.0
        self._up_until = 0.0
        self._down_until = 0.0
        self.set_link(link)

    def set_link(self, link: Link) -> None:
        """Change the links from now on."""
        self.link = link
        self._up_s, self._down_s = 8e-6 / link.up, 8e-6 / link.down
        self._queue_s = max(self._router.queue_s, self._router.queue_bytes * self._up_s)

    def say(self, to: Port, size: int, hear: Callable[..., None], *args: Any) -> None:
        """Send a small message: `hear(*args)` is called when it has arrived."""
        self.control_bytes += size
        self._debt_s += size * self._up_s
        leaves = max(self._clock.now, self._up_until) + (self._queue_s if self._sending else 0.0)
        arrives = max(to._down_until, leaves + self.link.latency_s + to.link.latency_s) + size * to._down_s
        arrives = self._said[to] = max(arrives, self._said.get(to, 0.0))  # in the order in which they were sent
        to._down_until += size * to._down_s  # not until it arrives: other traffic does not wait for it
        self._clock.at(arrives, hear, *args)

    def send(self, transfer: Transfer) -> None:
        """Begin a transfer."""
        path_s = self.link.latency_s + transfer.to.link.latency_s
        piece_s = transfer.piece_bytes * max(self._up_s, transfer.to._down_s)
        transfer.window = WINDOW_PIECES + ceil(path_s / piece_s)
        self._turns.append(transfer)
        if not self._sending:
            self._next()

    def take_heard(self) -> list[str]:
        """Return the senders of pieces that have arrived since the last call, except those with more under way."""
        now = self._clock.now
        heard = [name for name, landed in self._heard.items() if landed <= now]
        for name in heard:
            del self._heard[name]
        return heard

    def forget(self, to: Port) -> None:
        """Give up the transfers to `to`."""
        self._turns = deque(transfer for transfer in self._turns if transfer.to is not to)

    def _next(self) -> None:
        """Put the next piece on the uplink, from the next transfer in turn whose window is open."""
        now, soonest = self._clock.now, inf
        for _ in range(len(self._turns)):
            transfer = self._turns.popleft()
            landings = transfer.landings
            while landings and landings[0] <= now:
                landings.popleft()
            if len(landings) < transfer.window:
                self._sending = True
                self._up_until = now + transfer.piece_bytes * (1 + PIECE_OVERHEAD) * self._up_s + self._debt_s
                self._debt_s = 0.0
                self._clock.at(self._up_until, self._has_left, transfer)
                return
            self._turns.append(transfer)
            soonest = min(soonest, landings[0])
        self._debt_s = 0.0
        if soonest < self._wakes_at:
            self._wakes_at = soonest
            self._clock.at(soonest, self._wake)

    def _wake(self) -> None:
        if self._clock.now >= self._wakes_at:
            self._wakes_at = inf
        if not self._sending:
            self._next()

    def _has_left(self, transfer: Transfer) -> None:
        self._sending = False
        to = transfer.to
        if self.present and to.present:
            self.sent_bytes += transfer.piece_bytes
            arrives = self._clock.now + self.link.latency_s + to.link.latency_s
            landed = max(to._down_until, arrives) + transfer.piece_bytes * to._down_s
            to._down_until = to._heard[self.name] = landed
            transfer.landings.append(landed)
            transfer.left -= 1
            if transfer.left:
                self._turns.append(transfer)
                transfer.moved()
            else:
                self._clock.at(landed, transfer.landed)
                transfer.sent()
        if self.present and not self._sending:
            self._next()
