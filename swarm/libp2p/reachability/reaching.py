"""Coordinate how this node is reached, and reaches others, across routers: decide which part acts when.

    connected --identify--> `own_reach` learns where we are seen --reserve--> the peer may be our relay
    a circuit from a peer --> `meetings`
    slept, or moved --> all connections are doubted, and all results are checked again

Invariants:

- All of it runs beside the existing connections, and no failure here ends any of them.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

import trio

from protocol.core.ids import PeerId
from protocol.reach import MAX_MEETINGS, MAX_REACH_ADDRESSES, MAX_RELAYS_TOLD, Meeting, Reach, Way
from swarm.libp2p.connection import Connection
from swarm.libp2p.identify import IDENTIFY_PROTOCOL, PING_PROTOCOL
from swarm.libp2p.multistream import GREETING, encode_message
from swarm.libp2p.port_mapping.port_mapper import PortMapped, PortMapper, PortMappingFailed
from swarm.libp2p.reachability.autonat.server import DIAL_BACK, DIAL_REQUEST, DialBacks
from swarm.libp2p.reachability.circuits import NoCircuit
from swarm.libp2p.reachability.dial_policy import is_loopback, is_public, may_dial
from swarm.libp2p.reachability.hole_punch import DCUTR
from swarm.libp2p.reachability.hosting import Hosting
from swarm.libp2p.reachability.inquiries import check_alive, identify
from swarm.libp2p.reachability.meetings import Meetings
from swarm.libp2p.reachability.network_watch import LOOK_S, Change, NetworkWatch, own_hosts, own_interfaces
from swarm.libp2p.reachability.own_addresses import Source
from swarm.libp2p.reachability.own_reach import OwnReach
from swarm.libp2p.reachability.relaying.relay import HOP, STOP, Relay
from swarm.libp2p.reachability.relaying.relay_budget import RelayBudget
from swarm.libp2p.security import HandshakeFailed
from swarm.libp2p.sockets.addresses import (
    Address,
    BadAddress,
    from_socket,
    is_circuit,
    parse_address,
    parse_circuit,
)
from swarm.libp2p.sockets.port_reuse import Leaves
from swarm.libp2p.sockets.rate_limiter import Pacer
from swarm.libp2p.sockets.tcp import TcpConnection
from swarm.transport.interface import DIAL_TIMEOUT_S

MAX_RELAYS = 2
"""Relays that we ask to be reached through: the learner, and one more in case it is away."""

ASK_AGAIN_S, ASK_SELDOM_S = 0.5, 60.0
"""Seconds before a relay that refused us is asked again, at first and at most. A learner does not treat us as a member
before we have joined."""

FAMILIES = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6}

SEEN_FIRST_S, SEEN_SELDOM_S, SEEN_AGAIN_S = 2.0, 15.0, 120.0
"""Seconds before we connect to a peer once more from our listening port, if the first connection could not leave from
there. The pause begins with the first value and doubles up to the second, since a port is free after a minute at most.
The third applies once the peer has seen us: routers keep a mapping without a connection for four minutes (RFC 5382)."""

PROPOSES_S = 0.3
"""Seconds for a client's first bytes. A dialler sends as soon as it is connected, so they take at most a round trip."""

PROTOCOLS = frozenset({IDENTIFY_PROTOCOL, PING_PROTOCOL, HOP, STOP, DCUTR, DIAL_REQUEST, DIAL_BACK})
"""The protocols by which nodes find out how they are reached, and meet."""

TellPort = Callable[[PortMapped | PortMappingFailed], None]
"""Called with the result of asking a router for a port."""

log = logging.getLogger(__name__)


class MapPorts(Enum):
    """When to ask a router for a port."""

    NEVER = "never"
    ONCE_OUT = "once_out"
    """As soon as there is a connection to the internet."""
    AT_ONCE = "at_once"


class Reaching:
    """Run all parts of this package for one host. Nothing happens before `start`."""

    def __init__(self, host: Hosting) -> None:
        self.relay = Relay(host=host)
        self.own_reach = OwnReach(host)
        self.meetings = Meetings(host, seen_at=self.own_reach.seen_at)
        self.circuits = self.meetings.circuits
        self.dial_backs = DialBacks(host=host, may_dial=self._may_dial_back)
        self.wall_clock = time.time
        self._host = host
        self._watch = NetworkWatch(interfaces=own_interfaces(), monotonic_s=time.monotonic(), wall_s=self.wall_clock())
        self._mapper: PortMapper | None = None
        self._is_mapping = False

    def start(self, nursery: trio.Nursery) -> None:
        """Serve others, and run the background tasks in `nursery`."""
        self._nursery = nursery
        self._host.handle(HOP, self.relay.serve)
        self._host.handle(STOP, self.circuits.serve)
        self._host.handle(DCUTR, self.meetings.puncher.serve)
        self._host.handle(DIAL_REQUEST, self.dial_backs.serve)
        self._host.handle(DIAL_BACK, self.own_reach.questions.serve)
        self.meetings.start(nursery)
        nursery.start_soon(self.own_reach.find_out)
        nursery.start_soon(self._look_around)

    def allow_bulk(self, pacer: Pacer | None) -> None:
        """Let circuits through us be used as connections; `pacer` caps the rate of all of them together."""
        limits = replace(self.relay.budget.limits, allows_bulk=True)
        self.relay.budget = RelayBudget(limits=limits)
        self.relay.pacer = pacer

    def map_ports(self, when: MapPorts, tell: TellPort) -> None:
        """Ask the home router to forward the ports on which we listen."""
        if when is MapPorts.NEVER or not self._host.listeners:
            return
        self._mapper = PortMapper(
            listening=[from_socket(one.socket.getsockname()) for one in self._host.listeners],
            on_change=lambda mapped: self.own_reach.offer(Source.MAPPED, [one.address for one in mapped]),
            on_event=tell,
        )
        if when is MapPorts.AT_ONCE:
            self._start_mapping()

    def _start_mapping(self) -> None:
        if self._mapper is not None and not self._is_mapping:
            self._is_mapping = True
            self._nursery.start_soon(self._mapper.run)

    def note_listening(self, announced: Sequence[Address]) -> None:
        """Note that the host listens from now on; `announced` are the addresses that the owner configured."""
        source = Source.ANNOUNCED if announced else Source.INTERFACE
        own = announced or [parse_address(text) for text in self._host.addresses()]
        self.own_reach.offer(source, own)

    def reach(self) -> Reach:
        """Return how others reach us, the reason for that verdict, and which peers we have met."""
        kind, why = self.own_reach.verdict()
        met: dict[PeerId, Way] = {}
        for connection in self._host.connections():
            if not connection.route.is_limited:
                met.setdefault(connection.peer, connection.route.way)
        return Reach(
            kind=kind,
            why=why,
            addresses=[str(one) for one in self.own_reach.addresses()][:MAX_REACH_ADDRESSES],
            relays=[str(relay) for relay in self.circuits.relays()][:MAX_RELAYS_TOLD],
            met=[Meeting(str(peer), way) for peer, way in sorted(met.items())][:MAX_MEETINGS],
        )

    def may_dial(self, text: str) -> bool:
        """Return whether an address that the learner named may be dialled from here.

        An address of this machine may be dialled only if the learner is on this machine as well.
        """
        try:
            address = parse_circuit(text).relay if is_circuit(text) else parse_address(text)
        except BadAddress:
            return False
        return self.may_dial_named(address)

    def may_dial_named(self, address: Address) -> bool:
        """Do the same for a parsed address. Names are allowed here; their addresses are checked when dialled."""
        if is_loopback(address):
            return any(
                one.dialled and one.route.relay is None and is_loopback(parse_address(one.route.address))
                for one in self._host.connections()
            )
        return not address.kind.startswith("ip") or may_dial(address, self._watch.networks)

    async def wanted_at(self, raw: TcpConnection) -> PeerId | None:
        """Return the peer whose client we are on this connection, though it connected to us: both ends knock."""
        if (wanted := self.meetings.puncher.wanted_at(raw.remote.host, raw.remote.port)) is not None:
            return wanted
        perhaps = self.meetings.puncher.perhaps_wanted_at(raw.remote.host)
        if perhaps is None:
            return None
        # Another peer behind the same router may dial us just now. A peer that wants to be the client proposes at once.
        with trio.move_on_after(PROPOSES_S):
            await raw.wait_first()
        return perhaps if raw.arrived in (b"", encode_message(GREETING)) else None

    def note_connected(self, connection: Connection) -> None:
        """Note a new connection, which is no limited circuit."""
        if connection.route.relay is None:
            self._nursery.start_soon(self._get_to_know, connection)
            if connection.dialled and is_public(parse_address(connection.route.address)):
                self._start_mapping()  # a node that talks only to its own network needs no port of the router
        self.meetings.note_connected(connection)

    def note_gone(self, connection: Connection) -> None:
        """Note that a connection has ended."""
        self.own_reach.note_gone(connection)
        if self._host.open_connection(connection.peer) is None:
            self.circuits.forget(connection.peer)
            self.relay.forget(connection.peer)

    async def _get_to_know(self, connection: Connection) -> None:
        """Ask a peer where it sees us, and to be our relay."""
        told = await identify(self._host, connection)
        if told is None:
            return
        connection.agent = told.agent
        if told.observed is not None and connection.muxer.is_open:
            self.own_reach.note_sight(connection, told.observed)
        if DIAL_REQUEST in told.protocols and connection.muxer.is_open:
            self.own_reach.note_helper(connection)
        if HOP in told.protocols and connection.dialled:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_seen, connection)
                await self._keep_reserved(connection)
                nursery.cancel_scope.cancel()

    async def _look_around(self) -> None:
        """Notice sleep and network changes, until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            change = self._watch.look(own_interfaces(), time.monotonic(), self.wall_clock())
            if change is Change.NOTHING:
                continue
            log.info("this machine %s", change.value)
            hosts = own_hosts()
            for connection in self._host.connections():
                if connection.route.local_host in hosts or not _is_of_an_interface(connection.route.local_host):
                    self._nursery.start_soon(check_alive, self._host, connection, "this machine slept, or moved")
                else:
                    connection.muxer.break_off("this machine no longer has the address that it left from")
            self._host.relist()
            if self._mapper is not None:
                self._mapper.look_again()
            self.own_reach.look_again()

    async def _keep_reserved(self, connection: Connection) -> None:
        """Be reachable through this peer for as long as it is connected."""
        pause_s = ASK_AGAIN_S
        while connection.muxer.is_open:
            again_s = ASK_SELDOM_S
            if connection.peer in (relays := self.circuits.relays()) or len(relays) < MAX_RELAYS:
                try:
                    again_s = await self.circuits.reserve(connection.peer) / 2
                except NoCircuit as refused:  # it may not treat us as a member yet
                    log.debug("no reservation: %s", refused)
                    again_s, pause_s = pause_s, min(2 * pause_s, ASK_SELDOM_S)
            with trio.move_on_after(again_s):
                await connection.gone.wait()

    async def _keep_seen(self, connection: Connection) -> None:
        """Have a relay say where it sees our listening port, if the connection to it left from another port.

        That happens when a connection between the same ports had just ended, or has ended without the peer's knowing:
        after a restart of a node or a router, or a machine's sleep. Without this, nobody could knock here as long as
        the connection lasts.
        """
        address, pause_s = parse_address(connection.route.address), SEEN_FIRST_S
        is_listening = any(one.socket.family == FAMILIES.get(address.kind) for one in self._host.listeners)
        if connection.route.from_listening or not is_listening or not is_public(address):
            return
        while connection.muxer.is_open:
            with trio.move_on_after(pause_s):
                await connection.gone.wait()
                return
            if (seen := await self._seen_from_listening(connection.peer, address)) is not None:
                self.own_reach.note_listening_seen(connection, seen)
            pause_s = SEEN_AGAIN_S if seen is not None else min(2 * pause_s, SEEN_SELDOM_S)

    async def _seen_from_listening(self, peer: PeerId, address: Address) -> Address | None:
        """Return where a peer sees the port on which we listen; None while no connection can leave from it."""
        try:
            with trio.fail_after(DIAL_TIMEOUT_S):
                apart = await self._host.connect_apart(peer, address, Leaves.WHERE_WE_LISTEN)
        except (OSError, HandshakeFailed, trio.TooSlowError):
            return None
        told = await identify(self._host, apart)
        await apart.aclose()
        return told.observed if told is not None and told.observed is not None and is_public(told.observed) else None

    def _may_dial_back(self, address: Address) -> bool:
        """Return whether we can tell if a node is at this address: without IPv6 of our own, not for IPv6 addresses."""
        version = ipaddress.ip_address(address.host).version
        return is_public(address) and (
            version == 4 or any(one.is_global for one in self._watch.networks if one.version == 6)
        )


def _is_of_an_interface(host: str) -> bool:
    """Return whether our address on a connection is an interface's.

    It is none over a circuit, nor within this machine, whose interface has only one of the loopback addresses.
    """
    return host != "" and not ipaddress.ip_address(host).is_loopback
