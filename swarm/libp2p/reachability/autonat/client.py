"""Asks others whether we can be reached at an address: they dial back, and hand over a number that we made up.

Invariants:
- An address counts as reachable only where that number came back. That it is not reachable is a peer's word.
- What we send to prove that we mean it is bounded.

Specification: https://github.com/libp2p/specs/blob/master/autonat/autonat-v2.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random, SystemRandom

import trio

from protocol.core.errors import PeerError
from swarm.libp2p.connection import Connection
from swarm.libp2p.reachability.autonat import autonat_pb2 as pb
from swarm.libp2p.reachability.autonat.server import DIAL_REQUEST, MAX_PROOF_BYTES
from swarm.libp2p.reachability.hosting import Hosting
from swarm.libp2p.reachability.multiaddrs import to_bytes
from swarm.libp2p.reachability.wire import framed, receive
from swarm.libp2p.sockets.addresses import Address
from swarm.libp2p.stream import Libp2pStream
from swarm.transport.interface import Stream, TransportError

ANSWER_S = 40.0
"""For one verdict: others give a dial 15 s, and the bytes that they ask for take a slow line some more."""

DATA_BYTES = 4096
"""Of one message of proof, the most that the specification allows."""

NONCE_BITS = 64


class Word(Enum):
    """What a peer's dial came to."""

    REACHED = "reached"
    NOT_REACHED = "not_reached"
    NONE = "none"
    """It dialled nothing, or cannot be believed."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a peer found out about one address; None where it chose none."""

    address: Address | None
    word: Word


@dataclass(kw_only=True)
class ReachabilityQuestions:
    """See the module's paragraph. `rng` makes numbers that nobody guesses."""

    host: Hosting
    rng: Random = field(default_factory=SystemRandom)
    _awaited: dict[int, bool] = field(default_factory=dict)
    """Numbers under way, and whether they came back."""

    async def serve(self, stream: Stream) -> None:
        """Somebody dialled back. Handles DIAL_BACK."""
        with trio.fail_after(ANSWER_S):
            told = await receive(stream, pb.DialBack)
            if told.nonce in self._awaited:
                self._awaited[told.nonce] = True
                await stream.send_all(framed(pb.DialBackResponse(status=pb.DialBackResponse.OK)))

    async def ask(self, connection: Connection, addresses: Sequence[Address]) -> Verdict:
        """Have a peer dial back to the first of `addresses` that it would dial."""
        nonce = self.rng.getrandbits(NONCE_BITS)
        self._awaited[nonce] = False
        request = pb.DialRequest(addrs=[to_bytes(str(address)) for address in addresses], nonce=nonce)
        try:
            with trio.fail_after(ANSWER_S):
                stream = await self.host.open_stream_on(
                    connection, DIAL_REQUEST, framed(pb.Message(dialRequest=request))
                )
                try:
                    response = await self._hear(stream)
                finally:
                    with trio.CancelScope(shield=True):
                        await stream.aclose()
            return self._verdict(response, nonce, addresses)
        except (TransportError, PeerError, trio.TooSlowError):
            return Verdict(address=None, word=Word.NONE)
        finally:
            del self._awaited[nonce]

    async def _hear(self, stream: Libp2pStream) -> pb.DialResponse:
        """The peer's answer, after the bytes that it may want. Raises TransportError, PeerError."""
        while True:
            message = await receive(stream, pb.Message)
            if message.WhichOneof("msg") != "dialDataRequest":
                return message.dialResponse
            wanted = min(message.dialDataRequest.numBytes, MAX_PROOF_BYTES)
            data = framed(pb.Message(dialDataResponse=pb.DialDataResponse(data=bytes(DATA_BYTES))))
            for _ in range(-(-wanted // DATA_BYTES)):
                await stream.send_all(data)

    def _verdict(self, response: pb.DialResponse, nonce: int, addresses: Sequence[Address]) -> Verdict:
        if response.status != pb.DialResponse.OK or response.addrIdx >= len(addresses):
            return Verdict(address=None, word=Word.NONE)
        address = addresses[response.addrIdx]
        if self._awaited[nonce]:
            return Verdict(address=address, word=Word.REACHED)
        word = Word.NOT_REACHED if response.dialStatus == pb.E_DIAL_ERROR else Word.NONE
        return Verdict(address=address, word=word)
