"""Where rows of metrics go: the port that every sink fits, and the outlet that feeds one.

What always holds: the learner waits for no sink, and no sink's failure reaches it. Each has a queue of its own, of
QUEUE rows, whose oldest are lost when it cannot keep up (and counted); a thread of its own calls it; when it fails that
is said once, what it held is closed, and it is tried again after RETRY_S. On the way out it has CLOSE_S to write what
waits. A sink that goes on from a step is told so first, and rows it has of later steps are superseded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import trio

from node.learner_role.metrics.board import Row
from node.learner_role.metrics.sample_store import Sample
from node.runtime.events import EventLog

QUEUE = 256
"""Rows that wait for one sink: minutes of quick steps, hours of slow ones, 10 KB each."""

RETRY_S = 30.0
"""How long a sink that failed is left alone: a full disk is not freed in less."""

NOTICE_S = 2.0
"""How often a sink is asked what it noticed: nobody waits for it with a stop watch."""

MAX_REASON = 300
"""Characters of a failure that are told."""

CLOSE_S = 3.0
"""What all sinks together may take at the end; Ctrl-C is to end the learner within 5 s."""


R_contra = TypeVar("R_contra", bound=Row | Sample, contravariant=True)
R = TypeVar("R", bound=Row | Sample)


class Sink(Protocol[R_contra]):
    """Something that keeps rows. Called from one thread at a time, never from trio's; whatever it raises is a failure
    of its own."""

    @property
    def name(self) -> str:
        """What events and `rows_lost` call it."""
        ...

    def begin(self, incarnation: int, base: int) -> None:
        """Open it. Rows of `incarnation` follow, of steps after `base`; rows of such steps from before are superseded.

        After `close`, and after a failure, it may be begun again.
        """
        ...

    def write(self, row: R_contra, /) -> None:
        """Keep a row. Steps come in order, but for rows that complete an earlier one, such as an evaluation's."""
        ...

    def close(self) -> None:
        """Make what was written last, and let go."""
        ...


@runtime_checkable
class Noticing(Protocol):
    """A sink that finds out by itself what people should know: that nobody answers where its rows are to go."""

    def notice(self) -> str:
        """What is new of that, one sentence or two at a time; empty if nothing is. Called from trio's thread; never
        waits.
        """
        ...


@dataclass(frozen=True)
class _Begin:
    """Among the rows that wait: an incarnation goes on from step `base`."""

    incarnation: int
    base: int


@dataclass(kw_only=True)
class SinkQueue(Generic[R]):
    """Feeds one sink. `lost` is told how many rows it did not get, from any thread."""

    sink: Sink[R]
    events: EventLog
    lost: Callable[[int], None] = lambda rows: None
    _queue: deque[_Begin | R] = field(default_factory=deque)
    _queueing: Lock = field(default_factory=Lock)
    _using: Lock = field(default_factory=Lock)
    _at: _Begin | None = None
    """Where the sink stands, and below: touched by who holds `_using`."""
    _is_open: bool = False
    _failure: str = ""
    _wake: trio.Event = field(default_factory=trio.Event)

    def begin(self, incarnation: int, base: int) -> None:
        """Rows that follow are of `incarnation`, of steps after `base`; of those that wait, such steps are lost now."""
        with self._queueing:
            kept = [one for one in self._queue if isinstance(one, _Begin) or one.step <= base]
            while kept and isinstance(kept[-1], _Begin):
                kept.pop()
            self._queue = deque([*kept, _Begin(incarnation, base)])
        self._wake.set()

    def put(self, row: R) -> None:
        """Have a row written, sooner or later. Never waits."""
        with self._queueing:
            if is_full := len(self._queue) >= QUEUE:
                del self._queue[int(isinstance(self._queue[0], _Begin))]
            self._queue.append(row)
        if is_full:
            self.lost(1)
        self._wake.set()

    async def run(self) -> None:
        """Feed the sink until cancelled, and say what it notices."""
        is_said = False
        while True:
            with trio.move_on_after(NOTICE_S):
                await self._wake.wait()
            self._say_noticed()
            if not self._wake.is_set():
                continue
            self._wake = trio.Event()
            await trio.to_thread.run_sync(self._turn, abandon_on_cancel=True)
            if not self._failure:
                is_said = False
                continue
            if not is_said:
                self.events.emit("metrics_failed", sink=self.sink.name, reason=self._failure, retry_s=RETRY_S)
            is_said, self._failure = True, ""
            await trio.sleep(RETRY_S)
            self._wake.set()

    async def finish(self) -> None:
        """Write what waits and close the sink. May be cancelled: a sink that hangs is left to its thread."""
        await trio.to_thread.run_sync(self._end, abandon_on_cancel=True)
        self._say_noticed()

    def _say_noticed(self) -> None:
        while isinstance(self.sink, Noticing) and (text := self.sink.notice()):
            self.events.emit("metrics_noticed", sink=self.sink.name, text=text)

    def _turn(self) -> None:
        """On a thread: write what waits."""
        with self._using:
            item: _Begin | R | None = None
            try:
                while (item := self._next()) is not None:
                    self._take(item)
            except Exception as error:  # a library of strangers: whatever it raises, training goes on
                self._failure = f"{type(error).__name__}: {error}".splitlines()[0][:MAX_REASON]
                self._is_open = False
                with suppress(Exception):
                    self.sink.close()
                self.lost(int(item is not None and not isinstance(item, _Begin)))

    def _next(self) -> _Begin | R | None:
        with self._queueing:
            return self._queue.popleft() if self._queue else None

    def _take(self, item: _Begin | R) -> None:
        if isinstance(item, _Begin):
            self._at, self._is_open = item, False
        if self._at is None:
            return
        if not self._is_open:
            self.sink.begin(self._at.incarnation, self._at.base)
            self._is_open = True
        if not isinstance(item, _Begin):
            self.sink.write(item)
            # Where to go on after a failure: what was written is not superseded by that.
            self._at = _Begin(item.incarnation, max(self._at.base, item.step))

    def _end(self) -> None:
        self._turn()
        with self._using, suppress(Exception):
            self.sink.close()


@asynccontextmanager
async def feed_queues(outlets: Sequence[SinkQueue[Any]]) -> AsyncIterator[None]:
    """Feed all `outlets` while inside, and let them finish, within CLOSE_S, however it ends."""
    async with trio.open_nursery() as nursery:
        for outlet in outlets:
            nursery.start_soon(outlet.run)
        try:
            yield
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                async with trio.open_nursery() as closing:
                    for outlet in outlets:
                        closing.start_soon(outlet.finish)
            nursery.cancel_scope.cancel()
