"""Yamux: many ordered streams over one secure connection, driven by events.

One task reads the connection and never writes; one task writes it and nothing else does; everybody else changes state
and wakes them. What follows from that, and always holds:

* Both sides may write bulk at once: reading goes on whatever writing waits for, so neither can hold the other up.
* Cancelling a send or a receive never harms the connection: no user task is ever inside a write to it.
* A reader that pauses is waited for, as long as it likes; its window closes, the other streams go on.
* Control frames go ahead of bulk; streams with bulk take turns, one frame each, and a stream that begins to send, as
  one does with a small message, comes before those that have been at it. What to write is decided `WRITE_S` ahead.
* A peer that is silent is asked (PING); one that stays silent for `SILENCE_S` is gone.
* What an unread stream can cost us is its window, which grows above `INITIAL_WINDOW` only once half of that was read,
  and then only for a member (see `budget`) or on a stream that we opened.
* All bytes that a stream holds are on the connection's `Account`; a peer that does much that is small is read slower.

Speaks the specification (see `frames`) under its standard id, tested against stock py-libp2p. The stock muxer polls
closed windows, gives up on them after 5 s, lets its reader wait for its writer (so that two bulk writers get stuck) and
writes from user tasks (so that a cancelled one leaves half a frame behind); hence this one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import trio

from swarm.libp2p.sockets.line_rate import Pace
from swarm.libp2p.yamux.frames import (
    FIN,
    HEADER,
    INITIAL_WINDOW,
    RST,
    SYN,
    Flag,
    Frame,
    FrameError,
    FrameParser,
    FrameType,
    encode_header,
)
from swarm.transport.interface import StreamBroken
from swarm.transport.receive_buffer import Arrivals

YAMUX_PROTOCOL = "/yamux/1.0.0"

RECEIVE_WINDOW = 4 * 1024 * 1024
"""Window of a stream that is being read, and the most that can be unread of it. Credit is given back by halves, so
that with 2 MiB a line of 200 Mbit/s and 30 ms carried only 150."""

FRAME_PAYLOAD = 65_507
"""With its 12-byte header, exactly one noise message (65,519 bytes of plaintext)."""

TAIL_BYTES = 1024
"""So much more goes into the frames of a send than they are meant to hold, if there is one less for it."""

FULL_FRAME = FRAME_PAYLOAD + HEADER.size

POSTED_BYTES = 16 * 1024
"""So much may wait on a stream without anybody who waits for it to be taken: small messages, whose senders would be
woken for nothing."""

MAX_WRITE_BYTES = 4 * FULL_FRAME
"""Handed to the connection at once where it is fast: more would not fit the cache of a core."""

MIN_WRITE_BYTES = MAX_WRITE_BYTES // 32
"""Where it is slow, whatever WRITE_S says: each frame costs both ends a wake-up, and 8 KiB are 30 ms at 2 Mbit/s."""

WRITE_S = 0.05
"""A write should take no longer, because nothing overtakes what is in it. At 50 Mbit/s a whole frame takes 10 ms."""

MAX_INBOUND_STREAMS = 256
"""Streams a peer may hold open towards us; more are refused. 256 initial windows are 64 MiB."""

MAX_CONTROL_FRAMES = 4096
"""Control frames waiting to be written. A peer that makes us answer faster than it reads is cut off."""

STRANGER_CONTROL_FRAMES = 512
"""The same of a stranger: with 12 streams it is owed a few dozen."""

SMALL_FRAME_BYTES = 1024
"""Frames of a stream with less in them are charged by their number, as are all others but data: what they cost is time,
which their size does not tell."""

OPENING_COST = 20.0
"""Of a stream that a peer opens, in small frames: a task, a negotiation and a handler, a millisecond in all."""

CHARGED_BYTES = 4096
"""So much of a stranger's data, on streams that it opened, costs as much as a small frame. Strangers ask, and send
little."""

MAX_SEND_WINDOW = 1 << 32
"""Credit beyond this is nonsense, and adding it up for ever would be a slow leak."""

KEEPALIVE_S = 20.0
"""Silence after which the initiator asks whether the peer is there: a question and its answer take 330 bytes of a line,
and a node has two dozen neighbours. Routers keep a connection that is silent for two hours (RFC 5382)."""

ASK_AGAIN_S = 5.0
"""Pause before an unanswered question is asked again. The other end waits two pauses longer with its first: else both
ask at once, and pay twice."""

SILENCE_S = 35.0
"""Silence after which the peer is not there: three unanswered questions of the initiator."""

MAX_WANTED_BYTES = INITIAL_WINDOW // 2
"""A reader's wishes end here. Unread bytes and window together are never less, or both ends would wait for ever."""

IN_A_ROW = 16
"""Times that a reader gets what was here already, before others have their turn."""

LINGER_S = 30.0
"""How long a stream that we closed waits for the other side to close as well, before it is reset."""

DISCARD_BYTES = INITIAL_WINDOW
"""Bytes still accepted, and thrown away, on a stream closed here: what may have been in flight. More resets it."""

FLUSH_S = 0.5
"""How long closing a connection waits for what was already sent to reach the socket."""

GO_AWAY_NORMAL = 0
GO_AWAY_PROTOCOL_ERROR = 1


class ConnectionLost(Exception):
    """The connection below ended or cannot be believed any more. The message says why."""


class SecureConnection(Protocol):
    """What is needed of the connection below. Its methods raise ConnectionLost and nothing else."""

    async def receive(self, expected: int) -> bytes:
        """Wait for at least one byte. So many, `expected`, are on their way, which may be worth a short wait."""

    async def send(self, data: bytes) -> None:
        """Send all of `data`; bounded in time."""

    def hurry(self) -> None:
        """Let `receive` return what there is, whatever was expected."""

    async def aclose(self) -> None:
        """Close at once."""


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


class Unlimited:
    """The account of a connection that nobody counts."""

    is_member = True
    max_streams = MAX_INBOUND_STREAMS

    def hold(self, delta: int) -> None: ...

    def charge(self, cost: float) -> float:
        return 0.0


def whole_frames(size: int) -> int:
    """Return `size` rounded down to whole frames, or less than one as it is."""
    return max(size // FULL_FRAME * FULL_FRAME, min(size, FULL_FRAME))


class Meter:
    """Counts the payload bytes of the streams it is attached to."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0


class YamuxStream:
    """One stream. One task may send while another receives; see `swarm.transport.interface.Stream` for the promises."""

    def __init__(self, connection: YamuxConnection, stream_id: int) -> None:
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
        self._consumed = 0
        self._discarded = 0
        self._outgoing: deque[bytes | memoryview] = deque()
        self._unsent = 0
        self._taken: trio.Event | None = None
        self._note_progress: Callable[[int], None] | None = None
        self._send_window = INITIAL_WINDOW
        self._fin_queued = False
        self._fin_sent = False
        self._sending = self._retained = self._held = 0
        self._in_a_row = 0

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
        self._taken, self._note_progress = trio.Event(), note_progress
        self._put(parts, size)
        try:
            if self._broken is None:
                await self._taken.wait()
        finally:
            self._taken = self._note_progress = None
            if self._unsent:  # cancelled: what is left is of no use
                self._drop_unsent()
        if self._broken is not None:
            raise StreamBroken(self._broken)

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
            else:
                self._in_a_row = 0
                await trio.lowlevel.checkpoint()
        while not self._receivable():
            self._received = trio.Event()
            await self._received.wait()
        return self._take_received(max_bytes)

    def take_arrived(self, max_bytes: int) -> bytes:
        """Return up to `max_bytes` bytes of what has arrived, without waiting; b"" where that is nothing.

        Raises StreamBroken.
        """
        return self._take_received(max_bytes) if self._receivable() else b""

    def expect(self, size: int) -> None:
        """Let the next `receive_some` wait until `size` bytes are there, or MAX_WANTED_BYTES."""
        self._wanted = min(size, MAX_WANTED_BYTES)

    def retain(self, size: int) -> None:
        """Say that so many bytes of what was received are still held by whoever reads."""
        self._retained = 0 if self._is_over else size
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
            self._connection.control(FrameType.WINDOW_UPDATE, Flag.RST, self.id, 0)
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
        if self._fin_received:
            raise FrameError(f"data after FIN on stream {self.id}")
        if len(data) > self._receive_window:
            raise FrameError(f"stream {self.id} was sent {len(data) - self._receive_window} bytes over its window")
        self._receive_window -= len(data)
        if self._closed_at == math.inf:
            self._buffer.put(data)
            self._count()
            if len(self._buffer) >= self._wanted:
                self._received.set()
        else:
            self._discard(len(data))

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
            num_frames = max(1, -(-(unsent - TAIL_BYTES) // payload))
            size = min(-(-unsent // num_frames), self._send_window)
            if not size:
                return 0
            parts.append(encode_header(FrameType.DATA, 0, self.id, size))
            self._take_unsent(parts, size)
            self._send_window -= size
            if self._unsent:
                if self._note_progress is not None:
                    self._note_progress(size)
            else:
                self._drop_unsent()
                if self._taken is not None:
                    self._taken.set()
            return HEADER.size + size
        if self._fin_queued and not self._fin_sent:
            parts.append(encode_header(FrameType.DATA, Flag.FIN, self.id, 0))
            self._fin_sent = True
            self._forget_if_finished()
            return HEADER.size
        return 0

    def lingers(self, now: float) -> bool:
        """Whether we closed it long ago and the peer has not."""
        return now - self._closed_at > LINGER_S

    @property
    def _is_over(self) -> bool:
        return self._broken is not None or self._closed_at != math.inf

    def _put(self, parts: Iterable[bytes | memoryview], size: int) -> None:
        """Let the writer know of more to send."""
        if size:
            self._outgoing += parts
            self._unsent += size
            self._sending += size
            self.meter.sent += size
            self._count()
            self._connection.enqueue(self)

    def _take_unsent(self, parts: list[bytes | memoryview], size: int) -> None:
        """Append the next `size` bytes to `parts`, where there are so many."""
        self._unsent -= size
        while size:
            piece = self._outgoing.popleft()
            if len(piece) > size:
                piece = memoryview(piece)
                self._outgoing.appendleft(piece[size:])
                piece = piece[:size]
            parts.append(piece)
            size -= len(piece)

    def _drop_unsent(self) -> None:
        """Nothing waits any more, and nothing of it is in memory."""
        self._outgoing.clear()
        self.meter.sent -= self._unsent
        self._unsent = self._sending = 0
        self._count()

    def _count(self) -> None:
        """Tell the account what this stream holds now."""
        held = len(self._buffer) + self._sending + self._retained
        if delta := held - self._held:
            self._held = held
            self._connection.account.hold(delta)

    def _take_received(self, max_bytes: int) -> bytes:
        self._wanted = 1
        data = self._buffer.take(max_bytes)
        self.meter.received += len(data)
        self._consumed += len(data)
        self._count()
        is_wide = self._consumed >= INITIAL_WINDOW // 2 and self._connection.widens(self.id)
        self._grant(RECEIVE_WINDOW if is_wide else INITIAL_WINDOW)
        return data

    def _receivable(self) -> bool:
        if self._closed_at != math.inf:
            raise StreamBroken("the stream was closed here")
        if self._broken is not None and not self._fin_received:
            raise StreamBroken(self._broken)
        return len(self._buffer) >= self._wanted or self._fin_received

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
        free = target - self._receive_window - len(self._buffer)
        if free >= target // 2 and not self._fin_received and self._broken is None:
            self._receive_window += free
            self._connection.control(FrameType.WINDOW_UPDATE, Flag.NONE, self.id, free)

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > DISCARD_BYTES:
            self.reset("closed here while the peer kept sending")
        else:
            self._grant(INITIAL_WINDOW)


class YamuxConnection:
    """All streams of one connection. They live while `run` runs; when it returns, all are broken.

    Args:
        connection: the secure connection; owned from here on.
        initiator: whether we dialled; decides who uses odd stream ids.
        accept: called, synchronously, with every stream that the peer opens.
        account: what the peer may cost.
    """

    def __init__(
        self,
        connection: SecureConnection,
        *,
        initiator: bool,
        accept: Callable[[YamuxStream], None],
        account: Account | None = None,
    ) -> None:
        self.account: Account = account or Unlimited()
        self.end_reason = "the connection was closed"
        self._connection = connection
        self._accept = accept
        self._initiator = initiator
        self._next_id = 1 if initiator else 2
        self._streams: dict[int, YamuxStream] = {}
        self._num_inbound = 0
        self._control: deque[bytes] = deque()
        self._fresh: dict[YamuxStream, None] = {}
        self._turns: dict[YamuxStream, None] = {}
        self._write_bytes = MAX_WRITE_BYTES // 4
        self._wake = trio.Event()
        self._heard_at = trio.current_time()
        self._leaving: int | None = None
        self._ended = trio.Event()
        self._scope = trio.CancelScope()

    @property
    def is_open(self) -> bool:
        """Whether new streams may be opened."""
        return self._leaving is None and not self._ended.is_set()

    async def run(self) -> None:
        """Read, write and keep alive until the connection ends; `end_reason` then tells why. Never raises for it."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._until_end, self._read)
                    nursery.start_soon(self._until_end, self._write_and_wait)
                    nursery.start_soon(self._until_end, self._keep_alive)
        finally:
            self._end()
            with trio.CancelScope(shield=True), trio.move_on_after(FLUSH_S):
                await self._connection.aclose()

    def open_stream(self) -> YamuxStream:
        """Open a stream; the peer learns of it with the next write. StreamBroken when the connection is ending."""
        if not self.is_open:
            raise StreamBroken(self.end_reason)
        stream = YamuxStream(self, self._next_id)
        self._next_id += 2
        self._streams[stream.id] = stream
        self.control(FrameType.WINDOW_UPDATE, Flag.SYN, stream.id, 0)
        return stream

    async def aclose(self) -> None:
        """Write what was sent, say good-bye, close; at most FLUSH_S."""
        self._leave(GO_AWAY_NORMAL, "the connection was closed here")
        with trio.move_on_after(FLUSH_S):
            await self._ended.wait()
        self._scope.cancel()

    def break_off(self, reason: str) -> None:
        """End at once: all that is held for the peer is given back before this returns."""
        if not self._ended.is_set():
            self.end_reason = reason
            self._end(keep_received=False)
            self._scope.cancel()

    # Called by our streams.

    def widens(self, stream_id: int) -> bool:
        """Whether a stream that is being read gets a large window: a member's, or one that we opened."""
        return self.account.is_member or self._is_ours(stream_id)

    def enqueue(self, stream: YamuxStream) -> None:
        """Give `stream` a turn, if it has not one coming."""
        if stream not in self._turns:
            self._fresh[stream] = None
        self._wake.set()

    def control(self, frame_type: FrameType, flags: int, stream_id: int, length: int) -> None:
        """Queue a control frame ahead of all bulk."""
        self._control.append(encode_header(frame_type, flags, stream_id, length))
        self._wake.set()

    def forget(self, stream: YamuxStream) -> bool:
        """Drop a finished stream; False when it had been dropped before."""
        known = self._streams.pop(stream.id, None) is not None
        if known and not self._is_ours(stream.id):
            self._num_inbound -= 1
        return known

    # The three tasks.

    async def _until_end(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run one of the three until the connection ends, and end the others with it."""
        try:
            await task()
        except FrameError as error:
            self._leave(GO_AWAY_PROTOCOL_ERROR, f"the peer broke the protocol: {error}")
            await trio.sleep(FLUSH_S)
        except ConnectionLost as error:
            if self._leaving is None:
                self.end_reason = f"the connection was lost: {error}"
        self._scope.cancel()

    async def _read(self) -> None:
        parser = FrameParser()
        while True:
            data = await self._connection.receive(parser.expected)
            self._heard_at = trio.current_time()
            for frame in parser.feed(data):
                if self._on_frame(frame):
                    return
                if (cost := self._cost(frame)) and (wait_s := self.account.charge(cost)) > 0:
                    await trio.sleep(wait_s)

    async def _write_and_wait(self) -> None:
        """Write; after our good-bye, wait until the peer hangs up.

        Closing with its last frames unread would reset the connection, and with it lose what the peer has not read yet.
        """
        await self._write()
        await trio.sleep_forever()

    async def _write(self) -> None:
        """Write until our good-bye is written."""
        pace = Pace()
        while True:
            parts = self._batch()
            if parts:
                data, began = b"".join(parts), trio.current_time()
                await self._connection.send(data)
                if pace.wrote(len(data), began, trio.current_time()):
                    most = MAX_WRITE_BYTES if self.account.is_member else FULL_FRAME
                    self._write_bytes = whole_frames(pace.within(WRITE_S, MIN_WRITE_BYTES, most))
            elif self._leaving is not None:
                await self._connection.send(encode_header(FrameType.GO_AWAY, Flag.NONE, 0, self._leaving))
                return
            else:
                self._wake = trio.Event()
                await self._wake.wait()

    async def _keep_alive(self) -> None:
        """Ask when nothing is heard, until nothing was heard for too long."""
        value = 0
        ask_after_s = KEEPALIVE_S if self._initiator else KEEPALIVE_S + 2 * ASK_AGAIN_S
        while True:
            await trio.sleep(ASK_AGAIN_S)
            now = trio.current_time()
            if now - self._heard_at > SILENCE_S:
                self.end_reason = f"nothing was heard from the peer for {SILENCE_S:.0f} s"
                return
            if now - self._heard_at >= ask_after_s:
                self._connection.hurry()
                value += 1
                self.control(FrameType.PING, Flag.SYN, 0, value)
            for stream in [stream for stream in self._streams.values() if stream.lingers(now)]:
                stream.reset("the peer did not close its side")

    # What they do.

    def _batch(self) -> list[bytes | memoryview]:
        """Return the next write: all control frames, then a frame of each stream in turn, up to `_write_bytes`.

        A stream that is alone fills it with one frame, which saves both ends of a fast line a tenth of their time.
        Who was served goes to the end of the line, also with nothing more to send, and leaves it when its turn finds
        nothing: so a stream that sends again and again is not taken for a new one each time (fq_codel, RFC 8290, 4.2).
        """
        parts: list[bytes | memoryview] = list(self._control)
        self._control.clear()
        size = 0
        payload = self._write_bytes - HEADER.size
        if len(self._fresh) + len(self._turns) > 1:
            payload = min(payload, FRAME_PAYLOAD)
        while size + payload // 2 < self._write_bytes and (line := self._fresh or self._turns):
            stream = next(iter(line))
            del line[stream]
            if taken := stream.take(parts, payload):
                self._turns[stream] = None
                size += taken
        return parts

    def _on_frame(self, frame: Frame) -> bool:
        """Act on one frame; True when the peer says good-bye."""
        most = MAX_CONTROL_FRAMES if self.account.is_member else STRANGER_CONTROL_FRAMES
        if len(self._control) > most:
            raise FrameError(f"{most} answers are waiting to be read")
        match frame.type:
            case FrameType.GO_AWAY:
                self.end_reason = f"the peer closed the connection (reason {frame.length})"
                return True
            case FrameType.PING:
                if frame.flags & SYN:
                    self.control(FrameType.PING, Flag.ACK, 0, frame.length)
            case _:
                self._on_stream_frame(frame)
        return False

    def _cost(self, frame: Frame) -> float:
        """What a frame counts for the peer's rate; 0 for bulk that is paid for by its size alone."""
        if frame.type is FrameType.DATA:
            if self.account.is_member or self._is_ours(frame.stream_id):
                return 0.0 if frame.length >= SMALL_FRAME_BYTES else 1.0
            return 1.0 + frame.length / CHARGED_BYTES + (OPENING_COST if frame.flags & SYN else 0.0)
        return OPENING_COST if frame.flags & SYN and frame.type is FrameType.WINDOW_UPDATE else 1.0

    def _on_stream_frame(self, frame: Frame) -> None:
        if frame.flags & SYN:
            self._on_open(frame)
        stream = self._streams.get(frame.stream_id)
        if stream is None:
            return  # it was in flight while we reset the stream
        if frame.type is FrameType.DATA:
            stream.on_data(frame.payload)
        else:
            stream.on_window(frame.length)
        if frame.flags & RST:
            self.forget(stream)
            stream.break_("the peer aborted the stream", keep_received=False)
        elif frame.flags & FIN:
            stream.on_fin()

    def _on_open(self, frame: Frame) -> None:
        if self._is_ours(frame.stream_id) or frame.stream_id in self._streams:
            raise FrameError(f"stream {frame.stream_id} may not be opened by the peer")
        if self._num_inbound >= self.account.max_streams or not self.is_open:
            self.control(FrameType.WINDOW_UPDATE, Flag.RST, frame.stream_id, 0)
            return
        stream = YamuxStream(self, frame.stream_id)
        self._streams[stream.id] = stream
        self._num_inbound += 1
        self.control(FrameType.WINDOW_UPDATE, Flag.ACK, stream.id, 0)
        self._accept(stream)

    def _is_ours(self, stream_id: int) -> bool:
        return bool(stream_id % 2) == self._initiator

    def _leave(self, code: int, reason: str) -> None:
        if self._leaving is None and not self._ended.is_set():
            self._leaving = code
            self.end_reason = reason
        self._wake.set()

    def _end(self, *, keep_received: bool = True) -> None:
        self._ended.set()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.break_(self.end_reason, keep_received=keep_received)
        self._fresh.clear()
        self._turns.clear()
