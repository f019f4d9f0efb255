"""multistream-select 1.0: two ends agree on a protocol by its name.

    message = uvarint length | text | "\\n"      the first message each way is "/multistream/1.0.0"

The initiator proposes names in order of preference, the responder echoes the one it takes or answers "na". The
initiator sends its first proposal together with its greeting, so that agreement takes one round trip. What always
holds: no byte beyond the negotiation is read. Specification: https://github.com/multiformats/multistream-select.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

GREETING = "/multistream/1.0.0"
NOT_AVAILABLE = "na"

MAX_MESSAGE_BYTES = 1024
"""A protocol's name; the specification's own bound for a message."""

MAX_PROPOSALS = 16
"""Names a responder listens to before it gives up on an initiator."""


class NegotiationFailed(Exception):
    """The two ends have no protocol in common, or the other one does not speak multistream."""


class PeerProposes(NegotiationFailed):
    """The other end takes itself for the initiator as well."""


class Wire(Protocol):
    """What is negotiated over."""

    async def read(self, n: int) -> bytes:
        """Return exactly `n` bytes."""

    async def write(self, data: bytes) -> None: ...


def encode_message(text: str) -> bytes:
    """Return one message."""
    body = text.encode() + b"\n"
    length = len(body)
    prefix = bytearray()
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(prefix) + bytes([length]) + body


async def read_message(wire: Wire) -> str:
    """Return one message's text. Raises NegotiationFailed, and whatever `wire` raises."""
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
    """Propose `protocols` in order; return the one the other side takes. Raises NegotiationFailed."""
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
    """Propose `protocol` and go on with `first` as if it was taken already, which saves a round trip.

    Raises NegotiationFailed where it is not, PeerProposes among it; whoever answered has then read `first` for
    proposals, and the wire is of no use any more.
    """
    await wire.write(encode_message(GREETING) + encode_message(protocol) + first)
    await _expect_greeting(wire)
    _expect_taken(protocol, await read_message(wire))


async def answer(wire: Wire, supports: Callable[[str], bool]) -> str:
    """Take the first proposed protocol that `supports` knows. Raises NegotiationFailed."""
    await wire.write(encode_message(GREETING))
    await _expect_greeting(wire)
    for _ in range(MAX_PROPOSALS):
        proposal = await read_message(wire)
        if supports(proposal):
            await wire.write(encode_message(proposal))
            return proposal
        await wire.write(encode_message(NOT_AVAILABLE))
    raise NegotiationFailed("the peer proposed nothing that we speak")


def _expect_taken(protocol: str, answer: str) -> None:
    """Raise PeerProposes where another protocol came as the answer, NegotiationFailed where anything else did."""
    if answer != protocol:
        failed = PeerProposes if answer.startswith("/") else NegotiationFailed
        raise failed(f"{protocol} was answered with {answer!r}")


async def _expect_greeting(wire: Wire) -> None:
    greeting = await read_message(wire)
    if greeting != GREETING:
        raise NegotiationFailed(f"expected {GREETING}, got {greeting!r}")
