"""Carry bytes between a muxer and the secure connection below it, in one of two ways.

`InTurns` has one task that reads and never writes, and one that writes and does nothing else. It suits connections on
any kind of stream. `AtOnce` is called when a socket of the system is ready, and takes no scheduler turns of its own
while all goes well. It suits connections that can be read and written without waiting. A task stands by for the cases
that do not go well. When the socket gets a cap, for which bytes must wait, `AtOnce` leaves the work to an `InTurns`.

Invariants, for both:

- Reading goes on, whatever writing waits for.
- One write is in progress at a time.
- A peer that exceeds its rate is read no faster than its rate allows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from math import inf
from typing import Protocol

import trio
from libp2p.io.exceptions import ConnectionClosedError

from swarm.libp2p.sockets.link_rate import Pace
from swarm.libp2p.sockets.readiness import Readiness, Watch
from swarm.libp2p.yamux.frames import Frame, FrameError, FrameParser

READS_AT_ONCE = 8
"""Reads in a row that bring records with little in them, before other connections get a turn."""

WRITES_AT_ONCE = 4
"""Writes in a row of a connection that takes all it is given, before other connections get a turn: a MiB."""


class ConnectionLost(Exception):
    """The connection below ended, or can no longer be trusted. The message says why."""


class SecureConnection(Protocol):
    """The parts of the connection below that a muxer uses. Its methods raise ConnectionLost and nothing else."""

    async def receive(self, expected: int) -> bytes:
        """Wait for at least one byte. `expected` bytes are on their way, which may be worth a short wait."""

    async def send(self, data: bytes) -> None:
        """Send all of `data`, in bounded time."""

    def hurry(self) -> None:
        """Make `receive` return what has arrived, whatever was expected."""

    async def aclose(self) -> None:
        """Close at once."""


class Socket(Protocol):
    """The system's socket below a connection."""

    pace: Pace

    @property
    def is_paced(self) -> bool:
        """Whether a cap holds now, for which reads and writes must wait."""

    def fileno(self) -> int: ...

    @property
    def takes_nothing(self) -> bool:
        """Whether it has taken no bytes for so long that it counts as dead."""


class InstantConnection(Protocol):
    """A connection on a socket, usable without waiting. Its methods raise ConnectionClosedError."""

    def receive_now(self) -> bytes:
        """Return what has arrived, b"" if nothing has."""

    def await_more(self, plaintext: int) -> bool:
        """Make the socket ready when `plaintext` bytes, or many of them, are there; False if there are some already."""

    def send_now(self, data: bytes) -> bool:
        """Send `data`; return False if some of it waits until there is room."""

    def send_rest(self) -> bool:
        """Go on sending when there is room; False while something still waits."""


class Muxer(Protocol):
    """The streams of one connection, as its driver sees them."""

    peer_left: bool
    """Whether the peer has said good-bye."""

    def take(self, frames: Iterator[Frame]) -> float | None:
        """Act on `frames` until the peer must pause; return for how many seconds. Return None if no frames are left.

        Raises FrameError.
        """

    def next_write(self) -> bytes:
        """Return the bytes to write next, b"" if there are none."""

    def note_pace(self, pace: Pace) -> None:
        """Note a new measurement of how fast the link takes bytes."""


UntilEnd = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Runs a task and ends the connection when the task is over."""


class Driver(Protocol):
    """The interface that `InTurns` and `AtOnce` share."""

    @property
    def is_stuck(self) -> bool:
        """Whether bytes have waited to be written for so long that the connection counts as dead."""

    def flush_soon(self) -> None:
        """Note that there is something to write, and perhaps more in a moment."""

    def flush_now(self) -> None:
        """Note that there is something to write that is worth a write of its own."""

    async def serve(self, until_end: UntilEnd) -> None:
        """Read and write `until_end`."""


class InTurns:
    """Read in one task and write in another."""

    is_stuck = False
    """Never: `SecureConnection.send` is bounded in time."""

    def __init__(self, muxer: Muxer, connection: SecureConnection, parser: FrameParser | None = None) -> None:
        self._muxer, self._connection = muxer, connection
        self._parser = parser or FrameParser()
        self._wake = trio.Event()
        self._pace = Pace()

    def flush_soon(self) -> None:
        """Note that there is something to write."""
        self._wake.set()

    flush_now = flush_soon

    async def serve(self, until_end: UntilEnd) -> None:
        """Read and write, each in a task, `until_end`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_end, self._read)
            nursery.start_soon(until_end, self._write)

    async def _read(self) -> None:
        """Read until the peer says good-bye. Raises FrameError, ConnectionLost."""
        parser = self._parser
        while not self._muxer.peer_left:
            frames = parser.feed(await self._connection.receive(parser.expected))
            while (pause_s := self._muxer.take(frames)) is not None:
                await trio.sleep(pause_s)

    async def _write(self) -> None:
        """Write until cancelled: after our good-bye the peer closes the connection. Raises ConnectionLost."""
        while True:
            if data := self._muxer.next_write():
                began = trio.current_time()
                await self._connection.send(data)
                if self._pace.wrote(len(data), began, trio.current_time()):
                    self._muxer.note_pace(self._pace)
            else:
                self._wake = trio.Event()
                await self._wake.wait()


class AtOnce:
    """Read and write when the socket is ready, without tasks of its own while all goes well.

    `patient` is the same connection, for the time when a cap holds.
    """

    def __init__(
        self,
        muxer: Muxer,
        connection: InstantConnection,
        socket: Socket,
        readiness: Readiness,
        patient: SecureConnection,
    ) -> None:
        self._muxer, self._connection, self._socket = muxer, connection, socket
        self._readiness, self._patient = readiness, patient
        self._successor: InTurns | None = None
        self._has_given_way = False
        self._watch: Watch | None = None
        self._parser = FrameParser()
        self._frames: Iterator[Frame] = iter(())
        self._turn = trio.Event()
        self._pause_s = 0.0
        self._failure: Exception | None = None
        self._is_blocked = False
        self._told_bytes_per_s = inf

    @property
    def is_stuck(self) -> bool:
        return self._socket.takes_nothing

    def flush_soon(self) -> None:
        """Note that there is something to write, and perhaps more in this turn."""
        if self._successor is not None:
            self._successor.flush_soon()
        elif self._watch is not None and not self._is_blocked:
            self._readiness.flush_soon(self)

    def flush_now(self) -> None:
        """Note that there is something to write now, which need not wait for more of this turn."""
        if self._successor is not None:
            self._successor.flush_now()
        elif self._watch is not None and not self._is_blocked:
            self._readiness.flush_now(self)

    async def serve(self, until_end: UntilEnd) -> None:
        """Read and write when the socket is ready, while a task stands by `until_end`."""
        with self._readiness.watch(self._socket.fileno(), self) as self._watch:
            self._read()
            self.flush()
            try:
                await until_end(partial(self._serve, until_end))
            finally:
                self._watch = None

    async def _serve(self, until_end: UntilEnd) -> None:
        """Stand by until the peer says good-bye, or leave the work to tasks. Raises FrameError, ConnectionLost."""
        await self._stand_by()
        if not self._muxer.peer_left:
            self._watch, self._successor = None, InTurns(self._muxer, self._patient, self._parser)
            await self._successor.serve(until_end)

    async def _stand_by(self) -> None:
        """Resume reading after pauses, until the peer says good-bye or a cap has come and nothing is half written.

        Raises FrameError, ConnectionLost.
        """
        while True:
            await self._turn.wait()
            self._turn = trio.Event()
            if self._failure is not None:
                raise self._failure
            if self._muxer.peer_left:
                return
            pause_s, self._pause_s = self._pause_s, 0.0
            await trio.sleep(pause_s)
            self._go_on()
            if self._has_given_way:
                return
            self.flush_soon()  # a cap that was lifted again may have held back a write

    # Called when the socket is ready.

    def on_readable(self) -> None:
        if self._failure is None:
            self._read()

    def on_writable(self) -> None:
        try:
            if not self._connection.send_rest():
                return
        except ConnectionClosedError as error:
            self._fail(ConnectionLost(str(error)))
            return
        self._is_blocked = False
        self._want(writing=False)
        self.flush()

    def flush(self) -> None:
        if self._watch is None or self._is_blocked:
            return
        if self._socket.is_paced:
            self._turn.set()
            return
        if self._socket.pace.bytes_per_s != self._told_bytes_per_s:
            self._told_bytes_per_s = self._socket.pace.bytes_per_s
            self._muxer.note_pace(self._socket.pace)
        try:
            for _ in range(WRITES_AT_ONCE):
                if not (data := self._muxer.next_write()):
                    return
                if not self._connection.send_now(data):
                    self._is_blocked = True
                    self._want(writing=True)
                    return
            self._readiness.flush_soon(self)
        except ConnectionClosedError as error:
            self._fail(ConnectionLost(str(error)))

    def _go_on(self) -> None:
        """Read again after a pause."""
        try:
            pause_s = self._muxer.take(self._frames)
        except FrameError as error:
            self._fail(error)
            return
        if pause_s is not None or self._muxer.peer_left:
            self._hand_over(pause_s or 0.0)
        else:
            self._want(reading=True)
            self._read()

    def _read(self) -> None:
        """Take what has arrived, until there is no more or the peer must pause."""
        # All frames were taken, so tasks may go on from here. A write that waits for room is ended first.
        self._has_given_way = self._socket.is_paced and not self._is_blocked
        if self._has_given_way:
            self._hand_over(0.0)
            return
        muxer, parser, connection = self._muxer, self._parser, self._connection
        pause_s: float | None = None
        try:
            for _ in range(READS_AT_ONCE):
                if data := connection.receive_now():
                    self._frames = parser.feed(data)
                    pause_s = muxer.take(self._frames)
                    if pause_s is not None or muxer.peer_left:
                        break
                if connection.await_more(parser.expected):
                    return
            self._hand_over(pause_s or 0.0)
        except FrameError as error:
            self._fail(error)
        except ConnectionClosedError as error:
            self._fail(ConnectionLost(str(error)))

    def _hand_over(self, pause_s: float) -> None:
        """Let the task continue after a pause."""
        self._want(reading=False)
        self._pause_s = pause_s
        self._turn.set()

    def _fail(self, error: FrameError | ConnectionLost) -> None:
        """Let the task raise `error`; stop reading, and stop writing too if the connection is gone."""
        self._failure = self._failure or error
        if isinstance(error, ConnectionLost):
            self._is_blocked = True
            self._want(reading=False, writing=False)
        else:
            self._want(reading=False)
        self._turn.set()

    def _want(self, *, reading: bool | None = None, writing: bool | None = None) -> None:
        if (watch := self._watch) is not None:
            watch.want(
                reading=watch.reading if reading is None else reading,
                writing=watch.writing if writing is None else writing,
            )
