"""Decide which requests are answered, wait, or are refused.

A request enters before its body is read, so that the waiting requests are bounded in bytes as well. It begins when
there is room for all of its completions, in the order of the requests.

Invariants:

- At most `most_requests` are inside, and at most `most_completions` run.
- A request that leaves for any reason frees its room, and lets the next one begin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from node.commands.serve.api_error import ApiError, busy
from node.commands.serve.limits import MAX_COMPLETIONS, MAX_REQUESTS, WAIT_S


@dataclass(eq=False, kw_only=True)
class Place:
    """One request inside. Once it has begun, `weight` completions of it run."""

    weight: int = 0
    begun: trio.Event = field(default_factory=trio.Event)


@dataclass(kw_only=True)
class Admission:
    """The requests inside, and those that wait."""

    most_requests: int = MAX_REQUESTS
    most_completions: int = MAX_COMPLETIONS
    wait_s: float = WAIT_S
    num_requests: int = 0
    num_completions: int = 0
    _waiting: deque[Place] = field(default_factory=deque)

    @contextmanager
    def entered(self) -> Iterator[Place]:
        """Let a request in. Raises ApiError 429 if there is no room."""
        if self.num_requests >= self.most_requests:
            raise busy(f"The server is full: {self.num_requests} requests run or wait. Try again later.")
        self.num_requests += 1
        place = Place()
        try:
            yield place
        finally:
            self.num_requests -= 1
            self._leave(place)

    async def begin(self, place: Place, weight: int) -> None:
        """Wait until `weight` more completions may run. Raises ApiError 503 if that takes too long."""
        place.weight = weight
        self._waiting.append(place)
        self._begin_next()
        with trio.move_on_after(self.wait_s):
            await place.begun.wait()
        if not place.begun.is_set():
            raise ApiError(503, f"Other requests took all completions for {self.wait_s:.0f} s. Try again later.")

    def _leave(self, place: Place) -> None:
        if place.begun.is_set():
            self.num_completions -= place.weight
        elif place in self._waiting:
            self._waiting.remove(place)
        self._begin_next()

    def _begin_next(self) -> None:
        while self._waiting and self.num_completions + self._waiting[0].weight <= self.most_completions:
            place = self._waiting.popleft()
            self.num_completions += place.weight
            place.begun.set()
