"""Messages on a stream: a u32 big-endian length, then the bytes.

What always holds: a length over the limit is refused before anything is allocated; what we send is within the bounds of
its type, or a LocalProtocolError; a stream that ends inside a frame is broken, never a short message; a send that is
cancelled aborts the stream, since half a frame may be under way; receiving can always be cancelled, and gives up its
turn for every IN_A_ROW frames that were here already, so a peer that writes fast cannot hold it.
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
"""Frames taken in one turn of the transport: small ones cost a tenth of a millisecond each."""

IN_A_ROW = 16
"""Frames received in one turn. A turn of the scheduler costs as much as a small message, and most come in twos."""

READ_BYTES = 256 * 1024
"""Asked for in one read, or one frame of the largest size where that is less; a transport may return less."""


@asynccontextmanager
async def open_frames(stream: Stream, limit: int) -> AsyncIterator[FrameStream]:
    """Messages over `stream`: closed in good order when the block ends, torn down when it raises or is cancelled."""
    try:
        yield FrameStream(stream, limit)
        await stream.aclose()
    except BaseException:  # also where it was cancelled: the other side must not wait for more
        await abort(stream)
        raise


async def abort(stream: Stream) -> None:
    """Tear `stream` down, also while being cancelled."""
    with trio.CancelScope(shield=True):
        await stream.abort()


class FrameStream:
    """A stream that carries messages. One task may send while another receives.

    Args:
        stream: what carries the bytes; closing it stays with its owner.
        limit: most bytes of one incoming frame; may be changed between two frames.

    `received_bytes` grows inside a frame as well: who waits for a large one sees that it is coming.
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
        """All that have come."""
        return self.stream.num_arrived

    async def send(self, message: msgspec.Struct) -> None:
        """Send one message. Raises StreamBroken, or LocalProtocolError when a field is out of bounds; aborts the stream
        when cancelled.
        """
        await self.send_bytes(encode(require_bounds(message)))

    def post(self, messages: Sequence[msgspec.Struct]) -> bool:
        """Send several small messages without waiting; False, and nothing is sent, when the stream is full.

        Raises StreamBroken, or LocalProtocolError when a field is out of bounds.
        """
        return self.stream.post(_frames(messages))

    def start(
        self, parts: Sequence[bytes | memoryview], note_progress: Callable[[int], None], done: Callable[[], None]
    ) -> bool:
        """Send one message that is encoded already, without waiting; see `Stream.start`. Raises StreamBroken."""
        return self.stream.start((PREFIX.pack(_checked(sum(map(len, parts)))), *parts), note_progress, done)

    async def send_together(self, messages: Sequence[msgspec.Struct]) -> None:
        """Send several messages in one write. Raises StreamBroken; aborts the stream when cancelled."""
        await self._write(_frames(messages))

    async def send_bytes(self, *parts: bytes | memoryview, note_progress: Callable[[int], None] | None = None) -> None:
        """Send one message that is encoded already, in parts. Raises StreamBroken; aborts the stream when cancelled.

        `note_progress` is told how many bytes of a large one have left, whenever some have, but for the last.
        """
        await self._write(PREFIX.pack(_checked(sum(map(len, parts)))), *parts, note_progress=note_progress)

    async def _write(self, *parts: bytes | memoryview, note_progress: Callable[[int], None] | None = None) -> None:
        try:
            await self.stream.send_all(*parts, note_progress=note_progress)
        except trio.Cancelled:
            await abort(self.stream)
            raise

    async def receive(self, kind: Any) -> Any:
        """Wait for the next message and decode it as `kind`; None after the other side's end of stream.

        Cancelling loses nothing. Raises StreamBroken, or PeerError for a frame that is too long or no such message.
        """
        body = await self.receive_bytes()
        return None if body is None else decode(kind, body, self.limit)

    async def receive_bytes(self) -> bytes | None:
        """Wait for the next frame; None after the other side's end of stream.

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
        """Give each frame to `take` until it does not take one, and return that one; None after the end of stream.

        Where the transport can, `take` is called in the turn in which a frame comes, and nobody is woken. So it must
        not wait, and when it returns False it has changed nothing. What it raises is raised here. Otherwise as
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
        """Take what has come, while somebody waits in `receive_each`; False when that one has to be woken."""
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
        except Exception as error:  # where nobody could handle it
            self._failure = error
            return False
        self._is_nudged = False
        return True

    def _next(self) -> bytes | None:
        """Return the next frame; None, and say how much of it is lacking, while it is not here. Raises PeerError."""
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
