"""Hold back writes and reads until the node's caps allow them.

All connections of the node share one `Pacer` for each direction; `swarm.libp2p.sockets.fair_rate_limit` decides their
order.

Invariants:

- A waiter is woken only when something was granted to it.
- Waiting may be cancelled, and then nothing was taken.

Loop: `run` sleeps until the core's `next_at`, and is woken when that moves forward.
"""

from __future__ import annotations

import fcntl
import math
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import trio

from swarm.libp2p.sockets.fair_rate_limit import (
    SMALL_BYTES,
    Asked,
    Event,
    Flow,
    Pacing,
    Tick,
    Ticket,
    Unused,
    Withdrawn,
)
from swarm.libp2p.sockets.tcp import TcpConnection

BITS = 8

_flows = count()


class Pacer:
    """The cap of one direction. `take` waits only while `run` runs."""

    def __init__(self, bits_per_s: float) -> None:
        self._core = Pacing(bytes_per_s=bits_per_s / BITS)
        self._tickets = count()
        self._waiting: dict[Ticket, trio.Event] = {}
        self._alarm = math.inf
        self._sooner = trio.Event()

    @property
    def piece_bytes(self) -> int:
        """The most bytes that can be taken at a time."""
        return self._core.piece_bytes

    async def run(self) -> None:
        """Grant what is due, until cancelled."""
        while True:
            self._alarm, self._sooner = self._core.next_at, trio.Event()
            with trio.CancelScope(deadline=self._alarm):
                await self._sooner.wait()
            self._handle(Tick())

    async def take(self, size: int, *, flow: Flow, small: bool) -> None:
        """Return when `size` bytes of connection `flow` may go, without a checkpoint if they may go at once.

        `small` marks them as a small message. Cancelling takes nothing.
        """
        ticket, granted = next(self._tickets), trio.Event()
        self._waiting[ticket] = granted
        self._handle(Asked(ticket=ticket, flow=flow, size=size, small=small))
        if granted.is_set():
            return
        try:
            await granted.wait()
        except trio.Cancelled:
            # It may have been granted already, and this task was cancelled before it could hear of it.
            gone = self._waiting.pop(ticket, None) is None
            self._handle(Unused(size=size) if gone else Withdrawn(ticket=ticket))
            raise

    def _handle(self, event: Event) -> None:
        for ticket in self._core.handle(event, trio.current_time()):
            self._waiting.pop(ticket).set()
        if self._core.next_at < self._alarm:
            self._sooner.set()


@dataclass(frozen=True, kw_only=True)
class Caps:
    """Limit what a node sends and receives; a direction without a pacer has no cap."""

    upload: Pacer | None = None
    download: Pacer | None = None

    def connection(self, stream: trio.SocketStream, *, is_initiator: bool) -> TcpConnection:
        """Return a connection that keeps to the caps. Without caps it is a plain `TcpConnection`."""
        if self.upload is None and self.download is None:
            return TcpConnection(stream, is_initiator=is_initiator)
        return PacedTcpConnection(stream, is_initiator=is_initiator, caps=self)


class PacedTcpConnection(TcpConnection):
    """Keep to a cap on what a connection sends, on what it receives, or on both."""

    def __init__(self, stream: trio.SocketStream, *, is_initiator: bool, caps: Caps) -> None:
        super().__init__(stream, is_initiator=is_initiator)
        self._upload, self._download = caps.upload, caps.download
        self._flow = next(_flows)

    async def write(self, data: bytes | memoryview) -> None:
        """Send all of `data`, each piece when it is granted."""
        if self._upload is None:
            await super().write(data)
            return
        small = len(data) <= SMALL_BYTES
        for piece in _pieces(data, self._upload.piece_bytes):
            await self._upload.take(len(piece), flow=self._flow, small=small)
            await super().write(piece)
            await trio.lowlevel.checkpoint()  # nothing else here need wait, and other connections must ask as well

    async def _wait_for(self, size: int) -> int:
        """Wait for bytes, then for leave to read them. Meanwhile they fill TCP's window, which slows the peer."""
        if self._download is None:
            return await super()._wait_for(size)
        most = min(self._download.piece_bytes, self.receive_bytes)
        await super()._wait_for(min(size, most))
        waiting = _num_readable(self._stream.socket)
        if not waiting:  # the end, or an error, which costs nothing
            return 1
        await self._download.take(min(waiting, most), flow=self._flow, small=waiting <= SMALL_BYTES)
        return min(waiting, most)


def _pieces(data: bytes | memoryview, most: int) -> Iterator[memoryview]:
    """Return `data` in as few pieces as possible, all about equally long."""
    view, num_pieces = memoryview(data), max(1, -(-len(data) // most))
    size = max(1, -(-len(data) // num_pieces))
    return (view[start : start + size] for start in range(0, len(view), size))


def _num_readable(socket: trio.socket.SocketType) -> int:
    """Return how many bytes can be read without waiting."""
    return int.from_bytes(fcntl.ioctl(socket.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)
