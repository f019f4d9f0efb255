"""Ask others whether we can be reached at an address: they dial it and return a number that we made up.

Invariants:

- An address counts as reachable only if that number came back. That it is not reachable is only a peer's claim.
- The bytes that we send to prove that our request is serious are bounded.

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
"""Seconds for one verdict: others give a dial 15 s, and a slow link takes some more for the bytes that they ask for."""

DATA_BYTES = 4096
"""Bytes of proof in one message, the most that the specification allows."""

NONCE_BITS = 64


class Word(Enum):
    """The result of a peer's dial."""

    REACHED = "reached"
    NOT_REACHED = "not_reached"
    NONE = "none"
    """It dialled nothing, or its answer cannot be trusted."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A peer's result for one address; the address is None if the peer chose none."""

    address: Address | None
    word: Word


@dataclass(kw_only=True)
class ReachabilityQuestions:
    """Ask peers to dial back, and receive their dials. `rng` makes numbers that nobody can guess."""

    host: Hosting
    rng: Random = field(default_factory=SystemRandom)
    _awaited: dict[int, bool] = field(default_factory=dict)
    """Numbers of open requests, and whether each came back."""

    async def serve(self, stream: Stream) -> None:
        """Receive the number of a peer that dialled back. Handles DIAL_BACK."""
        with trio.fail_after(ANSWER_S):
            told = await receive(stream, pb.DialBack)
            if told.nonce in self._awaited:
                self._awaited[told.nonce] = True
                await stream.send_all(framed(pb.DialBackResponse(status=pb.DialBackResponse.OK)))

    async def ask(self, connection: Connection, addresses: Sequence[Address]) -> Verdict:
        """Ask a peer to dial the first of `addresses` that it is willing to dial; return its verdict."""
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
        """Return the peer's answer, after sending the bytes that it may demand. Raises TransportError, PeerError."""
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
