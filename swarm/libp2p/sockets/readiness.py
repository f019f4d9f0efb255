"""Wait for the sockets of all connections together, and call the owners of those that are ready in one turn.

A task for each direction of each connection costs a turn of the scheduler, a system call and a dozen objects whenever
a few packets have come. A node with eight busy neighbours spent a fifth of its time on that. Here one task waits for
all of them, by an epoll of its own in which sockets stay registered. If the system has no epoll, `open_readiness`
yields None, and connections have tasks.

Invariants:

- Callbacks do not wait and do not raise.
- No owner is called after its watch has ended.
- An owner that asked to be flushed is flushed once, in this turn or the next.

Loops: `_wait` sleeps until a socket is ready; `_flush` sleeps until an owner asks for a flush.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

HAS_EPOLL = hasattr(select, "epoll")
READABLE, WRITABLE = (select.EPOLLIN, select.EPOLLOUT) if HAS_EPOLL else (1, 4)

MAX_READY = 64
"""Sockets served in one turn; the others are served in the next. Each may bring a quarter of a MiB."""


class Watched(Protocol):
    """The owner of a socket."""

    def on_readable(self) -> None:
        """Read: there are bytes, or the connection is over."""

    def on_writable(self) -> None:
        """Write: there is room for the bytes that wait."""

    def flush(self) -> None:
        """Write what there is to write."""


class Readiness:
    """Call the owners of ready sockets; obtained from `open_readiness`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watches: dict[int, Watch] = {}
        self._due: dict[Watched, None] = {}
        self._asked = trio.Event()
        self._is_calling = False

    @contextmanager
    def watch(self, fd: int, owner: Watched) -> Iterator[Watch]:
        """Call `owner` while the block lasts, which must end before `fd` is closed. At first it waits to read."""
        watch = self._watches[fd] = Watch(self._epoll, fd, owner)
        try:
            watch.want(reading=True, writing=False)
            yield watch
        finally:
            watch.want(reading=False, writing=False)
            del self._watches[fd]
            self._due.pop(owner, None)

    def flush_soon(self, owner: Watched) -> None:
        """Flush `owner` when this turn is over."""
        if not self._due:
            self._asked.set()
        self._due[owner] = None

    def flush_now(self, owner: Watched) -> None:
        """Flush `owner` now; if an owner is being called or flushed just now, then later in the same turn."""
        if self._is_calling:
            self.flush_soon(owner)
        else:
            with self._calling():
                owner.flush()

    def close(self) -> None:
        """Stop watching. Nothing may run any more."""
        self._epoll.close()

    async def run(self) -> None:
        """Serve all watched sockets until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wait)
            nursery.start_soon(self._flush)

    async def _wait(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            with self._calling():
                for fd, events in self._epoll.poll(0, MAX_READY):
                    if (watch := self._watches.get(fd)) is not None:
                        watch.call(events)
                self._flush_due()

    async def _flush(self) -> None:
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            with self._calling():
                self._flush_due()

    @contextmanager
    def _calling(self) -> Iterator[None]:
        self._is_calling = True
        try:
            yield
        finally:
            self._is_calling = False

    def _flush_due(self) -> None:
        due, self._due = self._due, {}
        for owner in due:
            owner.flush()


class Watch:
    """One socket, and what its owner waits for."""

    __slots__ = ("_epoll", "_fd", "_mask", "_owner")

    def __init__(self, epoll: select.epoll, fd: int, owner: Watched) -> None:
        self._epoll, self._fd, self._owner = epoll, fd, owner
        self._mask = 0

    @property
    def reading(self) -> bool:
        """Whether its owner waits for bytes."""
        return bool(self._mask & READABLE)

    @property
    def writing(self) -> bool:
        """Whether its owner waits for room."""
        return bool(self._mask & WRITABLE)

    def want(self, *, reading: bool, writing: bool) -> None:
        """Set what the owner waits for. While it waits for nothing, it does not even learn that the socket ended."""
        mask = (READABLE if reading else 0) | (WRITABLE if writing else 0)
        if mask == self._mask:
            return
        if not self._mask:
            self._epoll.register(self._fd, mask)
        elif mask:
            self._epoll.modify(self._fd, mask)
        else:
            self._epoll.unregister(self._fd)
        self._mask = mask

    def call(self, events: int) -> None:
        """Call the owner. An error goes to the callback that waits, since it shows at the next read or write."""
        if self._mask & READABLE and events & ~WRITABLE:
            self._owner.on_readable()
        if self._mask & WRITABLE and events & ~READABLE:
            self._owner.on_writable()


@contextmanager
def open_readiness() -> Iterator[Readiness | None]:
    """Yield a `Readiness`, whose `run` must have ended when the block does; None if the system has no epoll."""
    if not HAS_EPOLL:
        yield None
        return
    readiness = Readiness()
    try:
        yield readiness
    finally:
        readiness.close()
