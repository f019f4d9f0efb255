"""Who is answered, who waits, and who is sent away.

A request enters before its body is read, so that what waits is bounded in bytes as well. It begins once there is room
for all of its completions, in the order in which requests asked.

Invariants:
- never more than `most_requests` are inside, and never more than `most_completions` run;
- a request that leaves, however it does, gives back what it had, and lets the next one begin.
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
    """One request inside. `weight` completions run, once it has begun."""

    weight: int = 0
    begun: trio.Event = field(default_factory=trio.Event)


@dataclass(kw_only=True)
class Admission:
    """See the module's paragraph."""

    most_requests: int = MAX_REQUESTS
    most_completions: int = MAX_COMPLETIONS
    wait_s: float = WAIT_S
    num_requests: int = 0
    num_completions: int = 0
    _waiting: deque[Place] = field(default_factory=deque)

    @contextmanager
    def entered(self) -> Iterator[Place]:
        """Be inside. Raises ApiError 429 where there is no room."""
        if self.num_requests >= self.most_requests:
            raise busy(f"{self.num_requests} requests are answered or wait for that. Try again later.")
        self.num_requests += 1
        place = Place()
        try:
            yield place
        finally:
            self.num_requests -= 1
            self._leave(place)

    async def begin(self, place: Place, weight: int) -> None:
        """Wait until so many completions may run. Raises ApiError 503 where that takes too long."""
        place.weight = weight
        self._waiting.append(place)
        self._begin_next()
        with trio.move_on_after(self.wait_s):
            await place.begun.wait()
        if not place.begun.is_set():
            raise ApiError(503, f"Others' completions have run for {self.wait_s:.0f} s. Try again later.")

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
