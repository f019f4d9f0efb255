"""Hold back writes and reads until the node's caps allow them.

All connections of the node share one `Pacer` for each direction; `swarm.libp2p.sockets.fair_rate_limit` decides their
order.

Invariants:

- A waiter is woken only when something was granted to it, or the cap was lifted.
- Waiting may be cancelled, and then nothing was taken.
- A new cap holds for all connections, from the next piece that one of them reads or writes.

Loop: `run` sleeps until the core's `next_at`, and is woken when that moves forward.
"""

from __future__ import annotations

import fcntl
import math
import sys
import termios
from dataclasses import dataclass
from itertools import count

import trio

from swarm.libp2p.sockets.fair_rate_limit import (
    SMALL_BYTES,
    Asked,
    Event,
    Flow,
    Pacing,
    Rated,
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
        self._lifted = trio.CancelScope()

    @property
    def piece_bytes(self) -> int:
        """The most bytes that can be taken at a time."""
        return self._core.piece_bytes

    async def run(self) -> None:
        """Grant what is due, until cancelled or until the cap is lifted."""
        with self._lifted:
            while True:
                self._alarm, self._sooner = self._core.next_at, trio.Event()
                with trio.CancelScope(deadline=self._alarm):
                    await self._sooner.wait()
                self._handle(Tick())

    def change(self, bits_per_s: float) -> None:
        """Cap at another rate from now on."""
        self._handle(Rated(bytes_per_s=bits_per_s / BITS))

    def lift(self) -> None:
        """Let everyone go that waits, and end `run`. Nobody may `take` from now on."""
        self._lifted.cancel()
        for granted in self._waiting.values():
            granted.set()
        self._waiting.clear()

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


@dataclass(kw_only=True, eq=False)
class Caps:
    """Limit what a node sends and receives; a direction without a pacer has no cap."""

    upload: Pacer | None = None
    download: Pacer | None = None

    def connection(self, stream: trio.SocketStream, *, is_initiator: bool) -> TcpConnection:
        """Return a connection that keeps to the caps, which may change while it lasts."""
        return PacedTcpConnection(stream, is_initiator=is_initiator, caps=self)

    def limit(
        self, nursery: trio.Nursery, *, upload_bits_per_s: float | None, download_bits_per_s: float | None
    ) -> None:
        """Set both caps from now on; None is no cap. New pacers run in `nursery`."""
        self.upload = _paced(self.upload, upload_bits_per_s, nursery)
        self.download = _paced(self.download, download_bits_per_s, nursery)


def _paced(pacer: Pacer | None, bits_per_s: float | None, nursery: trio.Nursery) -> Pacer | None:
    """Return the pacer for a cap, made of the one before."""
    if bits_per_s is None:
        if pacer is not None:
            pacer.lift()
        return None
    if pacer is None:
        return start_pacer(bits_per_s, nursery)
    pacer.change(bits_per_s)
    return pacer


def start_pacer(bits_per_s: float, nursery: trio.Nursery) -> Pacer:
    """Return a pacer that runs in `nursery`."""
    pacer = Pacer(bits_per_s)
    nursery.start_soon(pacer.run)
    return pacer


class PacedTcpConnection(TcpConnection):
    """Keep to the caps of the moment: on what a connection sends, on what it receives, on both, or on neither."""

    def __init__(self, stream: trio.SocketStream, *, is_initiator: bool, caps: Caps) -> None:
        super().__init__(stream, is_initiator=is_initiator)
        self._caps = caps
        self._flow = next(_flows)

    @property
    def is_paced(self) -> bool:
        return self._caps.upload is not None or self._caps.download is not None

    async def write(self, data: bytes | memoryview) -> None:
        """Send all of `data`, each piece when it is granted."""
        view, small = memoryview(data), len(data) <= SMALL_BYTES
        while (upload := self._caps.upload) is not None and len(view):
            size = _piece(len(view), upload.piece_bytes)
            await upload.take(size, flow=self._flow, small=small)
            await super().write(view[:size])
            view = view[size:]
            await trio.lowlevel.checkpoint()  # nothing else here need wait, and other connections must ask as well
        if len(view):
            await super().write(view)

    async def _wait_for(self, size: int) -> int:
        """Wait for bytes, then for leave to read them. Meanwhile they fill TCP's window, which slows the peer."""
        if (download := self._caps.download) is None:
            return await super()._wait_for(size)
        await super()._wait_for(min(size, download.piece_bytes, self.receive_bytes))
        if (download := self._caps.download) is None:  # it was lifted meanwhile
            return self.receive_bytes
        most = min(download.piece_bytes, self.receive_bytes)
        waiting = _num_readable(self._stream.socket)
        if not waiting:  # the end, or an error, which costs nothing
            return 1
        await download.take(min(waiting, most), flow=self._flow, small=waiting <= SMALL_BYTES)
        return min(waiting, most)


def _piece(size: int, most: int) -> int:
    """Return the size of the next piece of `size` bytes, cut into as few pieces as possible, all about equally long."""
    return -(-size // -(-size // most))


def _num_readable(socket: trio.socket.SocketType) -> int:
    """Return how many bytes can be read without waiting."""
    return int.from_bytes(fcntl.ioctl(socket.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)
