"""Hold one yamux stream: its windows, the bytes that arrived and were not read, and those that wait to be written.

Invariants:

- A task that sends or receives never touches the connection, so cancelling it never harms the connection.
- The connection's account always knows how many bytes a stream holds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import trio

from swarm.libp2p.yamux.frames import FIN, HEADER, INITIAL_WINDOW, RST, FrameError, FrameType, encode_header
from swarm.transport.interface import StreamBroken
from swarm.transport.receive_buffer import Arrivals

RECEIVE_WINDOW = 4 * 1024 * 1024
"""Bytes: the window of a stream that is being read, and the most that may be unread on it. Credit is given back by
halves. With 2 MiB a link of 200 Mbit/s and 30 ms carried only 150 Mbit/s."""

TAIL_BYTES = 1024
"""Bytes that the frames of a send may hold beyond their usual size, if that saves a frame."""

POSTED_BYTES = 16 * 1024
"""Bytes that may wait on a stream without a task that waits until they are taken. They are small messages, and waking
their senders would be waste."""

MAX_SEND_WINDOW = 1 << 32
"""Bytes. Credit beyond this is nonsense, and adding it up for ever would be a slow leak."""

MAX_WANTED_BYTES = INITIAL_WINDOW // 2
"""Bytes that a reader may expect at most. Unread bytes and window together are never less; with more, both ends would
wait for ever."""

MAX_WANTED_WIDE_BYTES = RECEIVE_WINDOW // 2
"""The same on a stream with a large window: a chunk of up to 2 MiB wakes its reader once."""

IN_A_ROW = 16
"""Reads in a row that return bytes already here, before other tasks get a turn."""

LINGER_S = 30.0
"""Seconds that a stream which we closed waits for the other side to close as well, before it is reset."""

DISCARD_BYTES = INITIAL_WINDOW
"""Bytes that a stream closed here still accepts and discards: they may have been in flight. More resets the stream."""


class Account(Protocol):
    """The limits on what the peer may cost."""

    @property
    def is_member(self) -> bool: ...

    @property
    def max_streams(self) -> int:
        """Most streams that the peer may hold open towards us."""

    def hold(self, delta: int) -> None:
        """Count `delta` bytes more, or less, in memory for this connection. May end it, or another one."""

    def charge(self, cost: float) -> float:
        """Count what the peer did; return the seconds for which nothing more may be read from it."""


class StreamOwner(Protocol):
    """The parts of the connection that a stream uses."""

    account: Account

    def widens(self, stream_id: int) -> bool:
        """Return whether a stream gets a large window while it is read: a member's stream, or one that we opened."""

    def enqueue(self, stream: YamuxStream, *, at_once: bool = False) -> None:
        """Give `stream` a turn if it has none coming; with `at_once`, write now if it is its turn and there is room."""

    def tell_later(self, tell: Callable[[], None]) -> None:
        """Call `tell` once the next write is decided: the callee may send more."""

    def control(self, frame_type: FrameType, flags: int, stream_id: int, length: int) -> None:
        """Queue a control frame ahead of all bulk."""

    def forget(self, stream: YamuxStream) -> bool:
        """Drop a finished stream; return False if it had been dropped before."""


class Meter:
    """Count the payload bytes of the streams that use this meter."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0

    def add(self, other: Meter) -> None:
        """Add what another meter has counted."""
        self.sent += other.sent
        self.received += other.received


class YamuxStream:
    """Send and receive on one stream, each in one task at a time; see `swarm.transport.interface.Stream`."""

    def __init__(self, connection: StreamOwner, stream_id: int) -> None:
        self.id = stream_id
        self.meter = Meter()
        self._unmetered = 0
        self._connection = connection
        self._broken: str | None = None
        self._closed_at = math.inf
        self._buffer = Arrivals()
        self._received = trio.Event()
        self._receive_window = INITIAL_WINDOW
        self._fin_received = False
        self._wanted = 1
        self.num_received = 0
        self._discarded = 0
        self._outgoing: deque[bytes | memoryview] = deque()
        self._unsent = 0
        self._taken: trio.Event | None = None
        self._note_progress: Callable[[int], None] | None = None
        self._done: Callable[[], None] | None = None
        self._num_put = self._num_taken = self._taken_at = self._done_at = 0
        self._front = 0
        self._send_window = INITIAL_WINDOW
        self._fin_queued = False
        self._fin_sent = False
        self._sending = self._retained = self._held = 0
        self._in_a_row = 0
        self._is_wide = self._retains = False
        self.num_arrived = 0
        self.on_arrival: Callable[[], bool] | None = None
        self._waits = self._nudged = False

    async def send_all(self, *parts: bytes | memoryview, note_progress: Callable[[int], None] | None = None) -> None:
        """Return when the writer has taken all of `parts`; for a few bytes, at once. Raises StreamBroken."""
        if self._taken is not None:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._require_sendable()
        size = sum(map(len, parts))
        if self._unsent + size <= POSTED_BYTES:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._put(parts, size)
            return
        taken = self._taken = trio.Event()
        self._taken_at = self._num_put + size
        self._note_progress = note_progress or self._note_progress
        self._put(parts, size)
        try:
            if self._broken is None:
                await taken.wait()
        finally:
            self._taken = None
            if not taken.is_set():  # cancelled: the rest is of no use
                self._drop_unsent()
        if self._broken is not None:
            raise StreamBroken(self._broken)

    def count_on(self, meter: Meter) -> None:
        """Count payload on `meter` from here on. Bytes that wait for the writer already are not its payload."""
        self.meter, self._unmetered = meter, self._unsent

    def start(
        self, parts: Sequence[bytes | memoryview], note_progress: Callable[[int], None], done: Callable[[], None]
    ) -> bool:
        """Queue `parts` for the writer, and call `done` when it has taken all; False if something waits already.

        Raises StreamBroken.
        """
        self._require_sendable()
        if self._unsent:
            return False
        size = sum(map(len, parts))
        self._note_progress, self._done, self._done_at = note_progress, done, self._num_put + size
        self._put(parts, size)
        return True

    def post(self, data: bytes) -> bool:
        """Queue `data` for the writer if there is room; return False otherwise. Raises StreamBroken."""
        self._require_sendable()
        if self._unsent + len(data) > POSTED_BYTES:
            return False
        self._put((data,), len(data))
        return True

    async def receive_some(self, max_bytes: int) -> bytes:
        """Return 1 to `max_bytes` bytes, or b"" at the end. Cancelling loses nothing. Raises StreamBroken."""
        if max_bytes < 1:
            raise ValueError("max_bytes must be at least 1")
        if self._receivable():
            self._in_a_row += 1
            if self._in_a_row < IN_A_ROW:
                await trio.lowlevel.checkpoint_if_cancelled()
                return self._take_received(max_bytes)
            self._in_a_row = 0
            await trio.lowlevel.checkpoint()
        while not self._receivable():
            self._received, self._waits = trio.Event(), True
            try:
                await self._received.wait()
            except trio.Cancelled:
                self._nudged = False
                raise
            finally:
                self._waits = False
        return self._take_received(max_bytes)

    def take_arrived(self, max_bytes: int) -> bytes:
        """Return up to `max_bytes` bytes that have arrived, without waiting; b"" if there are none.

        Raises StreamBroken.
        """
        return self._take_received(max_bytes) if self._receivable() else b""

    def expect(self, size: int) -> None:
        """Let the next `receive_some` wait until `size` bytes are there, or as many as the window surely allows."""
        most = MAX_WANTED_WIDE_BYTES if self._is_wide else MAX_WANTED_BYTES
        self._wanted = size if size < most else most

    def retain(self, size: int) -> None:
        """Set how many received bytes the reader still holds. From now on it must say so after each read.

        Until it does, all bytes that it read count.
        """
        self._retains = True
        if size != self._retained and self._broken is None and self._closed_at == math.inf:
            self._retained = size
            self._count()

    async def send_eof(self) -> None:
        """Queue the end of this direction behind what was sent. Raises StreamBroken."""
        await trio.lowlevel.checkpoint()
        if self._broken is not None:
            raise StreamBroken(self._broken)
        self._queue_fin()

    async def aclose(self) -> None:
        """Close both directions in good order: what was sent arrives, and what still comes in is discarded."""
        if self._broken is None and self._closed_at == math.inf:
            self._closed_at = trio.current_time()
            self._buffer.clear()
            self._retained = 0
            self._count()
            self._received.set()
            self._queue_fin()
            self._grant(INITIAL_WINDOW)
        await trio.lowlevel.checkpoint()

    async def abort(self) -> None:
        """Reset the stream."""
        self.reset("the stream was aborted here")
        await trio.lowlevel.checkpoint()

    def reset(self, reason: str) -> None:
        """Break the stream here and tell the peer. Do nothing if it is over already."""
        if self._connection.forget(self):
            self._connection.control(FrameType.WINDOW_UPDATE, RST, self.id, 0)
        self.break_(reason, keep_received=False)

    def break_(self, reason: str, *, keep_received: bool) -> None:
        """End the stream and wake all tasks. With `keep_received`, bytes that arrived up to its end stay readable."""
        if self._broken is None:
            self._broken = reason
        if not keep_received or not self._fin_received:
            self._fin_received = False
            self._buffer.clear()
        self._retained = 0
        self._drop_unsent()
        self._received.set()
        if self._taken is not None:
            self._taken.set()

    # Called by the connection's reader and writer.

    def on_data(self, data: bytes) -> None:
        """Accept one piece from the peer. Raises FrameError if it exceeds the window or follows the end."""
        size = len(data)
        if self._broken is not None:
            return  # it was broken off by another frame of the same read
        if self._fin_received:
            raise FrameError(f"data after FIN on stream {self.id}")
        if size > self._receive_window:
            raise FrameError(f"stream {self.id} was sent {size - self._receive_window} bytes over its window")
        self._receive_window -= size
        self.num_arrived += size
        if self._closed_at == math.inf:
            self._buffer.put(data)
            self._count()
            if self._buffer.size >= self._wanted:
                if self._waits and self.on_arrival is not None:
                    if self.on_arrival():
                        return
                    self._nudged = True
                self._waits = False
                self._received.set()
        else:
            self._discard(size)

    def on_window(self, delta: int) -> None:
        """Accept credit. Raises FrameError if it adds up to nonsense."""
        self._send_window += delta
        if self._send_window > MAX_SEND_WINDOW:
            raise FrameError(f"stream {self.id} was granted {self._send_window} bytes")
        if self._unsent:
            self._connection.enqueue(self)

    def on_fin(self) -> None:
        """Note that the peer sends nothing more."""
        self._fin_received = True
        self._received.set()
        self._forget_if_finished()

    def take(self, parts: list[bytes | memoryview], payload: int) -> int:
        """Append our next frame, of about `payload` bytes at most, if one may go; return its size in bytes.

        The frames of a send are equally long: a short one would mislead a measurement of the link by its progress.
        """
        if unsent := self._unsent:
            size = unsent
            if unsent > payload + TAIL_BYTES:
                num_frames = -(-(unsent - TAIL_BYTES) // payload)
                size = -(-unsent // num_frames)
            if size > self._send_window:
                size = self._send_window
            if not size:
                return 0
            parts.append(encode_header(FrameType.DATA, 0, self.id, size))
            self._take_unsent(parts, size)
            self._send_window -= size
            self._tell_taken(size)
            return HEADER.size + size
        if self._fin_queued and not self._fin_sent:
            parts.append(encode_header(FrameType.DATA, FIN, self.id, 0))
            self._fin_sent = True
            self._forget_if_finished()
            return HEADER.size
        return 0

    def lingers(self, now: float) -> bool:
        """Return whether we closed it long ago and the peer has not."""
        return now - self._closed_at > LINGER_S

    def _put(self, parts: Iterable[bytes | memoryview], size: int) -> None:
        """Queue more for the writer to send."""
        if size:
            self._outgoing += parts
            self._unsent += size
            self._num_put += size
            self._sending += size
            self._count()
            self._connection.enqueue(self, at_once=True)

    def _tell_taken(self, size: int) -> None:
        """Tell the senders how many bytes the writer has taken."""
        if self._taken is not None and self._num_taken >= self._taken_at:
            self._taken.set()
        if self._done is not None and self._num_taken >= self._done_at:
            self._connection.tell_later(self._done)
            self._done = self._note_progress = None
        elif not self._unsent:
            self._note_progress = None
        elif self._note_progress is not None:
            self._connection.tell_later(partial(self._note_progress, size))

    def _take_unsent(self, parts: list[bytes | memoryview], size: int) -> None:
        """Append the next `size` bytes to `parts`; there must be so many."""
        self._unsent -= size
        self._num_taken += size
        if self._unmetered:
            self._unmetered -= (skipped := min(size, self._unmetered))
            self.meter.sent += size - skipped
        else:
            self.meter.sent += size
        while size:
            piece = self._outgoing.popleft()
            if len(piece) > size:
                self._front = self._front or len(piece)
                piece = memoryview(piece)
                self._outgoing.appendleft(piece[size:])
                piece = piece[:size]
            else:
                self._sending -= self._front or len(piece)
                self._front = 0
            parts.append(piece)
            size -= len(piece)
        self._count()

    def _drop_unsent(self) -> None:
        """Drop all bytes that wait, and free their memory."""
        self._outgoing.clear()
        self._num_taken = self._num_put
        self._unsent = self._sending = self._front = 0
        self._note_progress = self._done = None
        self._count()

    def _count(self) -> None:
        """Tell the account what this stream holds now."""
        held = self._buffer.size + self._sending + self._retained
        if delta := held - self._held:
            self._held = held
            self._connection.account.hold(delta)

    def _take_received(self, max_bytes: int) -> bytes:
        self._wanted = 1
        self._nudged = False
        data = self._buffer.take(max_bytes)
        size = len(data)
        self.meter.received += size
        self.num_received += size
        if self._retains:
            self._retained += size
        else:
            self._count()
        half = (RECEIVE_WINDOW if self._is_wide else INITIAL_WINDOW) // 2
        if self._receive_window + self._buffer.size <= half:
            self._is_wide = self.num_received >= INITIAL_WINDOW // 2 and self._connection.widens(self.id)
            self._grant(RECEIVE_WINDOW if self._is_wide else INITIAL_WINDOW)
        return data

    def _receivable(self) -> bool:
        if self._closed_at != math.inf:
            raise StreamBroken("the stream was closed here")
        if self._broken is not None and not self._fin_received:
            raise StreamBroken(self._broken)
        return self._buffer.size >= self._wanted or self._fin_received or self._nudged

    def _require_sendable(self) -> None:
        if self._broken is not None:
            raise StreamBroken(self._broken)
        if self._fin_queued:
            raise StreamBroken("this side has already sent its end")

    def _queue_fin(self) -> None:
        if not self._fin_queued:
            self._fin_queued = True
            self._connection.enqueue(self)

    def _forget_if_finished(self) -> None:
        if self._fin_received and self._fin_sent:
            self._connection.forget(self)

    def _grant(self, target: int) -> None:
        """Give credit back once half of `target` is free, so that updates are few and the window does not run dry."""
        free = target - self._receive_window - self._buffer.size
        if free >= target // 2 and not self._fin_received and self._broken is None:
            self._receive_window += free
            self._connection.control(FrameType.WINDOW_UPDATE, 0, self.id, free)

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > DISCARD_BYTES:
            self.reset("closed here while the peer kept sending")
        else:
            self._grant(INITIAL_WINDOW)
