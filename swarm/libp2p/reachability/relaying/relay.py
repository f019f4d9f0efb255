"""Relay for members: join a stream of a member that wants to reach a peer with a stream to that peer.

    /libp2p/circuit/relay/0.2.0/hop     RESERVE, CONNECT -> STATUS     members ask us
    /libp2p/circuit/relay/0.2.0/stop    CONNECT -> STATUS              we ask the peer that is to be reached

Invariants:

- `relay_budget` decides which peers get what.
- No circuit leads through another circuit.
- A circuit ends with its time, its bytes, or either end, and both ends then know.
- The bytes of a circuit are encrypted between its ends.
- At most MAX_EARLY_BYTES of a circuit reach its far end before that end accepts it, which spares both ends half a round
  trip. They are the first bytes of a handshake, which are public. A peer that might lose them behind our question gets
  none.

Specification: https://github.com/libp2p/specs/blob/master/relay/circuit-v2.md.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from itertools import count

import trio
from libp2p.peer.id import ID
from libp2p.peer.pb.crypto_pb2 import PublicKey
from libp2p.peer.pb.envelope_pb2 import Envelope
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb

from protocol.core.errors import PeerError
from protocol.core.ids import PeerId
from swarm.libp2p.connection import Connection
from swarm.libp2p.identify import AGENT
from swarm.libp2p.reachability.hosting import Hosting
from swarm.libp2p.reachability.multiaddrs import to_bytes
from swarm.libp2p.reachability.relaying.carried import Carried
from swarm.libp2p.reachability.relaying.relay_budget import RelayBudget, Status
from swarm.libp2p.reachability.wire import framed, receive, uvarint
from swarm.libp2p.security import Identity
from swarm.libp2p.sockets.fair_rate_limit import SMALL_BYTES
from swarm.libp2p.sockets.rate_limiter import Pacer
from swarm.libp2p.stream import Libp2pStream
from swarm.transport.error_groups import first_cause
from swarm.transport.event_rate import Buckets, Rate
from swarm.transport.interface import Stream, StreamBroken, TransportError

HOP = "/libp2p/circuit/relay/0.2.0/hop"
STOP = "/libp2p/circuit/relay/0.2.0/stop"

ANSWER_S = 10.0
"""Seconds for a message to arrive, and for the peer that is to be reached to accept or refuse."""

COPY_BYTES = 16 * 1024
"""Bytes moved at a time. Introductions are small, and bulk takes turns with all other traffic of its connections."""

MAX_EARLY_BYTES = 4096
"""Bytes sent together with the question whether a peer accepts a circuit. A first message of TLS has about 400 bytes;
with post-quantum keys, 1700."""

MAX_PEER_ID_BYTES = 64
"""A peer id is the hash of its key, or an Ed25519 key itself: 34 or 38 bytes."""

REQUESTS = Rate(per_s=2.0, burst=64.0)
"""Reservations and circuits that one member asks for. After a learner's restart it asks for all its neighbours."""

_flows = count()

VOUCHER_DOMAIN = b"libp2p-relay-rsvp"
VOUCHER_TYPE = bytes([0x03, 0x02])
"""The purpose of a voucher's signature, so that it can stand for nothing else (libp2p's RFC 0002)."""


@dataclass(kw_only=True)
class Relay:
    """Grant reservations and circuits, and move their bytes. `pacer`: the cap of all circuits together, if any."""

    host: Hosting
    pacer: Pacer | None = None
    budget: RelayBudget = field(default_factory=RelayBudget)
    relayed_bytes: int = 0
    """Bytes of all circuits so far, each byte once."""
    carried: Carried = field(default_factory=Carried)
    _rates: Buckets[PeerId] = field(default_factory=lambda: Buckets(rate=REQUESTS))

    async def serve(self, stream: Stream) -> None:
        """Answer one request of a member. Handles HOP."""
        assert isinstance(stream, Libp2pStream)
        try:
            with trio.fail_after(ANSWER_S):
                message = await receive(stream, pb.HopMessage)
        except PeerError:
            await stream.send_all(_answer(Status.MALFORMED_MESSAGE))
            return
        if stream.connection.route.relay is not None or not self.host.is_trusted(stream.remote):
            await stream.send_all(_answer(Status.PERMISSION_DENIED))
        elif not self._rates.of(stream.remote).admit(trio.current_time()):
            await stream.send_all(_answer(Status.RESOURCE_LIMIT_EXCEEDED))
        elif message.type == pb.HopMessage.RESERVE:
            await self._reserve(stream)
        elif message.type == pb.HopMessage.CONNECT:
            await self._connect(stream, message.peer.id)
        else:
            await stream.send_all(_answer(Status.UNEXPECTED_MESSAGE))

    def forget(self, peer: PeerId) -> None:
        """Forget a peer whose last connection is gone."""
        self.budget.forget(peer)

    async def _reserve(self, stream: Libp2pStream) -> None:
        limits, origin = self.budget.limits, stream.connection.route.origin
        status = self.budget.reserve(stream.remote, origin, trio.current_time())
        if status is not Status.OK:
            await stream.send_all(_answer(status))
            return
        expires = int(time.time() + limits.reservation_s)
        reservation = pb.Reservation(
            expire=expires,
            addrs=[to_bytes(address) for address in self.host.addresses()],
            voucher=sign_voucher(self.host.identity, stream.remote, expires),
        )
        await stream.send_all(_answer(Status.OK, reservation=reservation, limit=self._limit()))

    async def _connect(self, stream: Libp2pStream, wanted: bytes) -> None:
        """Join `stream` with one to the wanted peer, until one of them ends."""
        target = peer_of(wanted)
        if target is None:
            await stream.send_all(_answer(Status.MALFORMED_MESSAGE))
            return
        status = self.budget.open_circuit(stream.remote, target, trio.current_time())
        if status is not Status.OK:
            await stream.send_all(_answer(status))
            return
        try:
            await self._join(stream, target)
        finally:
            self.budget.close_circuit(stream.remote, target)

    async def _join(self, near: Libp2pStream, target: PeerId) -> None:
        """Join them once the budget has granted it."""
        limits = self.budget.limits
        left = math.inf if limits.allows_bulk else limits.circuit_bytes
        connection = self.host.open_connection(target)
        keeps_early = connection is not None and connection.agent == AGENT
        early = near.take_arrived(int(min(MAX_EARLY_BYTES, left))) if keeps_early else b""
        far = None if connection is None else await self._reach(near.remote, connection, early)
        if far is None:
            await near.send_all(_answer(Status.CONNECTION_FAILED))
            return
        if early:
            self._count(near, far, len(early))
        try:
            await near.send_all(_answer(Status.OK, limit=self._limit()))
            with trio.fail_after(math.inf if limits.allows_bulk else limits.circuit_s), first_cause():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._carry, near, far, left - len(early))
                    nursery.start_soon(self._carry, far, near, left)
        except trio.TooSlowError:
            raise StreamBroken("a circuit's time is over") from None
        except BaseException:  # also if it was cancelled: the far end must not wait for more
            with trio.CancelScope(shield=True):
                await far.abort()
            raise
        await far.aclose()

    async def _reach(self, source: PeerId, connection: Connection, early: bytes) -> Libp2pStream | None:
        """Return a stream that the peer of `connection` accepted as a circuit from `source`, with `early` on it."""
        offer = pb.StopMessage(
            type=pb.StopMessage.CONNECT, peer=pb.PeerId(id=ID.from_base58(source).to_bytes()), limit=self._limit()
        )
        try:
            far = await self.host.open_stream_on(connection, STOP, framed(offer) + early)
            try:
                with trio.fail_after(ANSWER_S):
                    answer = await receive(far, pb.StopMessage)
            except BaseException:  # also if it was cancelled
                with trio.CancelScope(shield=True):
                    await far.abort()
                raise
        except (TransportError, PeerError, trio.TooSlowError):
            return None
        if answer.type == pb.StopMessage.STATUS and answer.status == pb.OK:
            return far
        await far.aclose()
        return None

    async def _carry(self, source: Libp2pStream, target: Libp2pStream, left: float) -> None:
        """Move at most `left` bytes one way, until the end. Raises StreamBroken, also after the last byte."""
        flow = next(_flows)
        while data := await source.receive_some(COPY_BYTES):
            if len(data) > left:
                raise StreamBroken("a circuit's bytes are used up")
            left -= len(data)
            if self.pacer is not None:
                await self.pacer.take(len(data), flow=flow, small=len(data) <= SMALL_BYTES)
            await target.send_all(data)
            self._count(source, target, len(data))
        await target.send_eof()

    def _count(self, source: Libp2pStream, target: Libp2pStream, num_bytes: int) -> None:
        self.relayed_bytes += num_bytes
        self.carried.add(source.remote, target.remote, num_bytes)

    def _limit(self) -> pb.Limit | None:
        limits = self.budget.limits
        return None if limits.allows_bulk else pb.Limit(duration=int(limits.circuit_s), data=limits.circuit_bytes)


def sign_voucher(relay: Identity, peer: PeerId, expires: int) -> bytes:
    """Return the signed statement of `relay` that `peer` may be reached through it until `expires` (Unix seconds)."""
    key = relay.key_pair
    voucher = pb.Voucher(
        relay=ID.from_base58(relay.peer_id).to_bytes(), peer=ID.from_base58(peer).to_bytes(), expiration=expires
    ).SerializeToString(deterministic=True)
    parts = (VOUCHER_DOMAIN, VOUCHER_TYPE, voucher)
    signed = b"".join(uvarint(len(part)) + part for part in parts)
    return Envelope(
        public_key=PublicKey.FromString(key.public_key.serialize()),
        payload_type=VOUCHER_TYPE,
        payload=voucher,
        signature=key.private_key.sign(signed),
    ).SerializeToString(deterministic=True)


def _answer(status: Status, *, reservation: pb.Reservation | None = None, limit: pb.Limit | None = None) -> bytes:
    return framed(
        pb.HopMessage(
            type=pb.HopMessage.STATUS, status=pb.Status.ValueType(status), reservation=reservation, limit=limit
        )
    )


def peer_of(raw: bytes) -> PeerId | None:
    """Return the peer id of these bytes; None if they cannot be one."""
    try:
        return PeerId(ID(raw).to_base58()) if 0 < len(raw) <= MAX_PEER_ID_BYTES else None
    except ValueError:
        return None
