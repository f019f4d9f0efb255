"""Agree on a protocol by its name (multistream-select 1.0).

    message = uvarint length | text | "\\n"      the first message each way is "/multistream/1.0.0"

The initiator proposes names in order of preference. The responder echoes the one that it accepts, or answers "na". The
initiator sends its first proposal together with its greeting, so that agreement takes one round trip. Specification:
https://github.com/multiformats/multistream-select.

Invariants:

- No byte beyond the negotiation is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

GREETING = "/multistream/1.0.0"
NOT_AVAILABLE = "na"

MAX_MESSAGE_BYTES = 1024
"""Bytes of a protocol's name; the specification's own limit for a message."""

MAX_PROPOSALS = 16
"""Names that a responder listens to before it gives up on an initiator."""


class NegotiationFailed(Exception):
    """The two ends have no protocol in common, or the other end does not speak multistream."""


class PeerProposes(NegotiationFailed):
    """The other end also acts as the initiator."""


class Wire(Protocol):
    """The byte stream over which two ends negotiate."""

    async def read(self, n: int) -> bytes:
        """Return exactly `n` bytes."""

    async def write(self, data: bytes) -> None: ...


def encode_message(text: str) -> bytes:
    """Return the bytes of one message."""
    body = text.encode() + b"\n"
    length = len(body)
    prefix = bytearray()
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(prefix) + bytes([length]) + body


async def read_message(wire: Wire) -> str:
    """Return one message's text. Raises NegotiationFailed, and what `wire` raises."""
    length = 0
    for shift in (0, 7):
        byte = (await wire.read(1))[0]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    else:
        raise NegotiationFailed("a negotiation message is too long")
    if not 0 < length <= MAX_MESSAGE_BYTES:
        raise NegotiationFailed(f"a negotiation message has {length} bytes")
    body = await wire.read(length)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise NegotiationFailed("a negotiation message is not text") from error
    if not text.endswith("\n"):
        raise NegotiationFailed("a negotiation message does not end in a newline")
    return text[:-1]


async def propose(wire: Wire, protocols: Sequence[str]) -> str:
    """Propose `protocols` in order; return the one that the other end accepts. Raises NegotiationFailed."""
    first = encode_message(GREETING)
    greeted = False
    for protocol in protocols:
        await wire.write(first + encode_message(protocol))
        first = b""
        if not greeted:
            await _expect_greeting(wire)
            greeted = True
        answer = await read_message(wire)
        if answer != NOT_AVAILABLE:
            _expect_taken(protocol, answer)
            return protocol
    raise NegotiationFailed(f"the peer does not speak {' or '.join(protocols)}")


async def propose_at_once(wire: Wire, protocol: str, first: bytes) -> None:
    """Propose `protocol` and go on with `first` as if it was already accepted, which saves a round trip.

    Raises NegotiationFailed, or its subclass PeerProposes, if it is not accepted. The other end has then read `first`
    as proposals, and the wire cannot be used any more.
    """
    await wire.write(encode_message(GREETING) + encode_message(protocol) + first)
    await _expect_greeting(wire)
    _expect_taken(protocol, await read_message(wire))


async def answer(wire: Wire, supports: Callable[[str], bool]) -> str:
    """Accept the first proposed protocol that `supports` knows. Raises NegotiationFailed."""
    await wire.write(encode_message(GREETING))
    await _expect_greeting(wire)
    for _ in range(MAX_PROPOSALS):
        proposal = await read_message(wire)
        if supports(proposal):
            await wire.write(encode_message(proposal))
            return proposal
        await wire.write(encode_message(NOT_AVAILABLE))
    raise NegotiationFailed("the peer proposed no protocol that we speak")


def _expect_taken(protocol: str, answer: str) -> None:
    """Raise PeerProposes if the answer names another protocol, and NegotiationFailed if it is anything else."""
    if answer != protocol:
        failed = PeerProposes if answer.startswith("/") else NegotiationFailed
        raise failed(f"{protocol} was answered with {answer!r}")


async def _expect_greeting(wire: Wire) -> None:
    greeting = await read_message(wire)
    if greeting != GREETING:
        raise NegotiationFailed(f"expected {GREETING}, got {greeting!r}")
