"""Read and write messages of libp2p's own protocols: protobuf, each preceded by its length as a varint.

Invariants:

- No byte behind a message is read, since a stream may go on as something else.
- A length over the limit is rejected before any memory is allocated.
- Every error in what a peer sent is a PeerError.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from protocol.core.errors import Fault, PeerError
from swarm.transport.interface import Stream, StreamBroken

M = TypeVar("M", bound=Message)

MAX_MESSAGE_BYTES = 4096
"""The bytes that the specifications of circuits and hole punching ask implementations to accept, and no more."""

LENGTH_BYTES = 2
"""Bytes of the varint before a message of at most MAX_MESSAGE_BYTES; 3 would do for 2 MiB."""


def framed(message: Message) -> bytes:
    """Return the bytes of a message on a stream."""
    data = message.SerializeToString(deterministic=True)
    return uvarint(len(data)) + data


def uvarint(value: int) -> bytes:
    """Return an unsigned number with seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


async def receive(stream: Stream, kind: type[M], at_most: int = MAX_MESSAGE_BYTES) -> M:
    """Wait for one message. Raises PeerError if it is malformed or too long, StreamBroken if the stream ends."""
    length = await _length(stream)
    if length > at_most:
        raise PeerError(Fault.OVERSIZED, f"{kind.DESCRIPTOR.full_name}: {length} bytes, at most {at_most} allowed")
    message = kind()
    try:
        message.ParseFromString(await _exactly(stream, length))
    except DecodeError as error:
        raise PeerError(Fault.MALFORMED, f"{kind.DESCRIPTOR.full_name}: {error}") from error
    return message


async def _length(stream: Stream) -> int:
    length = 0
    for number in range(LENGTH_BYTES + 1):
        octet = (await _exactly(stream, 1))[0]
        length |= (octet & 0x7F) << 7 * number
        if octet < 0x80:
            return length
    raise PeerError(Fault.OVERSIZED, f"a message of {length} bytes or more")


async def _exactly(stream: Stream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        if not piece:
            raise StreamBroken(f"the stream ended after {len(data)} of {size} bytes")
        data += piece
    return bytes(data)
