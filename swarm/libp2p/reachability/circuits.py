"""Open circuits to peers through a relay, and accept circuits from peers that reach us through one.

    /libp2p/circuit/relay/0.2.0/hop     RESERVE, CONNECT -> STATUS     what we ask of a relay
    /libp2p/circuit/relay/0.2.0/stop    CONNECT -> STATUS              what a relay asks us, where we have a reservation

Invariants:

- A circuit is secured like any connection: a relay that joins us with another peer than it says is found out.
- Peers reach us only through relays that we have a reservation with, and at most MAX_INBOUND at a time.
- The bytes sent over a circuit before it is granted are public: the first ones of a handshake.

Specification: https://github.com/libp2p/specs/blob/master/relay/circuit-v2.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import trio
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb

from protocol.core.errors import PeerError
from protocol.core.ids import PeerId
from protocol.reach import Way
from swarm.libp2p.circuit import CircuitConnection
from swarm.libp2p.connection import Connection, Route
from swarm.libp2p.identify import AGENT
from swarm.libp2p.reachability.hosting import Hosting
from swarm.libp2p.reachability.relaying.relay import ANSWER_S, HOP, peer_of
from swarm.libp2p.reachability.wire import framed, receive
from swarm.libp2p.security import HandshakeFailed, NotTakenAtOnce, secure_inbound, secure_outbound
from swarm.libp2p.stream import Libp2pStream
from swarm.libp2p.yamux.connection import YAMUX_PROTOCOL
from swarm.transport.interface import Stream, TransportError

HANDSHAKE_S = 10.0
"""Seconds for a handshake over a circuit: five round trips at most, each over two links."""

GRANT_S = 2 * ANSWER_S
"""Seconds for a relay to answer: it asks another peer in turn."""

MAX_INBOUND = 16
"""Peers that reach us through relays at a time. A member's neighbours all come within seconds; the rest waits."""

MIN_RESERVATION_S = 30.0
MAX_RESERVATION_S = 24 * 3600.0
"""Seconds. We believe a reservation's lifetime only within these bounds."""


log = logging.getLogger(__name__)


class NoCircuit(Exception):
    """A relay did not do what we asked for. The message says which relay, and why."""


class RelayBusy(NoCircuit):
    """The relay, or the peer behind it, is busy, and may have room in a moment."""


BUSY = frozenset({pb.RESOURCE_LIMIT_EXCEEDED, pb.CONNECTION_FAILED})
"""The statuses that may mean this. A relay does not say whether it could not reach the peer, or the peer refused."""


@dataclass(kw_only=True)
class Circuits:
    """Open and accept circuits. `on_inbound` is called with each circuit from a peer, and may start what it likes."""

    host: Hosting
    on_inbound: Callable[[Connection], None]
    _reserved: dict[PeerId, float] = field(default_factory=dict)
    """When each relay's reservation ends, on the monotonic clock."""
    _num_inbound: int = 0

    async def reserve(self, relay: PeerId) -> float:
        """Ask to be reached through `relay`; return for how many seconds that was granted. Raises NoCircuit."""
        answer = await self._ask(relay, pb.HopMessage(type=pb.HopMessage.RESERVE))
        with trio.CancelScope(shield=True):
            await answer.stream.aclose()
        lasts_s = min(max(answer.message.reservation.expire - time.time(), MIN_RESERVATION_S), MAX_RESERVATION_S)
        self._reserved[relay] = trio.current_time() + lasts_s
        return lasts_s

    def forget(self, relay: PeerId) -> None:
        """Forget a relay that is not connected any more, which ends our reservation."""
        self._reserved.pop(relay, None)

    def relays(self) -> list[PeerId]:
        """Return the relays through which we can be reached."""
        now = trio.current_time()
        return [relay for relay, until in self._reserved.items() if until > now]

    async def connect(self, relay: PeerId, peer: PeerId) -> Connection:
        """Return a circuit to `peer` through a connected relay. Raises NoCircuit, or its subclass RelayBusy."""
        return await self.host.haste.attempt(peer, partial(self._connect, relay, peer))

    async def _connect(self, relay: PeerId, peer: PeerId, at_once: bool) -> Connection:
        """Do the same in one attempt. Raises NotTakenAtOnce as well."""
        asked = pb.HopMessage(type=pb.HopMessage.CONNECT, peer=pb.PeerId(id=ID.from_base58(peer).to_bytes()))
        raw = _AskedCircuit(partial(self._ask, relay, asked))
        try:
            with trio.fail_after(GRANT_S + HANDSHAKE_S):
                channel = await secure_outbound(raw, self.host.security, peer, YAMUX_PROTOCOL, at_once=at_once)
        except BaseException as error:  # also if it was cancelled: nothing else knows of this stream
            with trio.CancelScope(shield=True):
                await raw.abort()
            if isinstance(error, NotTakenAtOnce):
                raise
            if isinstance(error, HandshakeFailed | trio.TooSlowError):
                raise NoCircuit(f"{peer} through {relay}: {error or 'no handshake in time'}") from error
            raise
        assert raw.answer is not None
        route = self._route(raw.answer.stream.connection, dialled=True, limit=raw.answer.message.limit)
        return self.host.add(channel, raw, route, is_member=True, is_initiator=True)

    async def serve(self, stream: Stream) -> None:
        """Accept a circuit that a relay brings from a peer. Handles STOP."""
        assert isinstance(stream, Libp2pStream)
        with trio.fail_after(ANSWER_S):
            message = await receive(stream, pb.StopMessage)
        peer = peer_of(message.peer.id)
        if message.type != pb.StopMessage.CONNECT or peer is None:
            await stream.send_all(_status(pb.MALFORMED_MESSAGE))
        elif stream.remote not in self.relays() or stream.connection.route.relay is not None:
            await stream.send_all(_status(pb.PERMISSION_DENIED))
        elif self._num_inbound >= MAX_INBOUND:
            await stream.send_all(_status(pb.RESOURCE_LIMIT_EXCEEDED))
        else:
            self._num_inbound += 1
            try:
                await stream.send_all(_status(pb.OK))
                await self._take(stream, peer, message.limit)
            finally:
                self._num_inbound -= 1

    async def _take(self, stream: Libp2pStream, peer: PeerId, limit: pb.Limit) -> None:
        """Secure a circuit from `peer`, and stay until it ends."""
        raw = CircuitConnection(stream, is_initiator=False)
        try:
            with trio.fail_after(HANDSHAKE_S):
                channel = await secure_inbound(raw, self.host.security, YAMUX_PROTOCOL)
        except HandshakeFailed as error:
            # Close it in good order: if we do not speak the proposed protocol, our answer must still arrive.
            log.debug("a circuit from %s: %s", peer, error)
            return
        if channel.remote != peer:
            raise TransportError(f"{channel.remote} came through a circuit that was said to be from {peer}")
        route = self._route(stream.connection, dialled=False, limit=limit)
        is_member = self.host.is_trusted(peer)
        connection = self.host.add(channel, raw, route, is_member=is_member, is_initiator=False)
        self.on_inbound(connection)
        await connection.gone.wait()

    def _route(self, below: Connection, *, dialled: bool, limit: pb.Limit) -> Route:
        return Route(
            address=f"/p2p/{below.peer}/p2p-circuit",
            origin=below.route.origin,
            dialled=dialled,
            way=Way.RELAYED,
            relay=below.peer,
            is_limited=limit.data != 0 or limit.duration != 0,
        )

    async def _ask(self, relay: PeerId, message: pb.HopMessage, first: bytes = b"") -> _Answer:
        """Ask a relay for something that it grants, and send `first` over the result. Raises NoCircuit.

        If the relay is known to keep bytes that it reads too early, they go with the question: half a round trip less.
        """
        connection = self.host.open_connection(relay)
        if connection is None:
            raise NoCircuit(f"the relay {relay} is not connected")
        early, late = (first, b"") if connection.agent == AGENT else (b"", first)
        try:
            stream = await self.host.open_stream_on(connection, HOP, framed(message) + early)
            try:
                with trio.fail_after(GRANT_S):
                    answer = await receive(stream, pb.HopMessage)
                if answer.type != pb.HopMessage.STATUS or answer.status != pb.OK:
                    failed = RelayBusy if answer.status in BUSY else NoCircuit
                    raise failed(f"the relay {relay} refused: {_name(answer.status)}")
                await stream.send_all(late)
            except BaseException:  # also if it was cancelled
                with trio.CancelScope(shield=True):
                    await stream.abort()
                raise
        except (TransportError, PeerError, trio.TooSlowError) as error:
            raise NoCircuit(f"the relay {relay} failed: {error or 'no answer in time'}") from error
        return _Answer(stream=stream, message=answer)


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """A relay's grant, and the stream on which it came, which may be a circuit now."""

    stream: Libp2pStream
    message: pb.HopMessage


class _AskedCircuit(CircuitConnection):
    """A circuit that `ask` asks a relay for, together with the first bytes to be sent over it."""

    def __init__(self, ask: Callable[[bytes], Awaitable[_Answer]]) -> None:
        super().__init__(None, is_initiator=True)
        self.answer: _Answer | None = None
        self._ask = ask

    async def write(self, data: bytes | memoryview) -> None:
        """Send all of `data`. Raises NoCircuit the first time, then ConnectionClosedError."""
        if self.answer is not None:
            await super().write(data)
        else:
            self.answer = await self._ask(bytes(data))
            self.stream = self.answer.stream

    async def abort(self) -> None:
        """Reset the stream, if there is one."""
        if self.answer is not None:
            await self.answer.stream.abort()


def _status(status: pb.Status.ValueType) -> bytes:
    return framed(pb.StopMessage(type=pb.StopMessage.STATUS, status=status))


def _name(status: pb.Status.ValueType) -> str:
    """Return the specification's name of a status."""
    return pb.Status.Name(status) if status in pb.Status.values() else str(int(status))
