"""Run many ordered streams over one secure connection (yamux), driven by events.

A driver (`driving`) carries bytes between the connection below and the frames here. All other code changes state and
wakes the driver.

This muxer speaks the specification (see `frames`) under its standard id, and is tested against py-libp2p's own. That
one polls closed windows and gives up on them after 5 s. Its reader waits for its writer, so two bulk writers deadlock.
It writes from user tasks, so a cancelled task leaves half a frame behind. Hence this one.

Invariants:

- Both sides may write bulk at once: reading goes on whatever writing waits for, so neither can hold up the other.
- Cancelling a send or a receive never harms the connection: no user task is ever inside a write to it.
- A reader may pause as long as it likes: its window closes, and the other streams go on.
- Control frames go ahead of bulk. Streams with bulk take turns, one frame each. A stream that begins to send, as with a
  small message, comes before those that have been sending. The next write is decided `WRITE_S` ahead.
- A silent peer is asked with a PING; a peer that is silent for `TIMEOUT_S` is gone.
- An unread stream can cost us at most its window. The window grows above `INITIAL_WINDOW` only once half of that was
  read, and only for a member or on a stream that we opened (see `widens`).
- All bytes that a stream holds are on the connection's `Account`. A peer that sends many small frames is read more
  slowly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import trio

from swarm.libp2p.sockets.link_rate import Pace
from swarm.libp2p.yamux.driving import ConnectionLost, Driver, InTurns, Muxer, SecureConnection
from swarm.libp2p.yamux.frames import FIN, HEADER, RST, SYN, Flag, Frame, FrameError, FrameType, encode_header
from swarm.libp2p.yamux.stream import Account, YamuxStream
from swarm.transport.interface import StreamBroken

YAMUX_PROTOCOL = "/yamux/1.0.0"

FRAME_PAYLOAD = 65_507
"""Bytes. With its 12-byte header, a frame is exactly one noise message (65,519 bytes of plaintext)."""

FULL_FRAME = FRAME_PAYLOAD + HEADER.size

MAX_WRITE_BYTES = 4 * FULL_FRAME
"""Bytes passed to a fast connection at once: more would not fit the cache of a core."""

MIN_WRITE_BYTES = MAX_WRITE_BYTES // 32
"""The same for a slow connection, whatever WRITE_S says. Each frame costs both ends a wake-up, and 8 KiB take 30 ms at
2 Mbit/s."""

WRITE_S = 0.05
"""Seconds that a write should take at most, because nothing overtakes its bytes. A frame takes 10 ms at 50 Mbit/s."""

MAX_INBOUND_STREAMS = 256
"""Streams that a peer may hold open towards us; more are refused. 256 initial windows are 64 MiB."""

MAX_CONTROL_FRAMES = 4096
"""Control frames waiting to be written. The connection ends if a peer makes us answer faster than it reads."""

STRANGER_CONTROL_FRAMES = 512
"""The same for a stranger: with 12 streams it is owed a few dozen."""

SMALL_FRAME_BYTES = 1024
"""Bytes. Smaller data frames, and all control frames, are charged by their number: they cost time, and their size does
not show it."""

OPENING_COST = 20.0
"""Cost of a stream that a peer opens, in small frames: a task, a negotiation and a handler, a millisecond in all."""

CHARGED_BYTES = 4096
"""Bytes of a stranger's data, on streams that it opened, that cost as much as one small frame. Strangers ask, and send
little."""

KEEPALIVE_S = 20.0
"""Seconds of silence after which the initiator asks whether the peer is there. Question and answer take 330 bytes, and
a node has two dozen neighbours. Routers keep a silent connection for two hours (RFC 5382)."""

ASK_AGAIN_S = 5.0
"""Seconds before an unanswered question is asked again. The other end waits two such pauses longer with its first
question. Otherwise both would ask at once, and pay twice."""

TIMEOUT_S = 35.0
"""Seconds of silence after which the peer counts as gone: three unanswered questions of the initiator."""

FLUSH_S = 0.5
"""Seconds that closing a connection waits for bytes already sent to reach the socket."""

_DATA = FrameType.DATA

GO_AWAY_NORMAL = 0
GO_AWAY_PROTOCOL_ERROR = 1


class Unlimited:
    """The account of a connection without limits."""

    is_member = True
    max_streams = MAX_INBOUND_STREAMS

    def hold(self, delta: int) -> None: ...

    def charge(self, cost: float) -> float:
        return 0.0


def whole_frames(size: int) -> int:
    """Return `size` rounded down to whole frames, or unchanged if it is less than one frame."""
    return max(size // FULL_FRAME * FULL_FRAME, min(size, FULL_FRAME))


class YamuxConnection:
    """Run all streams of one connection. They live while `run` runs; when it returns, all are broken.

    Args:
        connection: the secure connection. It is owned from here on.
        initiator: whether we dialled. The initiator uses odd stream ids.
        accept: called, synchronously, with every stream that the peer opens.
        account: limits on what the peer may cost.
        drive: makes the driver that carries our bytes over `connection`. The default is `InTurns`.
    """

    def __init__(
        self,
        connection: SecureConnection,
        *,
        initiator: bool,
        accept: Callable[[YamuxStream], None],
        account: Account | None = None,
        drive: Callable[[Muxer], Driver] | None = None,
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
        self._driver = drive(self) if drive is not None else InTurns(self, connection)
        self._said_good_bye = False
        self._to_tell: list[Callable[[], None]] = []
        self.peer_left = False
        self._heard_at = trio.current_time()
        self._leaving: int | None = None
        self._ended = trio.Event()
        self._scope = trio.CancelScope()

    @property
    def is_open(self) -> bool:
        """Whether new streams may be opened."""
        return self._leaving is None and not self._ended.is_set()

    async def run(self) -> None:
        """Read, write and keep alive until the connection ends. `end_reason` then says why; the end raises nothing."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._driver.serve, self._until_end)
                    nursery.start_soon(self._until_end, self._keep_alive)
        finally:
            self._end()
            with trio.CancelScope(shield=True), trio.move_on_after(FLUSH_S):
                await self._connection.aclose()

    def open_stream(self) -> YamuxStream:
        """Open a stream; the peer learns of it with the next write. Raises StreamBroken if the connection is ending."""
        if not self.is_open:
            raise StreamBroken(self.end_reason)
        stream = YamuxStream(self, self._next_id)
        self._next_id += 2
        self._streams[stream.id] = stream
        self.control(FrameType.WINDOW_UPDATE, Flag.SYN, stream.id, 0)
        return stream

    async def aclose(self) -> None:
        """Write what was sent, say good-bye, and close; at most FLUSH_S."""
        self._leave(GO_AWAY_NORMAL, "the connection was closed here")
        with trio.move_on_after(FLUSH_S):
            await self._ended.wait()
        self._scope.cancel()

    def break_off(self, reason: str) -> None:
        """End the connection at once; all bytes held for the peer are freed before this returns."""
        if not self._ended.is_set():
            self.end_reason = reason
            self._end(keep_received=False)
            self._scope.cancel()

    # Called by our streams.

    def widens(self, stream_id: int) -> bool:
        """Return whether a stream gets a large window while it is read: a member's stream, or one that we opened."""
        return self.account.is_member or self._is_ours(stream_id)

    def enqueue(self, stream: YamuxStream, *, at_once: bool = False) -> None:
        """Give `stream` a turn if it has none coming; with `at_once`, write now if it is its turn and there is room."""
        if stream not in self._turns:
            self._fresh[stream] = None
        if at_once:
            self._driver.flush_now()
        else:
            self._driver.flush_soon()

    def tell_later(self, tell: Callable[[], None]) -> None:
        """Call `tell` once the next write is decided: the callee may send more."""
        self._to_tell.append(tell)

    def control(self, frame_type: FrameType, flags: int, stream_id: int, length: int) -> None:
        """Queue a control frame ahead of all bulk."""
        self._control.append(encode_header(frame_type, flags, stream_id, length))
        self._driver.flush_soon()

    def forget(self, stream: YamuxStream) -> bool:
        """Drop a finished stream; return False if it had been dropped before."""
        known = self._streams.pop(stream.id, None) is not None
        if known and not self._is_ours(stream.id):
            self._num_inbound -= 1
        return known

    # Called by the driver.

    def take(self, frames: Iterator[Frame]) -> float | None:
        """Act on `frames` until the peer must pause; return for how many seconds. Return None if no frames are left.

        Raises FrameError.
        """
        self._heard_at = trio.current_time()
        account = self.account
        for frame in frames:
            if (
                frame.type is _DATA
                and not frame.flags
                and frame.length >= SMALL_FRAME_BYTES
                and (account.is_member or self._is_ours(frame.stream_id))
            ):  # bulk, which is most of what arrives, and is charged by its size alone
                if (stream := self._streams.get(frame.stream_id)) is not None:
                    stream.on_data(frame.payload)
                continue
            if self._on_frame(frame):
                self.peer_left = True
                return None
            if (cost := self._cost(frame)) and (wait_s := account.charge(cost)) > 0:
                return wait_s
        return None

    def next_write(self) -> bytes:
        """Return the bytes to write next, with our good-bye behind all others; b"" if there are none."""
        if parts := self._batch():
            data = b"".join(parts)
            told, self._to_tell = self._to_tell, []
            for tell in told:
                tell()
            return data
        if self._leaving is not None and not self._said_good_bye:
            self._said_good_bye = True
            return encode_header(FrameType.GO_AWAY, Flag.NONE, 0, self._leaving)
        return b""

    def note_pace(self, pace: Pace) -> None:
        """Adjust the size of writes to a new measurement of the link, so that none takes longer than WRITE_S."""
        most = MAX_WRITE_BYTES if self.account.is_member else FULL_FRAME
        self._write_bytes = whole_frames(pace.within(WRITE_S, MIN_WRITE_BYTES, most))

    # Tasks that run until the end.

    async def _until_end(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task until the connection ends, and end the other tasks with it."""
        try:
            await task()
        except FrameError as error:
            self._leave(GO_AWAY_PROTOCOL_ERROR, f"the peer broke the protocol: {error}")
            await trio.sleep(FLUSH_S)
        except ConnectionLost as error:
            if self._leaving is None:
                self.end_reason = f"the connection was lost: {error}"
        self._scope.cancel()

    async def _keep_alive(self) -> None:
        """Send PINGs while nothing arrives, and return once nothing has arrived for too long."""
        value = 0
        ask_after_s = KEEPALIVE_S if self._initiator else KEEPALIVE_S + 2 * ASK_AGAIN_S
        while True:
            await trio.sleep(ASK_AGAIN_S)
            now = trio.current_time()
            if now - self._heard_at > TIMEOUT_S:
                self.end_reason = f"nothing was heard from the peer for {TIMEOUT_S:.0f} s"
                return
            if self._driver.is_stuck:
                raise ConnectionLost("the peer took nothing for too long")
            if now - self._heard_at >= ask_after_s:
                self._connection.hurry()
                value += 1
                self.control(FrameType.PING, Flag.SYN, 0, value)
            for stream in [stream for stream in self._streams.values() if stream.lingers(now)]:
                stream.reset("the peer did not close its side")

    # Parts of the above.

    def _batch(self) -> list[bytes | memoryview]:
        """Return the next write: all control frames, then one frame of each stream in turn, up to `_write_bytes`.

        A stream that is alone fills it with one frame, which saves both ends of a fast link a tenth of their time. A
        served stream goes to the end of the queue, even with nothing more to send, and leaves it when its turn finds
        nothing. So a stream that sends again and again does not count as new each time (fq_codel, RFC 8290, 4.2).
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
        """Act on one frame; return True if the peer says good-bye."""
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
        """Return the cost of a frame at the peer's rate; 0 for bulk that is charged by its size alone."""
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
        self._driver.flush_soon()

    def _end(self, *, keep_received: bool = True) -> None:
        self._ended.set()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.break_(self.end_reason, keep_received=keep_received)
        self._fresh.clear()
        self._turns.clear()
