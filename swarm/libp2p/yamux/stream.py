"""One yamux stream: its windows, what has arrived and was not read, and what waits to be written.

What always holds: nobody who sends or receives touches the connection, so cancelling either never harms it; what a
stream holds is told to the connection's account.
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
"""Window of a stream that is being read, and the most that can be unread of it. Credit is given back by halves, so
that with 2 MiB a line of 200 Mbit/s and 30 ms carried only 150."""

TAIL_BYTES = 1024
"""So much more goes into the frames of a send than they are meant to hold, if there is one less for it."""

POSTED_BYTES = 16 * 1024
"""So much may wait on a stream without anybody who waits for it to be taken: small messages, whose senders would be
woken for nothing."""

MAX_SEND_WINDOW = 1 << 32
"""Credit beyond this is nonsense, and adding it up for ever would be a slow leak."""

MAX_WANTED_BYTES = INITIAL_WINDOW // 2
"""A reader's wishes end here. Unread bytes and window together are never less, or both ends would wait for ever."""

MAX_WANTED_WIDE_BYTES = RECEIVE_WINDOW // 2
"""The same on a stream whose window is large: a chunk of up to 2 MiB wakes its reader once."""

IN_A_ROW = 16
"""Times that a reader gets what was here already, before others have their turn."""

LINGER_S = 30.0
"""How long a stream that we closed waits for the other side to close as well, before it is reset."""

DISCARD_BYTES = INITIAL_WINDOW
"""Bytes still accepted, and thrown away, on a stream closed here: what may have been in flight. More resets it."""


class Account(Protocol):
    """Who the peer is to us, and what it may cost."""

    @property
    def is_member(self) -> bool: ...

    @property
    def max_streams(self) -> int:
        """How many streams the peer may hold open towards us."""

    def hold(self, delta: int) -> None:
        """So many bytes more, or less, are in memory for this connection. May end it, or another one."""

    def charge(self, cost: float) -> float:
        """The peer did something; return for how many seconds nothing more is to be read from it."""


class StreamOwner(Protocol):
    """What a stream needs of its connection."""

    account: Account

    def widens(self, stream_id: int) -> bool:
        """Whether a stream that is being read gets a large window: a member's, or one that we opened."""

    def enqueue(self, stream: YamuxStream, *, at_once: bool = False) -> None:
        """Give `stream` a turn to write, if it has not one coming; `at_once`, if it is its turn and there is room."""

    def tell_later(self, tell: Callable[[], None]) -> None:
        """Call `tell` once what is written next is decided: who is told of it may send more."""

    def control(self, frame_type: FrameType, flags: int, stream_id: int, length: int) -> None:
        """Queue a control frame ahead of all bulk."""

    def forget(self, stream: YamuxStream) -> bool:
        """Drop a finished stream; False when it had been dropped before."""


class Meter:
    """Counts the payload bytes of the streams it is attached to."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0


class YamuxStream:
    """One stream. One task may send while another receives; see `swarm.transport.interface.Stream` for the promises."""

    def __init__(self, connection: StreamOwner, stream_id: int) -> None:
        self.id = stream_id
        self.meter = Meter()
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
        """Return when the writer has taken all of `parts`; at once where they are few bytes. Raises StreamBroken."""
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
            if not taken.is_set():  # cancelled: what is left is of no use
                self._drop_unsent()
        if self._broken is not None:
            raise StreamBroken(self._broken)

    def start(
        self, parts: Sequence[bytes | memoryview], note_progress: Callable[[int], None], done: Callable[[], None]
    ) -> bool:
        """Let `parts` wait for the writer, and call `done` when it has taken all; False when something waits already.

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
        """Let `data` wait for the writer, if there is room for it; False otherwise. Raises StreamBroken."""
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
        """Return up to `max_bytes` bytes of what has arrived, without waiting; b"" where that is nothing.

        Raises StreamBroken.
        """
        return self._take_received(max_bytes) if self._receivable() else b""

    def expect(self, size: int) -> None:
        """Let the next `receive_some` wait until `size` bytes are there, or as many as are granted for sure."""
        most = MAX_WANTED_WIDE_BYTES if self._is_wide else MAX_WANTED_BYTES
        self._wanted = size if size < most else most

    def retain(self, size: int) -> None:
        """Say that so many bytes of what was received are still held by whoever reads, who says so after each read
        from now on: until then, all that was read counts.
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
        """Close both directions in good order: what was sent arrives, what still comes in is thrown away."""
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
        """Break the stream here and tell the peer. Quiet when it is already over."""
        if self._connection.forget(self):
            self._connection.control(FrameType.WINDOW_UPDATE, RST, self.id, 0)
        self.break_(reason, keep_received=False)

    def break_(self, reason: str, *, keep_received: bool) -> None:
        """The stream is over: wake everybody. With `keep_received`, what arrived up to its end stays readable."""
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
        """Accept one piece from the peer. Raises FrameError when it is over the window or after the end."""
        size = len(data)
        if self._broken is not None:
            return  # broken off while other frames of one read were looked at
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
        """Accept credit. Raises FrameError when it adds up to nonsense."""
        self._send_window += delta
        if self._send_window > MAX_SEND_WINDOW:
            raise FrameError(f"stream {self.id} was granted {self._send_window} bytes")
        if self._unsent:
            self._connection.enqueue(self)

    def on_fin(self) -> None:
        """The peer sends nothing more."""
        self._fin_received = True
        self._received.set()
        self._forget_if_finished()

    def take(self, parts: list[bytes | memoryview], payload: int) -> int:
        """Append our next frame, of about `payload` bytes at most, if one may go; return its size in bytes.

        The frames of a send are equally long: whoever measures a line by its progress would be misled by a short one.
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
        """Whether we closed it long ago and the peer has not."""
        return now - self._closed_at > LINGER_S

    def _put(self, parts: Iterable[bytes | memoryview], size: int) -> None:
        """Let the writer know of more to send."""
        if size:
            self._outgoing += parts
            self._unsent += size
            self._num_put += size
            self._sending += size
            self._count()
            self._connection.enqueue(self, at_once=True)

    def _tell_taken(self, size: int) -> None:
        """Tell those who send how far it is."""
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
        """Append the next `size` bytes to `parts`, where there are so many."""
        self._unsent -= size
        self._num_taken += size
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
        """Nothing waits any more, and nothing of it is in memory."""
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
        """Give credit back once half of `target` is free: few updates, and the window does not run dry."""
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
