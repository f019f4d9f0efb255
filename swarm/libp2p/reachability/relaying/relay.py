"""A relay for members: it joins a stream of whoever wants to reach a peer with one to that peer.

    /libp2p/circuit/relay/0.2.0/hop     RESERVE, CONNECT -> STATUS     members ask us
    /libp2p/circuit/relay/0.2.0/stop    CONNECT -> STATUS              we ask the peer that is to be reached

Invariants:
- `relay_budget` decides who may have what.
- No circuit leads through another one.
- A circuit ends with its time, its bytes, or either end, and both ends then know.
- What it carries is encrypted between its ends.
- MAX_EARLY_BYTES at most of a circuit reach its far end before that has taken it, which spares both ends half a round
  trip: the first words of a handshake, which are public. Who may not keep them behind our question is sent none.

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
"""For a message to come, and for the peer that is to be reached to say whether it wants to be."""

COPY_BYTES = 16 * 1024
"""Moved at a time: introductions are small, and bulk takes turns with all else that its lines carry."""

MAX_EARLY_BYTES = 4096
"""Sent with the question whether a peer wants a circuit: a first message of TLS has some 400 bytes, one with keys for
the time of quantum computers 1700."""

MAX_PEER_ID_BYTES = 64
"""A peer's id is the hash of its key, or an Ed25519 key itself: 34 or 38 bytes."""

REQUESTS = Rate(per_s=2.0, burst=64.0)
"""Reservations and circuits that one member asks for. After a learner's restart it asks for all its neighbours."""

_flows = count()

VOUCHER_DOMAIN = b"libp2p-relay-rsvp"
VOUCHER_TYPE = bytes([0x03, 0x02])
"""What the signature of a voucher is for, so that it can stand for nothing else (RFC 0002 of libp2p's)."""


@dataclass(kw_only=True)
class Relay:
    """See the module's paragraph. `pacer`: what all circuits together carry at most, if there is such a cap."""

    host: Hosting
    pacer: Pacer | None = None
    budget: RelayBudget = field(default_factory=RelayBudget)
    relayed_bytes: int = 0
    """Of all circuits so far, each byte once."""
    carried: Carried = field(default_factory=Carried)
    _rates: Buckets[PeerId] = field(default_factory=lambda: Buckets(rate=REQUESTS))

    async def serve(self, stream: Stream) -> None:
        """Do what a member asks for. Handles HOP."""
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
        """The last connection to a peer is gone."""
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
        """Join `stream` with one to the peer that is wanted, until one of them ends."""
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
        """The same, where it was granted."""
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
        except BaseException:  # also where it was cancelled: the far end must not wait for more
            with trio.CancelScope(shield=True):
                await far.abort()
            raise
        await far.aclose()

    async def _reach(self, source: PeerId, connection: Connection, early: bytes) -> Libp2pStream | None:
        """A stream that the peer of a connection took for a circuit from `source`, with `early` on it."""
        offer = pb.StopMessage(
            type=pb.StopMessage.CONNECT, peer=pb.PeerId(id=ID.from_base58(source).to_bytes()), limit=self._limit()
        )
        try:
            far = await self.host.open_stream_on(connection, STOP, framed(offer) + early)
            try:
                with trio.fail_after(ANSWER_S):
                    answer = await receive(far, pb.StopMessage)
            except BaseException:  # also where it was cancelled
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
        """Move `left` bytes one way at most, until their end. Raises StreamBroken, also after the last one."""
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
    """The word of `relay` that `peer` may be reached through it until `expires`, in seconds of Unix time."""
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
    """The peer that is meant; None where no key of ours can be."""
    try:
        return PeerId(ID(raw).to_base58()) if 0 < len(raw) <= MAX_PEER_ID_BYTES else None
    except ValueError:
        return None
