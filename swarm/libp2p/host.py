"""Run one node's presence in libp2p: combine TCP, TLS or noise, yamux and multistream behind the `Transport` interface.

py-libp2p provides identities, the noise handshake and its messages. The host itself is ours. py-libp2p's host keeps
tasks outside every nursery, silently shares listening ports (SO_REUSEPORT), and loses the address of IPv6 peers. It
also stops dialling a peer for a minute after one dial without an answer.

Invariants:

- Every task lives in this host's nursery: leaving the scope ends them all, within FLUSH_S or so.
- A peer that does something wrong ends its own stream or connection and nothing else.
- This node contacts only the addresses that `dial` was given, and members that ask for it
  (`swarm.libp2p.reachability`): there is no bootstrap and no mDNS.
- A connection is registered, announced and used by broadcast in one step, and forgotten in one step.
- Strangers cost no more than `budget` and `door` allow, whatever they do, and never take a member's place.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import TypeVar

import trio
from libp2p.io.exceptions import ConnectionClosedError

from protocol.core.errors import PeerError
from protocol.core.ids import PeerId
from protocol.reach import Reach, Way
from swarm.libp2p.connection import Connection, Route
from swarm.libp2p.connection_gate import (
    BYTES,
    CONNECTIONS,
    FIRST_BYTES_S,
    HANDSHAKE_S,
    HANDSHAKES,
    MAX_HANDSHAKES,
    WAIT_S,
    Door,
)
from swarm.libp2p.dialler import Dialler
from swarm.libp2p.fair_slots import origin_of
from swarm.libp2p.handshake_turns import HandshakeTurns
from swarm.libp2p.haste import Haste
from swarm.libp2p.identify import IDENTIFY_PROTOCOL, PING_PROTOCOL, answer_ping, identify_handler
from swarm.libp2p.memory_budget import MAX_STRANGERS, Budget, Over
from swarm.libp2p.multistream import NegotiationFailed, answer, propose_at_once
from swarm.libp2p.outlasting import outlast
from swarm.libp2p.reachability.hole_punch import DCUTR
from swarm.libp2p.reachability.reaching import PROTOCOLS, MapPorts, Reaching, TellPort
from swarm.libp2p.security import (
    NOISE,
    TLS,
    HandshakeFailed,
    Identity,
    RawConnection,
    SecureChannel,
    SecurityTable,
    secure_inbound,
    secure_outbound,
    security_table,
)
from swarm.libp2p.sockets.addresses import (
    Address,
    BadAddress,
    from_socket,
    list_advertised,
    parse_address,
)
from swarm.libp2p.sockets.port_reuse import Leaves, connect_from, listen_on
from swarm.libp2p.sockets.rate_limiter import Caps, start_pacer
from swarm.libp2p.sockets.readiness import Readiness, open_readiness
from swarm.libp2p.sockets.tcp import STRANGER_RECEIVE_BYTES, TcpConnection
from swarm.libp2p.stream import Libp2pStream, StreamWire
from swarm.libp2p.yamux.connection import YAMUX_PROTOCOL
from swarm.libp2p.yamux.stream import Meter, YamuxStream
from swarm.transport.flood import Flooding
from swarm.transport.interface import (
    STREAM_OPEN_TIMEOUT_S,
    ListenFailed,
    PeerConnected,
    Refusal,
    Stream,
    StreamBroken,
    StreamRefused,
    Traffic,
    Transport,
    TransportError,
)
from swarm.transport.reach_evidence import ReachEvidence

T = TypeVar("T")

MAX_CONNECTIONS = 4096
"""Members' connections, apart from those of strangers: one for each peer of a large swarm, a file descriptor each."""

OTHER_FILES = MAX_STRANGERS + MAX_HANDSHAKES + 128
"""File descriptors that members leave free: for strangers, handshakes and files."""

MAX_CONNECTIONS_PER_PEER = 4
"""Two dials that cross leave two connections; no honest peer has more than these."""

INTRODUCTIONS = frozenset({IDENTIFY_PROTOCOL, PING_PROTOCOL, DCUTR})
"""Protocols that a limited circuit may carry: enough for two peers to get to know each other and to meet."""

log = logging.getLogger(__name__)


def most_members(open_files: int) -> int:
    """Return how many members' connections a process with `open_files` file descriptors may have; -1 means no limit."""
    if open_files < 0:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(1, open_files // 2, open_files - OTHER_FILES))


class Host(Flooding):
    """Implement `swarm.transport.interface.Transport`; obtained from `open_libp2p`."""

    def __init__(
        self,
        identity: Identity,
        security: SecurityTable,
        caps: Caps,
        readiness: Readiness | None,
        nursery: trio.Nursery,
    ) -> None:
        super().__init__(nursery)
        self.identity = identity
        self.readiness = readiness
        self.security = security
        self.haste = Haste()
        self._caps = caps
        self._nursery = nursery
        self._listening: list[str] = []
        self._announce: tuple[Address, ...] = ()
        self._connections: dict[PeerId, list[Connection]] = {}
        self.reaching = Reaching(self)
        self._dialler = Dialler(self, self.reaching.meetings.through, self.reaching.may_dial_named)
        self._circuits: dict[PeerId, list[Connection]] = {}
        self._unless_met: dict[PeerId, list[trio.CancelScope]] = {}
        self.listeners: tuple[trio.SocketListener, ...] = ()
        self._numbers = count()
        self.door, self.budget = Door(), Budget()
        self._turns = HandshakeTurns(self.door)
        self._most_members = most_members(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._shaking: dict[int, trio.CancelScope] = {}
        self._by_number: dict[int, Connection] = {}
        self._trusted: set[PeerId] = set()
        self._meters: dict[PeerId, Meter] = {}
        self._meter_of_gone = Meter()
        self.handle(IDENTIFY_PROTOCOL, identify_handler(identity, self.addresses, lambda: list(self.handlers)))
        self.handle(PING_PROTOCOL, answer_ping)
        self.reaching.start(nursery)

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    def addresses(self) -> list[str]:
        return list(self._listening)

    def limit_rates(self, *, upload_bits_per_s: float | None, download_bits_per_s: float | None) -> None:
        self._caps.limit(self._nursery, upload_bits_per_s=upload_bits_per_s, download_bits_per_s=download_bits_per_s)

    def traffic(self) -> dict[PeerId, Traffic]:
        return {peer: Traffic(sent=meter.sent, received=meter.received) for peer, meter in self._meters.items()}

    def total_traffic(self) -> Traffic:
        meters = [*self._meters.values(), self._meter_of_gone]
        return Traffic(sent=sum(meter.sent for meter in meters), received=sum(meter.received for meter in meters))

    def trust(self, peer: PeerId) -> None:
        self._trusted.add(peer)
        self._reclassify_all(peer)

    def distrust(self, peer: PeerId) -> None:
        self._trusted.discard(peer)
        self._reclassify_all(peer)

    def is_trusted(self, peer: PeerId) -> bool:
        return peer in self._trusted or any(one.dialled for one in self._connections.get(peer, ()))

    def reached(self) -> Reach:
        return self.reaching.reach()

    def take_carried(self) -> Mapping[tuple[PeerId, PeerId], int]:
        return self.reaching.relay.carried.take()

    def reach_evidence(self) -> ReachEvidence:
        return self.reaching.own_reach.evidence()

    def may_dial(self, address: str) -> bool:
        return self.reaching.may_dial(address)

    def expect(self, origins: Mapping[PeerId, str], awaited: Collection[PeerId] = ()) -> None:
        self.door.expect(origins.keys(), origins.values())
        self.door.await_from(origins[peer] for peer in awaited if peer in origins)

    def origins(self) -> dict[PeerId, str]:
        return {peer: those[0].route.origin for peer, those in self._connections.items() if peer in self._trusted}

    def note_refusal(self, budget: str, who: str) -> None:
        self.door.refusals.note(budget, who)

    def refusals(self) -> list[Refusal]:
        return self.door.refusals.take()

    async def dial(self, addresses: Sequence[str], *, named_by_others: bool = False) -> PeerId:
        return await self._dialler.dial(addresses, named_by_others=named_by_others)

    async def disconnect(self, peer: PeerId) -> None:
        async with trio.open_nursery() as nursery:
            for connection in list(self._connections.get(peer, ())):
                nursery.start_soon(connection.aclose)

    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        connection = self.open_connection(peer)
        if connection is None:
            await trio.lowlevel.checkpoint()
            raise StreamRefused(f"{peer} is not connected")
        return await self.open_stream_on(connection, protocol)

    # For other modules of this package.

    def listen(self, listeners: Sequence[trio.SocketListener], announce: Sequence[Address]) -> None:
        """Serve sockets that are bound already."""
        self.listeners = tuple(listeners)
        self._announce = tuple(announce)
        self.relist()
        if listeners:
            self._nursery.start_soon(trio.serve_listeners, self._accept, list(listeners))

    def relist(self) -> None:
        """Find again the addresses that others may dial: interfaces come and go."""
        bound = [from_socket(listener.socket.getsockname()) for listener in self.listeners]
        self._listening = list_advertised(bound, self._announce, self.peer_id) if bound else []
        self.reaching.note_listening(self._announce)

    def connections(self) -> list[Connection]:
        """Return all connections."""
        return list(self._by_number.values())

    async def open_stream_on(self, connection: Connection, protocol: str, first: bytes = b"") -> Libp2pStream:
        """Open a stream over this connection, and send `first` on it without waiting for the peer's consent.

        Raises StreamRefused, within STREAM_OPEN_TIMEOUT_S.
        """
        peer, stream = connection.peer, connection.muxer.open_stream()
        with ExitStack() as stack:
            stack.callback(stream.reset, "it was refused")
            try:
                with trio.fail_after(STREAM_OPEN_TIMEOUT_S):
                    await propose_at_once(StreamWire(stream), protocol, first)
            except (NegotiationFailed, StreamBroken, trio.TooSlowError) as error:
                why = str(error) or f"no answer within {STREAM_OPEN_TIMEOUT_S:.0f} s"
                raise StreamRefused(f"{peer} opened no stream for {protocol}: {why}") from error
            stack.pop_all()
        return self._stream(connection, stream, protocol)

    def serve_stream(self, connection: Connection, stream: YamuxStream) -> None:
        """Start a task for a stream that a peer opened."""
        self._nursery.start_soon(self._serve_stream, connection, stream)

    def end_over(self, over: Iterable[Over]) -> None:
        """End connections that hold more than their budget, and free what they hold."""
        for one in over:
            if (connection := self._by_number.get(one.number)) is None:
                continue
            whose = "its class" if one.of_all else "one connection"
            self.door.refusals.note(BYTES, connection.peer)
            connection.muxer.break_off(f"it left more bytes unread than the budget of {whose} allows")
            self.budget.close(one.number)

    async def aclose(self) -> None:
        """Say good-bye to all peers; at most FLUSH_S."""
        async with trio.open_nursery() as nursery:
            for peer in self.connected_peers():
                nursery.start_soon(self.disconnect, peer)
        self.hub.close()

    async def unless_met(self, peer: PeerId, act: Callable[[], Awaitable[T]]) -> T | None:
        """Run `act` until it is done, or until there is a connection to `peer` without a relay; then return None."""
        if self.is_met(peer):
            return None
        scope = trio.CancelScope()
        waiting = self._unless_met.setdefault(peer, [])
        waiting.append(scope)
        try:
            with scope:
                return await act()
        finally:
            waiting.remove(scope)
            if not waiting:
                self._unless_met.pop(peer, None)
        return None

    def open_connection(self, peer: PeerId) -> Connection | None:
        """Return the connection to `peer` on which streams are opened."""
        return next(iter(self.connections_to(peer)), None)

    def connections_to(self, peer: PeerId) -> list[Connection]:
        """Return the connections on which streams can be opened: those without a relay first, then the oldest."""
        usable = [one for one in self._connections.get(peer, ()) if one.muxer.is_open]
        return usable if len(usable) < 2 else sorted(usable, key=lambda one: (one.route.relay is not None, one.number))

    def is_met(self, peer: PeerId) -> bool:
        """Return whether there is a connection without a relay."""
        connection = self.open_connection(peer)
        return connection is not None and connection.route.relay is None

    async def connect(
        self,
        wanted: PeerId,
        address: Address,
        *,
        is_initiator: bool = True,
        leaves: Leaves = Leaves.IF_IT_CAN,
        way: Way = Way.DIALLED,
    ) -> None:
        """Connect to an IP address where `wanted` must answer. If not `is_initiator`, act as if it had dialled us.

        Raises OSError, HandshakeFailed.
        """
        if is_initiator:
            channel, raw = await self._reach(wanted, address, leaves)
            self.add(channel, raw, self._route(raw, way), is_member=True, is_initiator=True)
        else:
            stream = await connect_from(self.listeners, address.host, address.port, leaves)
            act = partial(self._await, stream, wanted, way)
            await outlast(self._nursery, act, (OSError, HandshakeFailed))

    async def connect_apart(self, wanted: PeerId, address: Address, leaves: Leaves = Leaves.ANEW) -> Connection:
        """Connect to `wanted` once more, for introductions only: the layers above do not see this connection.

        Raises OSError, HandshakeFailed.
        """
        channel, raw = await self._reach(wanted, address, leaves)
        route = Route(address=str(raw.remote), origin=origin_of(raw.remote.host), dialled=True, is_limited=True)
        return self.add(channel, raw, route, is_member=True, is_initiator=True)

    async def _reach(self, wanted: PeerId, address: Address, leaves: Leaves) -> tuple[SecureChannel, TcpConnection]:
        """Return a secure channel to `wanted`, and the TCP connection below it. Raises OSError, HandshakeFailed."""

        async def connect(at_once: bool) -> tuple[SecureChannel, TcpConnection]:
            stream = await connect_from(self.listeners, address.host, address.port, leaves)
            async with self._closed_in_vain(stream):
                raw = self._caps.connection(stream, is_initiator=True)
                return await secure_outbound(raw, self.security, wanted, YAMUX_PROTOCOL, at_once=at_once), raw

        return await self.haste.attempt(wanted, connect)

    async def _await(self, stream: trio.SocketStream, wanted: PeerId, way: Way, must_go_on: Callable[[], None]) -> None:
        """Add a connection that we made, on which `wanted` is the client. Raises HandshakeFailed.

        Once the peer has our answer, it may consider itself connected.
        """
        async with self._closed_in_vain(stream):
            raw = self._caps.connection(stream, is_initiator=False)
            try:
                with trio.fail_after(HANDSHAKE_S):
                    channel = await secure_inbound(raw, self.security, YAMUX_PROTOCOL, must_go_on)
            except trio.TooSlowError as error:
                raise HandshakeFailed(f"no handshake within {HANDSHAKE_S:.0f} s") from error
            if channel.remote != wanted:
                raise HandshakeFailed(f"{channel.remote} answered instead of {wanted}")
            self.add(channel, raw, self._route(raw, way), is_member=True, is_initiator=False)

    @asynccontextmanager
    async def _closed_in_vain(self, stream: trio.SocketStream) -> AsyncIterator[None]:
        """Close a connection if the block fails or is cancelled: nothing else knows of it."""
        try:
            yield
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise

    def _route(self, raw: TcpConnection, way: Way) -> Route:
        """Return the route of a connection that we made."""
        return Route(
            address=str(raw.remote),
            origin=origin_of(raw.remote.host),
            dialled=True,
            way=way,
            local_host=raw.local.host,
            local_port=raw.local.port,
            from_listening=raw.local.port in {from_socket(one.socket.getsockname()).port for one in self.listeners},
        )

    def add(
        self, channel: SecureChannel, raw: RawConnection, route: Route, *, is_member: bool, is_initiator: bool
    ) -> Connection:
        """Add a secured connection, and run it."""
        connection = Connection(
            channel,
            raw=raw,
            route=route,
            number=next(self._numbers),
            is_member=is_member,
            is_initiator=is_initiator,
            host=self,
        )
        self._register(connection)
        self._nursery.start_soon(self._run_connection, connection)
        return connection

    async def _accept(self, stream: trio.SocketStream) -> None:
        """Shake hands on an accepted connection, then run it. No error that a stranger causes leaves this function."""
        number = next(self._numbers)
        async with stream:
            try:
                found = await self._shake_hands(stream, number)
                if found is None:
                    return
                channel, raw, is_initiator = found
                is_member = channel.remote in self._trusted
                if self._has_room_for(channel.remote, is_member=is_member):
                    connection = Connection(
                        channel,
                        raw=raw,
                        route=Route(
                            address=str(raw.remote),
                            origin=origin_of(raw.remote.host),
                            dialled=False,
                            way=Way.PUNCHED if is_initiator else Way.WAS_DIALLED,
                            local_host=raw.local.host,
                            local_port=raw.local.port,
                        ),
                        number=number,
                        is_member=is_member,
                        is_initiator=is_initiator,
                        host=self,
                    )
                    self._register(connection)
                    await self._run_connection(connection)
                else:
                    self.door.refusals.note(CONNECTIONS, channel.remote)
            finally:
                self.door.note_closed(number)

    async def _shake_hands(
        self, stream: trio.SocketStream, number: int
    ) -> tuple[SecureChannel, TcpConnection, bool] | None:
        """Find out who called. The last value returned is whether we act as the initiator all the same.

        Return None if that took too long, or if other connections have more right to the place.
        """
        scope = self._shaking[number] = trio.CancelScope()
        try:
            with scope, trio.fail_after(HANDSHAKE_S):
                raw = self._caps.connection(stream, is_initiator=False)
                raw.receive_bytes = STRANGER_RECEIVE_BYTES
                origin = origin_of(raw.remote.host)
                if (victim := self.door.knock(number, origin, trio.current_time())) is not None:
                    self._shaking[victim].cancel()
                if (wanted := await self.reaching.wanted_at(raw)) is not None:
                    at_once = self.haste.suits(wanted)
                    return await secure_outbound(raw, self.security, wanted, YAMUX_PROTOCOL, at_once=at_once), raw, True
                with trio.fail_after(FIRST_BYTES_S):
                    await raw.wait_first()
                if not self.door.note_first_bytes(number, origin, trio.current_time()):
                    return None
                with trio.move_on_after(WAIT_S) as waiting:
                    await self._turns.wait(origin)
                if waiting.cancelled_caught:
                    self.door.refusals.note(HANDSHAKES, origin)
                    return None
                self._make_way(self.door.begin(number, origin, trio.current_time()))
                channel = await secure_inbound(
                    raw, self.security, YAMUX_PROTOCOL, lambda: self.door.note_progress(number, trio.current_time())
                )
                return channel, raw, False
        except (HandshakeFailed, trio.TooSlowError, OSError, ConnectionClosedError) as error:
            log.debug("an inbound handshake failed: %s", error)
        finally:
            del self._shaking[number]
            self.door.note_handshake_end(number)
        return None

    @property
    def _is_full(self) -> bool:
        """Whether members use all connections that they may have."""
        return len(self._by_number) - self.door.num_strangers >= self._most_members

    def _has_room_for(self, peer: PeerId, *, is_member: bool) -> bool:
        of_peer = len(self._connections.get(peer, ()))
        return peer != self.peer_id and not (is_member and self._is_full) and of_peer < MAX_CONNECTIONS_PER_PEER

    def _reclassify_all(self, peer: PeerId) -> None:
        for connection in list(self._connections.get(peer, ())):
            self._reclassify(connection)

    def _reclassify(self, connection: Connection) -> None:
        """Give a connection the budgets of a member, or of a stranger."""
        is_member = connection.dialled or connection.peer in self._trusted
        if is_member is connection.is_member:
            return
        if is_member and self._is_full:
            self.door.refusals.note(CONNECTIONS, connection.peer)
            return  # it keeps a stranger's budget
        connection.change(is_member=is_member)
        if is_member:
            self.door.note_trusted(connection.number)
            self.door.expect([connection.peer], [connection.route.origin])
        else:
            self._lodge(connection)
        self.end_over(self.budget.promote(connection.number, is_member=is_member))

    def _lodge(self, connection: Connection) -> None:
        """Give a stranger's connection a place, which may displace another one."""
        self._make_way(
            self.door.admit(connection.number, connection.route.origin, connection.peer, trio.current_time())
        )

    def _make_way(self, victim: int | None) -> None:
        """End the handshake or connection that has lost its stranger's place."""
        if victim is None:
            return
        if (scope := self._shaking.get(victim)) is not None:
            scope.cancel()
        elif (other := self._by_number.get(victim)) is not None:
            other.muxer.break_off("other connections have more right to one of the strangers' places")
            self.budget.close(victim)

    def _register(self, connection: Connection) -> None:
        self._by_number[connection.number] = connection
        self.budget.open(connection.number, is_member=connection.is_member)
        self._meters.setdefault(connection.peer, Meter())
        if connection.route.is_limited:  # the layers above do not see its peer as connected
            self._circuits.setdefault(connection.peer, []).append(connection)
            return
        if not connection.is_member:
            self._lodge(connection)
        elif not connection.dialled:
            self.door.note_trusted(connection.number)
            self.door.expect([connection.peer], [connection.route.origin])
        connections = self._connections.setdefault(connection.peer, [])
        connections.append(connection)
        if connection.route.relay is None:
            for scope in self._unless_met.get(connection.peer, ()):
                scope.cancel()
        if len(connections) == 1:
            self.note_connected(
                PeerConnected(peer=connection.peer, dialled=connection.dialled, remote_address=connection.route.address)
            )
        self.reaching.note_connected(connection)

    async def _run_connection(self, connection: Connection) -> None:
        try:
            await connection.muxer.run()
        finally:
            del self._by_number[connection.number]
            self.budget.close(connection.number)
            self.door.note_closed(connection.number)
            table = self._circuits if connection.route.is_limited else self._connections
            connections = table[connection.peer]
            connections.remove(connection)
            if not connections:
                del table[connection.peer]
                if not connection.is_member and not self._is_known(connection.peer):
                    self._meter_of_gone.add(self._meters.pop(connection.peer, Meter()))
                if not connection.route.is_limited:
                    self.note_disconnected(connection.peer)
            self.reaching.note_gone(connection)
            connection.gone.set()
            log.debug("connection to %s ended: %s", connection.peer, connection.muxer.end_reason)

    def _is_known(self, peer: PeerId) -> bool:
        return peer in self._connections or peer in self._circuits

    async def _serve_stream(self, connection: Connection, stream: YamuxStream) -> None:
        """Negotiate and run the handler; `StreamHandler` says what its end means."""
        offered = INTRODUCTIONS & self.handlers.keys() if connection.route.is_limited else self.handlers.keys()
        try:
            with trio.fail_after(STREAM_OPEN_TIMEOUT_S):
                protocol = await answer(StreamWire(stream), offered.__contains__)
            await self.handlers[protocol](self._stream(connection, stream, protocol))
        except (NegotiationFailed, TransportError, PeerError, trio.TooSlowError) as error:
            log.debug("a stream from %s was aborted: %s", connection.peer, error)
            stream.reset("its handler failed")
        except BaseException:  # also if it was cancelled: a stream without a handler must not stay open
            stream.reset("its handler failed")
            raise
        else:
            await stream.aclose()

    def _stream(self, connection: Connection, stream: YamuxStream, protocol: str) -> Libp2pStream:
        # The protocols by which nodes find out how to reach each other do not count as traffic of the layers above.
        meter = Meter() if protocol in PROTOCOLS else self._meters[connection.peer]
        return Libp2pStream(stream, connection=connection, protocol=protocol, meter=meter)


@asynccontextmanager
async def open_libp2p(
    private_key: bytes,
    listen: Sequence[str],
    announce: Sequence[str] = (),
    *,
    security: Sequence[str] = (TLS, NOISE),
    upload_bits_per_s: float | None = None,
    download_bits_per_s: float | None = None,
    relay_bits_per_s: float | None = None,
    map_ports: MapPorts = MapPorts.NEVER,
    tell_port: TellPort = lambda event: None,
) -> AsyncIterator[Transport]:
    """Be present in libp2p while the scope lasts.

    Args:
        private_key: Ed25519 seed, 32 bytes; the peer id follows from it.
        listen: multiaddrs to listen on, /ip4|ip6/HOST/tcp/PORT; none for a node that only dials.
        announce: addresses that others should dial instead of the bound ones, for nodes behind a forwarded port.
        security: protocols to offer and to accept. The preferred one comes first.
        relay_bits_per_s: cap on all circuits through us together. If given, members that cannot meet may use circuits
            through us as connections. None: circuits are for introductions only.
        map_ports: when to ask the home router to forward ports. `tell_port` gets the results.
        upload_bits_per_s, download_bits_per_s: caps on what all connections together write to and read from their
            sockets. Encryption and handshakes count, headers of TCP and IP do not. None is no cap.

    Raises:
        ListenFailed: an address cannot be parsed or bound; nothing stays bound.
    """
    identity = Identity.from_seed(private_key)
    announced = [_parse_own(address) for address in announce]
    listeners = await _bind([_parse_own(address) for address in listen])
    with open_readiness() as readiness:
        try:
            async with trio.open_nursery() as nursery:
                if readiness is not None:
                    nursery.start_soon(readiness.run)
                caps = Caps()
                caps.limit(nursery, upload_bits_per_s=upload_bits_per_s, download_bits_per_s=download_bits_per_s)
                host = Host(identity, security_table(identity, security), caps, readiness, nursery)
                if relay_bits_per_s is not None:
                    host.reaching.allow_bulk(start_pacer(relay_bits_per_s, nursery))
                host.listen(listeners, announced)
                host.reaching.map_ports(map_ports, tell_port)
                try:
                    yield host
                finally:
                    with trio.CancelScope(shield=True):
                        await host.aclose()
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise


async def _bind(addresses: Sequence[Address]) -> list[trio.SocketListener]:
    listeners: list[trio.SocketListener] = []
    with ExitStack() as opened:
        for address in addresses:
            try:
                bound = await listen_on(address.host, address.port)
            except OSError as error:
                raise ListenFailed(f"cannot listen on {address}: {error.strerror or error}") from error
            listeners += bound
            for listener in bound:
                opened.enter_context(listener.socket)
        opened.pop_all()
    return listeners


def _parse_own(text: str) -> Address:
    try:
        return parse_address(text)
    except BadAddress as error:
        raise ListenFailed(str(error)) from error
