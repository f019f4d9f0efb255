"""Messages on a stream: a u32 big-endian length, then the bytes.

What always holds: a length over the limit is refused before anything is allocated; what we send is within the bounds of
its type, or a LocalProtocolError; a stream that ends inside a frame is broken, never a short message; a send that is
cancelled aborts the stream, since half a frame may be under way; receiving is a checkpoint even when the frame was here
already, so a peer that writes fast cannot hold the turn.
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

PREFIX = struct.Struct(">I")
MAX_LENGTH = (1 << 32) - 1
PIECE_BYTES = 64 * 1024
"""Of a large message, what is handed to the stream at once if its sender wants to know how it goes on."""

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

    `received_bytes` grows with every read, also inside a frame: who waits for a large one sees that it is coming.
    """

    def __init__(self, stream: Stream, limit: int) -> None:
        self.stream = stream
        self.limit = limit
        self.received_bytes = 0
        self._buffer = bytearray()

    async def send(self, message: msgspec.Struct, note_progress: Callable[[int], None] | None = None) -> None:
        """Send one message. Raises StreamBroken, or LocalProtocolError when a field is out of bounds; aborts the stream
        when cancelled.

        `note_progress` is told how many bytes have left, after every PIECE_BYTES of a large one but the last.
        """
        if note_progress is None:
            await self.send_bytes(encode(require_bounds(message)))
            return
        frame = _frame(encode(require_bounds(message)))
        for start in range(0, len(frame), PIECE_BYTES):
            if start:
                note_progress(PIECE_BYTES)
            await self._write(frame[start : start + PIECE_BYTES])

    async def send_together(self, messages: Sequence[msgspec.Struct]) -> None:
        """Send several messages in one write. Raises StreamBroken; aborts the stream when cancelled."""
        await self._write(b"".join(_frame(encode(require_bounds(message))) for message in messages))

    async def send_bytes(self, body: bytes) -> None:
        """Send one message that is encoded already. Raises StreamBroken; aborts the stream when cancelled."""
        await self._write(_frame(body))

    async def _write(self, data: bytes) -> None:
        try:
            await self.stream.send_all(data)
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
        await trio.lowlevel.checkpoint()
        if not await self._fill(PREFIX.size):
            return None
        (size,) = PREFIX.unpack_from(self._buffer)
        if size > self.limit:
            raise PeerError(
                Fault.OVERSIZED, f"a frame of {size} bytes on {self.stream.protocol}, at most {self.limit} allowed"
            )
        await self._fill(PREFIX.size + size)
        body = bytes(self._buffer[PREFIX.size : PREFIX.size + size])
        del self._buffer[: PREFIX.size + size]
        self.stream.retain(len(self._buffer))
        return body

    async def _fill(self, size: int) -> bool:
        """Read until `size` bytes are here; False when the stream ended between two frames."""
        while len(self._buffer) < size:
            self.stream.expect(size - len(self._buffer))
            at_once = min(READ_BYTES, self.limit + PREFIX.size)
            data = await self.stream.receive_some(max(at_once, size - len(self._buffer)))
            if not data:
                if self._buffer:
                    raise StreamBroken(f"{self.stream.remote} ended {self.stream.protocol} inside a frame")
                return False
            self.received_bytes += len(data)
            self._buffer += data
            self.stream.retain(len(self._buffer))
        return True


def _frame(body: bytes) -> bytes:
    if len(body) > MAX_LENGTH:
        raise LocalProtocolError(f"a frame of {len(body)} bytes does not fit its length field")
    return PREFIX.pack(len(body)) + body
