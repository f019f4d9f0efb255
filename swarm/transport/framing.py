"""Send and receive messages on a stream, each as a u32 big-endian length and then the bytes.

Invariants:

- A length over the limit is refused before anything is allocated.
- A message that we send is within the bounds of its type; otherwise LocalProtocolError is raised.
- A stream that ends inside a frame is broken. It never yields a short message.
- A cancelled send aborts the stream, since half a frame may be sent already.
- Receiving can always be cancelled. After IN_A_ROW frames it lets other tasks run, so a fast peer cannot block them.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from protocol.core.codec import decode, encode, require_bounds
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from swarm.transport.interface import Stream, StreamBroken
from swarm.transport.receive_buffer import Arrivals

PREFIX = struct.Struct(">I")
PREFIX_BYTES = PREFIX.size
MAX_LENGTH = (1 << 32) - 1
TAKEN_AT_ONCE = 64
"""Frames taken in one turn of the transport. Small ones cost a tenth of a millisecond each."""

IN_A_ROW = 16
"""Frames received in one turn. A turn of the scheduler costs as much as a small message, and most messages come in
pairs."""

READ_BYTES = 256 * 1024
"""Bytes requested in one read, or one frame of the largest size if that is less. A transport may return fewer."""


@asynccontextmanager
async def open_frames(stream: Stream, limit: int) -> AsyncIterator[FrameStream]:
    """Yield messages over `stream`. Close it when the block ends; abort it if the block fails or is cancelled."""
    try:
        yield FrameStream(stream, limit)
        await stream.aclose()
    except BaseException:  # also on cancellation: the other side must not wait for more
        await abort(stream)
        raise


async def abort(stream: Stream) -> None:
    """Abort `stream`, even while being cancelled."""
    with trio.CancelScope(shield=True):
        await stream.abort()


class FrameStream:
    """A stream that carries messages. One task may send while another receives.

    `received_bytes` also grows inside a frame, so a task that waits for a large frame sees its progress.

    Args:
        stream: stream that carries the bytes; its owner closes it.
        limit: largest size of one incoming frame in bytes; it may be changed between two frames.
    """

    def __init__(self, stream: Stream, limit: int) -> None:
        self.stream = stream
        self.limit = limit
        self._arrived = Arrivals()
        self._at_once = PREFIX_BYTES
        self._in_a_row = 0
        self._take: Callable[[bytes], bool] = lambda body: False
        self._left: bytes | None = None
        self._failure: Exception | None = None
        self._is_nudged = False
        stream.retain(0)

    @property
    def received_bytes(self) -> int:
        """Bytes that have arrived so far."""
        return self.stream.num_arrived

    async def send(self, message: msgspec.Struct) -> None:
        """Send one message. If cancelled, abort the stream.

        Raises StreamBroken, or LocalProtocolError if a field is out of bounds.
        """
        await self.send_bytes(encode(require_bounds(message)))

    def post(self, messages: Sequence[msgspec.Struct]) -> bool:
        """Send several small messages without waiting. Return False, and send nothing, if the stream is full.

        Raises StreamBroken, or LocalProtocolError if a field is out of bounds.
        """
        return self.stream.post(_frames(messages))

    def start(
        self, parts: Sequence[bytes | memoryview], note_progress: Callable[[int], None], done: Callable[[], None]
    ) -> bool:
        """Send one encoded message without waiting; see `Stream.start`. Raises StreamBroken."""
        return self.stream.start((PREFIX.pack(_checked(sum(map(len, parts)))), *parts), note_progress, done)

    async def send_together(self, messages: Sequence[msgspec.Struct]) -> None:
        """Send several messages in one write. If cancelled, abort the stream. Raises StreamBroken."""
        await self._write(_frames(messages))

    async def send_bytes(self, *parts: bytes | memoryview, note_progress: Callable[[int], None] | None = None) -> None:
        """Send one encoded message in parts. If cancelled, abort the stream. Raises StreamBroken.

        During a large message, `note_progress` is called with the number of bytes just sent, except for the last.
        """
        await self._write(PREFIX.pack(_checked(sum(map(len, parts)))), *parts, note_progress=note_progress)

    async def _write(self, *parts: bytes | memoryview, note_progress: Callable[[int], None] | None = None) -> None:
        try:
            await self.stream.send_all(*parts, note_progress=note_progress)
        except trio.Cancelled:
            await abort(self.stream)
            raise

    async def receive(self, kind: Any) -> Any:
        """Wait for the next message and decode it as `kind`. Return None after the other side's end of stream.

        Cancelling loses nothing. Raises StreamBroken, or PeerError for a frame that is too long or no such message.
        """
        body = await self.receive_bytes()
        return None if body is None else decode(kind, body, self.limit)

    async def receive_bytes(self) -> bytes | None:
        """Wait for the next frame and return it. Return None after the other side's end of stream.

        Cancelling loses nothing. Raises StreamBroken or PeerError(OVERSIZED).
        """
        self._in_a_row += 1
        if self._in_a_row < IN_A_ROW:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._in_a_row = 0
            await trio.lowlevel.checkpoint()
        while True:
            left, self._left = self._left, None
            if (body := self._next() if left is None else left) is not None:
                return body
            data = await self.stream.receive_some(self._at_once)
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if data:
                self._arrived.put(data)
            elif self._is_nudged:
                self._is_nudged = False
            else:
                if self._arrived.size:
                    raise StreamBroken(f"{self.stream.remote} ended {self.stream.protocol} inside a frame")
                return None

    async def receive_each(self, take: Callable[[bytes], bool]) -> bytes | None:
        """Pass each frame to `take` until that returns False, and return that frame; None after the end of stream.

        If the transport supports it, `take` is called in the turn in which a frame arrives, and no task is woken. So
        `take` must not wait, and must change nothing if it returns False. Its errors are raised here, as are those of
        `receive_bytes`.
        """
        self._take = take
        self.stream.on_arrival = self._on_arrival
        try:
            while (body := await self.receive_bytes()) is not None:
                if not take(body):
                    break
            return body
        finally:
            self.stream.on_arrival = None

    def _on_arrival(self) -> bool:
        """Take the arrived frames while a task waits in `receive_each`. Return False if the task must be woken."""
        self._is_nudged = True
        num_taken = 0
        try:
            while data := self.stream.take_arrived(self._at_once):
                self._arrived.put(data)
                while (body := self._next()) is not None:
                    num_taken += 1
                    if num_taken > TAKEN_AT_ONCE or not self._take(body):
                        self._left = body
                        return False
        except Exception as error:  # nothing here can handle it: the waiting task raises it
            self._failure = error
            return False
        self._is_nudged = False
        return True

    def _next(self) -> bytes | None:
        """Return the next frame. While it is incomplete, return None and tell the stream how many bytes are missing.

        Raises PeerError.
        """
        arrived = self._arrived
        size = -1
        if arrived.size >= PREFIX_BYTES:
            (size,) = PREFIX.unpack(arrived.peek(PREFIX_BYTES))
            if size > self.limit:
                raise PeerError(
                    Fault.OVERSIZED, f"a frame of {size} bytes on {self.stream.protocol}, at most {self.limit} allowed"
                )
        lacking = PREFIX_BYTES + max(size, 0) - arrived.size
        if lacking > 0:
            self._at_once = max(min(READ_BYTES, self.limit + PREFIX_BYTES), lacking)
            self.stream.retain(arrived.size)
            self.stream.expect(lacking)
            return None
        arrived.take(PREFIX_BYTES)
        body = arrived.take(size)
        self.stream.retain(arrived.size)
        return body


def _frames(messages: Sequence[msgspec.Struct]) -> bytes:
    bodies = [encode(require_bounds(message)) for message in messages]
    return b"".join(PREFIX.pack(_checked(len(body))) + body for body in bodies)


def _checked(size: int) -> int:
    if size > MAX_LENGTH:
        raise LocalProtocolError(f"a frame of {size} bytes does not fit its length field")
    return size
