"""Tell others whether they can be reached, by dialling back to one address of the peer that asks (AutoNAT v2).

    asker: addresses, nonce -> (bytes, where the address is not the asker's own) -> we dial -> the nonce -> our verdict

A peer that wants us to dial somebody else's address must first send us more bytes than that dial costs. So such a
request gains it nothing.

Invariants:

- One address of each request is dialled, a public one.
- We dial from a port on which we do not listen. Otherwise a hole that the asker has punched to us would let us in.
- At most MAX_DIALS run at a time.
- A connection made for this is closed at once, and the layers above never see it.

Specification: https://github.com/libp2p/specs/blob/master/autonat/autonat-v2.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import trio

from protocol.core.errors import Fault, PeerError
from protocol.core.ids import PeerId
from protocol.core.limits import KIB
from swarm.libp2p.connection import Connection
from swarm.libp2p.reachability.autonat import autonat_pb2 as pb
from swarm.libp2p.reachability.hosting import Hosting
from swarm.libp2p.reachability.multiaddrs import from_bytes
from swarm.libp2p.reachability.wire import framed, receive
from swarm.libp2p.security import HandshakeFailed
from swarm.libp2p.sockets.addresses import Address, parse_address
from swarm.libp2p.stream import Libp2pStream
from swarm.transport.event_rate import Bucket, Buckets, Rate
from swarm.transport.interface import Stream, TransportError

DIAL_REQUEST = "/libp2p/autonat/2/dial-request"
DIAL_BACK = "/libp2p/autonat/2/dial-back"

MAX_DIALS = 8
"""Dials at a time: a connection and a handshake each."""

REQUESTS_OF_PEER = Rate(per_s=1 / 10, burst=8.0)
REQUESTS = Rate(per_s=5.0, burst=64.0)
"""Requests that are served: a node has a handful of addresses, and asks again when its network changes."""

MAX_ADDRESSES_READ = 16
"""Addresses read from one request. The first that we would dial is dialled."""

MIN_PROOF_BYTES, MAX_PROOF_BYTES = 30_000, 100_000
"""Bytes from a peer that wants us to dial an address that is not its own: three to ten times what the dial costs."""

MAX_DATA_MESSAGE_BYTES = 8 * KIB
"""Bytes of one message of that proof: 4096 of them, and some overhead of other implementations."""

REQUEST_S = 15.0
"""Seconds for a request to arrive, with its bytes."""

DIAL_S = 10.0
"""Seconds for a dial back, from its first packet to the asker's thanks."""


@dataclass(kw_only=True)
class DialBacks:
    """Serve requests to dial back.

    Args:
        may_dial: whether an address that a stranger named may be dialled.
        rng: chooses how many bytes to demand.
    """

    host: Hosting
    may_dial: Callable[[Address], bool]
    rng: Random = field(default_factory=Random)
    _of_peer: Buckets[PeerId] = field(default_factory=lambda: Buckets(rate=REQUESTS_OF_PEER))
    _all: Bucket = field(default_factory=lambda: Bucket(rate=REQUESTS))
    _num_dials: int = 0

    async def serve(self, stream: Stream) -> None:
        """Answer one request. Handles DIAL_REQUEST."""
        assert isinstance(stream, Libp2pStream)
        with trio.fail_after(REQUEST_S):
            request = (await receive(stream, pb.Message)).dialRequest
            now = trio.current_time()
            if not (self._of_peer.of(stream.remote).admit(now) and self._all.admit(now)) or self._is_busy:
                await stream.send_all(_response(pb.DialResponse.E_REQUEST_REJECTED))
                return
            chosen = self._choose(request)
            if chosen is None:
                await stream.send_all(_response(pb.DialResponse.E_DIAL_REFUSED))
                return
            number, address = chosen
            if not _is_at(stream.connection, address):
                await self._take_proof(stream, number)
        if self._is_busy:
            await stream.send_all(_response(pb.DialResponse.E_REQUEST_REJECTED))
            return
        self._num_dials += 1
        try:
            status = await self._dial(stream.remote, address, request.nonce)
        finally:
            self._num_dials -= 1
        await stream.send_all(_response(pb.DialResponse.OK, number, status))

    @property
    def _is_busy(self) -> bool:
        return self._num_dials >= MAX_DIALS

    def _choose(self, request: pb.DialRequest) -> tuple[int, Address] | None:
        """Return the first address that we would dial, and its number in the request."""
        for number, data in enumerate(request.addrs[:MAX_ADDRESSES_READ]):
            for address in from_bytes([data], 1):
                if self.may_dial(address):
                    return number, address
        return None

    async def _take_proof(self, stream: Libp2pStream, number: int) -> None:
        """Make the asker send more than the dial costs. Raises PeerError if it sends something else."""
        wanted = self.rng.randint(MIN_PROOF_BYTES, MAX_PROOF_BYTES)
        asked = pb.Message(dialDataRequest=pb.DialDataRequest(addrIdx=number, numBytes=wanted))
        await stream.send_all(framed(asked))
        while wanted > 0:
            told = await receive(stream, pb.Message, MAX_DATA_MESSAGE_BYTES)
            if not told.dialDataResponse.data:
                raise PeerError(Fault.MALFORMED, "AutoNAT: a proof was asked for, and a message without bytes came")
            wanted -= len(told.dialDataResponse.data)

    async def _dial(self, peer: PeerId, address: Address, nonce: int) -> pb.DialStatus.ValueType:
        """Dial, send the nonce, and close the connection."""
        connection: Connection | None = None
        try:
            with trio.move_on_after(DIAL_S):
                connection = await self.host.connect_apart(peer, address)
                stream = await self.host.open_stream_on(connection, DIAL_BACK, framed(pb.DialBack(nonce=nonce)))
                await receive(stream, pb.DialBackResponse)
                return pb.OK
        except (TransportError, PeerError):
            return pb.E_DIAL_BACK_ERROR
        except (OSError, HandshakeFailed):
            return pb.E_DIAL_ERROR
        finally:
            if connection is not None:
                with trio.CancelScope(shield=True):
                    await connection.aclose()
        return pb.E_DIAL_ERROR if connection is None else pb.E_DIAL_BACK_ERROR


def _is_at(connection: Connection, address: Address) -> bool:
    """Return whether the address is on the machine at the connection's other end, as we see it."""
    route = connection.route
    return route.relay is None and parse_address(route.address).host == address.host


def _response(
    status: pb.DialResponse.ResponseStatus.ValueType, number: int = 0, dialled: pb.DialStatus.ValueType = pb.UNUSED
) -> bytes:
    return framed(pb.Message(dialResponse=pb.DialResponse(status=status, addrIdx=number, dialStatus=dialled)))
