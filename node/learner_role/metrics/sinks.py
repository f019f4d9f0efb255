"""Define the interface of metric sinks, and feed each sink from a queue.

Invariants:

- The learner waits for no sink, and no failure of a sink affects it.
- Each sink has a queue of QUEUE rows. If the sink is too slow, the oldest rows are lost, and counted.
- Each sink is called on a thread of its own.
- The first failure of a sink is reported. The sink is closed, and tried again after RETRY_S.
- At the end, a sink has CLOSE_S to write the waiting rows.
- A sink that continues from a step is told so first. Its rows of later steps are superseded.
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
"""Most rows that wait for one sink: minutes of quick steps, or hours of slow ones, 10 KB each."""

RETRY_S = 30.0
"""Seconds after which a failed sink is tried again. A full disk is not freed in less time."""

NOTICE_S = 2.0
"""Seconds between two requests for a sink's notices, which are not urgent."""

MAX_REASON = 300
"""Most characters of a failure in its event."""

CLOSE_S = 3.0
"""Most seconds for all sinks together at the end. Ctrl-C must end the learner within 5 s."""


R_contra = TypeVar("R_contra", bound=Row | Sample, contravariant=True)
R = TypeVar("R", bound=Row | Sample)


class Sink(Protocol[R_contra]):
    """Something that stores or sends rows. It is called from one thread at a time, never from trio's.

    Any error that it raises counts as its failure.
    """

    @property
    def name(self) -> str:
        """The name in events and in `rows_lost`."""
        ...

    def begin(self, incarnation: int, base: int) -> None:
        """Open the sink. Rows of `incarnation` follow, of steps after `base`, and supersede earlier rows of such steps.

        After `close`, and after a failure, it may begin again.
        """
        ...

    def write(self, row: R_contra, /) -> None:
        """Store a row. Steps come in order, except rows that complete an earlier one, such as an evaluation's."""
        ...

    def close(self) -> None:
        """Finish the last writes, and close."""
        ...


@runtime_checkable
class Noticing(Protocol):
    """A sink that has notices for the operator, for instance that its server does not answer."""

    def notice(self) -> str:
        """Return a new notice of one or two sentences, or "". Called from trio's thread; never waits."""
        ...


@dataclass(frozen=True)
class _Begin:
    """An entry among the waiting rows: an incarnation begins at step `base`."""

    incarnation: int
    base: int


@dataclass(kw_only=True)
class SinkQueue(Generic[R]):
    """Feeds one sink. `lost` is called with the number of rows that the sink did not get, from any thread."""

    sink: Sink[R]
    events: EventLog
    lost: Callable[[int], None] = lambda rows: None
    _queue: deque[_Begin | R] = field(default_factory=deque)
    _queueing: Lock = field(default_factory=Lock)
    _using: Lock = field(default_factory=Lock)
    _at: _Begin | None = None
    """The sink's position. This and the next fields are only for the holder of `_using`."""
    _is_open: bool = False
    _failure: str = ""
    _wake: trio.Event = field(default_factory=trio.Event)

    def begin(self, incarnation: int, base: int) -> None:
        """Note that rows of `incarnation` follow, of steps after `base`. Waiting rows of such steps are dropped."""
        with self._queueing:
            kept = [one for one in self._queue if isinstance(one, _Begin) or one.step <= base]
            while kept and isinstance(kept[-1], _Begin):
                kept.pop()
            self._queue = deque([*kept, _Begin(incarnation, base)])
        self._wake.set()

    def put(self, row: R) -> None:
        """Queue a row. Never waits."""
        with self._queueing:
            if is_full := len(self._queue) >= QUEUE:
                del self._queue[int(isinstance(self._queue[0], _Begin))]
            self._queue.append(row)
        if is_full:
            self.lost(1)
        self._wake.set()

    async def run(self) -> None:
        """Feed the sink until cancelled, and emit its notices."""
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
        """Write the waiting rows and close the sink. May be cancelled: a sink that hangs is left to its thread."""
        await trio.to_thread.run_sync(self._end, abandon_on_cancel=True)
        self._say_noticed()

    def _say_noticed(self) -> None:
        while isinstance(self.sink, Noticing) and (text := self.sink.notice()):
            self.events.emit("metrics_noticed", sink=self.sink.name, text=text)

    def _turn(self) -> None:
        """On a thread: write the waiting rows."""
        with self._using:
            item: _Begin | R | None = None
            try:
                while (item := self._next()) is not None:
                    self._take(item)
            except Exception as error:  # a third-party library may raise anything, and training must go on
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
            # The position to continue from after a failure, so that written rows are not superseded.
            self._at = _Begin(item.incarnation, max(self._at.base, item.step))

    def _end(self) -> None:
        self._turn()
        with self._using, suppress(Exception):
            self.sink.close()


@asynccontextmanager
async def feed_queues(outlets: Sequence[SinkQueue[Any]]) -> AsyncIterator[None]:
    """Feed all `outlets` while inside. At the end, for any reason, let them finish within CLOSE_S."""
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
