"""How this node is reached, and reaches others, where a router stands between: what is tried, and in which order.

    connected --identify--> the peer says where it sees us --reserve--> it may be our relay
    an address of ours that is untried --AutoNAT--> a peer dials it --> reachable, or not
    a circuit from a peer --DCUtR--> a direct connection

Invariants:
- All of it goes on beside the connections that there are, and nothing that fails here ends any.
- A circuit that has served its purpose is closed.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from random import Random

import trio

from protocol.core.errors import PeerError
from protocol.core.ids import PeerId
from protocol.reach import MAX_MEETINGS, MAX_REACH_ADDRESSES, MAX_RELAYS_TOLD, Meeting, Reach, ReachKind, Way
from swarm.libp2p.connection import Connection
from swarm.libp2p.identify import IDENTIFY_PROTOCOL, PING_BYTES, PING_PROTOCOL, Introduced, read_introduction
from swarm.libp2p.multistream import GREETING, encode_message
from swarm.libp2p.port_mapping.port_mapper import PortMapped, PortMapper, PortMappingFailed
from swarm.libp2p.racing import race
from swarm.libp2p.reachability.autonat.client import ReachabilityQuestions, Word
from swarm.libp2p.reachability.autonat.server import DIAL_BACK, DIAL_REQUEST, DialBacks
from swarm.libp2p.reachability.circuits import Circuits, NoCircuit, RelayBusy
from swarm.libp2p.reachability.dial_policy import is_loopback, is_public, may_dial
from swarm.libp2p.reachability.hole_punch import DCUTR, HolePuncher, Punched
from swarm.libp2p.reachability.hosting import Hosting
from swarm.libp2p.reachability.network_watch import LOOK_S, Change, NetworkWatch, own_hosts, own_interfaces
from swarm.libp2p.reachability.observed_addresses import ObservedAddresses
from swarm.libp2p.reachability.own_addresses import OwnAddresses, Source, Standing
from swarm.libp2p.reachability.relay import HOP, STOP, Relay
from swarm.libp2p.reachability.relay_budget import RelayBudget
from swarm.libp2p.security import HandshakeFailed
from swarm.libp2p.sockets.addresses import (
    Address,
    BadAddress,
    CircuitAddress,
    from_socket,
    is_circuit,
    parse_address,
    parse_circuit,
)
from swarm.libp2p.sockets.port_reuse import Leaves
from swarm.libp2p.sockets.rate_limiter import Pacer
from swarm.libp2p.sockets.tcp import TcpConnection
from swarm.transport.event_rate import Buckets, Rate
from swarm.transport.interface import DIAL_TIMEOUT_S, DialFailed, TransportError
from swarm.transport.reach_evidence import ReachEvidence, Sight, TriedAddress

MAX_RELAYS = 2
"""Relays that we ask to be reached through: the learner, and one more in case it is away."""

ASK_AGAIN_S, ASK_SELDOM_S = 0.5, 60.0
"""Pauses before a relay that refused us is asked again: a learner does not take us for a member before we have joined.
"""

MAX_PUNCHED = 256
"""Peers of whom it is remembered what came of punching: more than a node has neighbours."""

FAMILIES = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6}

IDENTIFY_S = 10.0

PUNCHES = Rate(per_s=1 / 30, burst=4.0)
"""Circuits of one peer over which we knock where it says. An honest one comes again once a network has changed."""

UPGRADE_S = 40.0
"""From a circuit to a direct connection, at most: three tries, and what they take to agree on."""

DOUBT_S = 5.0
"""For a peer to answer after we slept, or moved, or after it came to us another way, as one does that has lost the
connection; else it is taken for dead. A line that is full takes one."""

PRUNE_S = 3.0
"""Before all connections to a peer but one are closed: one that was made to dial us back is gone by then."""

SEEN_FIRST_S, SEEN_SELDOM_S, SEEN_AGAIN_S = 2.0, 15.0, 120.0
"""Before we connect to a peer once more from the port on which we listen, where the first connection could not leave
from there: soon, then after twice as long each time up to the second, since a port is free after a minute at most. And
once it was seen: routers keep a mapping without a connection four minutes (RFC 5382)."""

PROPOSES_S = 0.3
"""For a client's first words. A dialler speaks as soon as it is connected, so they are a round trip behind at most."""

BUSY_PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""Before a relay is asked again that had its hands full, each as it is or up to twice as long, at random. After a
learner's restart members want hundreds of circuits at once, of which a relay carries 128, each for three seconds."""

LINGER_S = 1.0
"""From a direct connection to the end of the circuit, so that whoever is slower knows of it as well."""

PROTOCOLS = frozenset({IDENTIFY_PROTOCOL, PING_PROTOCOL, HOP, STOP, DCUTR, DIAL_REQUEST, DIAL_BACK})
"""What nodes say to each other to find out how they are reached, and to meet."""

DIALLED, DIALLED_BY_KNOWN = "others dialled it", "others dialled it, to whom it had spoken before"
"""A router that lets in whom one has spoken to is not told apart from one that lets in everybody. So who is introduced
is told of circuits as well."""

SHOWS_ALL_THE_SAME = "its router shows everybody the same port, and lets nobody in uncalled"
SEEN_BY_ONE = "its router lets nobody in uncalled, and one peer alone has said which port it shows"

TellPort = Callable[[PortMapped | PortMappingFailed], None]
"""Told what came of asking a router for a port."""

log = logging.getLogger(__name__)


class MapPorts(Enum):
    """When a router is asked for a port."""

    NEVER = "never"
    ONCE_OUT = "once_out"
    """As soon as there is a connection out into the internet."""
    AT_ONCE = "at_once"


class Reaching:
    """See the module's paragraph. Nothing happens before `start`."""

    def __init__(self, host: Hosting) -> None:
        self.observed = ObservedAddresses()
        self.relay = Relay(host=host)
        self.circuits = Circuits(host=host, on_inbound=self._upgrade)
        self.puncher = HolePuncher(host=host, seen_at=self.seen_at)
        self.own = OwnAddresses()
        self.questions = ReachabilityQuestions(host=host)
        self.dial_backs = DialBacks(host=host, may_dial=self._may_dial_back)
        self.punched: dict[PeerId, Punched] = {}
        """What came of the last hole that was to be punched to each peer that reached us through a relay."""
        self._host = host
        self.wall_clock = time.time
        self._watch = NetworkWatch(interfaces=own_interfaces(), monotonic_s=time.monotonic(), wall_s=self.wall_clock())
        self._servers: dict[int, Connection] = {}
        """Who dials back for us, by connection."""
        self._sights: dict[int, Address] = {}
        """Where each connection's peer sees us, whatever that is worth."""
        self._asked_in_vain: dict[int, float] = {}
        """When such a connection's peer last dialled nothing."""
        self._news = trio.Event()
        self._mapper: PortMapper | None = None
        self._is_mapping = False
        self._rng = Random()
        self._punches: Buckets[PeerId] = Buckets(rate=PUNCHES)

    def start(self, nursery: trio.Nursery) -> None:
        """Serve others, and do what is to be done beside the connections in `nursery`."""
        self._nursery = nursery
        self._host.handle(HOP, self.relay.serve)
        self._host.handle(STOP, self.circuits.serve)
        self._host.handle(DCUTR, self.puncher.serve)
        self._host.handle(DIAL_REQUEST, self.dial_backs.serve)
        self._host.handle(DIAL_BACK, self.questions.serve)
        nursery.start_soon(self._find_out)
        nursery.start_soon(self._look_around)

    def allow_bulk(self, pacer: Pacer | None) -> None:
        """Let circuits through us be used as connections, all together no faster than `pacer` has it."""
        limits = replace(self.relay.budget.limits, allows_bulk=True)
        self.relay.budget = RelayBudget(limits=limits)
        self.relay.pacer = pacer

    def map_ports(self, when: MapPorts, tell: TellPort) -> None:
        """Have the home router pass the ports on which we listen on to us."""
        if when is MapPorts.NEVER or not self._host.listeners:
            return
        self._mapper = PortMapper(
            listening=[from_socket(one.socket.getsockname()) for one in self._host.listeners],
            on_change=lambda mapped: self._offer(Source.MAPPED, [one.address for one in mapped]),
            on_event=tell,
        )
        if when is MapPorts.AT_ONCE:
            self._start_mapping()

    def _start_mapping(self) -> None:
        if self._mapper is not None and not self._is_mapping:
            self._is_mapping = True
            self._nursery.start_soon(self._mapper.run)

    def note_listening(self, announced: Sequence[Address]) -> None:
        """The host listens from now on; `announced` is what the owner says of where."""
        source = Source.ANNOUNCED if announced else Source.INTERFACE
        own = announced or [parse_address(text) for text in self._host.addresses()]
        self._offer(source, own)

    def told(self) -> Reach:
        """How others reach us, why that is believed, and whom we have met."""
        kind, why = self._verdict()
        met: dict[PeerId, Way] = {}
        for connection in self._host.connections():
            if not connection.route.is_limited:
                met.setdefault(connection.peer, connection.route.way)
        return Reach(
            kind=kind,
            why=why,
            addresses=[str(one.address) for one in self.own.reachable()][:MAX_REACH_ADDRESSES],
            relays=[str(relay) for relay in self.circuits.relays()][:MAX_RELAYS_TOLD],
            met=[Meeting(str(peer), way) for peer, way in sorted(met.items())][:MAX_MEETINGS],
        )

    def evidence(self) -> ReachEvidence:
        """What the verdict is made of."""
        sights = [
            Sight(
                peer=one.peer,
                origin=one.route.origin,
                address=str(self._sights[one.number]),
                local=_tcp(one.route.local_host, one.route.local_port),
                from_listening=one.route.from_listening,
            )
            for one in self._host.connections()
            if one.number in self._sights
        ]
        tried = [
            TriedAddress(
                address=str(own.address),
                sources=frozenset(source.value for source in own.sources),
                is_reached=own.standing is Standing.REACHABLE,
                failed_by=frozenset(own.failed_by),
            )
            for own in self.own.all()
        ]
        return ReachEvidence(sights=tuple(sights), addresses=tuple(tried), num_helpers=len(self._servers))

    def _verdict(self) -> tuple[ReachKind, str]:
        reachable = self.own.reachable()
        if any(one.sources - {Source.MAPPED} for one in reachable):
            seen = all(one.sources <= {Source.MAPPED, Source.OBSERVED} for one in reachable)
            return ReachKind.DIRECTLY, DIALLED_BY_KNOWN if seen else DIALLED
        if reachable:
            return ReachKind.MAPPED, "its router passes a port on"
        if not self._host.listeners:
            return ReachKind.NOT, "it listens nowhere"
        if self.observed.is_mapped_anew():
            return ReachKind.NOT, "its router shows everybody another port"
        if self.observed.candidates():
            return ReachKind.BY_PUNCHING, SHOWS_ALL_THE_SAME if self.observed.believed() else SEEN_BY_ONE
        return ReachKind.UNKNOWN, "nobody has said where it is seen"

    def may_dial(self, text: str) -> bool:
        """Whether an address that the learner named may be dialled from here: of this machine, only where the learner
        is on it as well.
        """
        try:
            address = parse_circuit(text).relay if is_circuit(text) else parse_address(text)
        except BadAddress:
            return False
        return self.may_dial_named(address)

    def may_dial_named(self, address: Address) -> bool:
        """The same of an address. A name is resolved first, and what it leads to is looked at."""
        if is_loopback(address):
            return any(
                one.dialled and one.route.relay is None and is_loopback(parse_address(one.route.address))
                for one in self._host.connections()
            )
        return not address.kind.startswith("ip") or may_dial(address, self._watch.networks)

    def seen_at(self) -> list[Address]:
        """Where others may knock: as they see us, and our own public addresses."""
        own = [parse_address(text) for text in self._host.addresses()]
        found = [*(one for one in own if is_public(one)), *self.observed.candidates()]
        return list(dict.fromkeys(replace(one, peer=None) for one in found))

    async def wanted_at(self, raw: TcpConnection) -> PeerId | None:
        """The peer whose client we are on this connection, though it connected to us: we knock at each other."""
        if (wanted := self.puncher.wanted_at(raw.remote.host, raw.remote.port)) is not None:
            return wanted
        perhaps = self.puncher.perhaps_wanted_at(raw.remote.host)
        if perhaps is None:
            return None
        # Another one behind the same router may dial us just now. Who wants to be the client proposes at once.
        with trio.move_on_after(PROPOSES_S):
            await raw.wait_first()
        return perhaps if raw.arrived in (b"", encode_message(GREETING)) else None

    def note_connected(self, connection: Connection) -> None:
        """There is a connection, which is no circuit that is limited."""
        if connection.route.relay is None:
            self._nursery.start_soon(self._get_to_know, connection)
            if connection.dialled and is_public(parse_address(connection.route.address)):
                self._start_mapping()  # who talks to its own network alone needs no port of the router's
        if len(self._host.connections_to(connection.peer)) > 1:
            self._nursery.start_soon(self._prune, connection)

    def note_gone(self, connection: Connection) -> None:
        """A connection has ended."""
        self.observed.forget(connection.number)
        self._offer(Source.OBSERVED, self.observed.candidates())
        self._servers.pop(connection.number, None)
        self._sights.pop(connection.number, None)
        self._asked_in_vain.pop(connection.number, None)
        if self._host.open_connection(connection.peer) is None:
            self.circuits.forget(connection.peer)
            self.relay.forget(connection.peer)

    async def through(self, addresses: Sequence[CircuitAddress], named_by_others: bool) -> str:
        """Get a direct connection to a peer behind a relay, which is dialled at one of these addresses if it must be,
        and if it may be where others named them; return why there is none, "" if there is one.
        """
        peer, relay = addresses[0].peer, addresses[0].relay.peer
        assert relay is not None
        try:
            if self._host.open_connection(relay) is None:
                await self._host.dial([str(one.relay) for one in addresses], named_by_others=named_by_others)
            circuit = await self._host.unless_met(peer, partial(self._connect_patiently, relay, peer))
        except (DialFailed, NoCircuit) as error:
            return f"{addresses[0]}: {error}"
        if circuit is None or not circuit.route.is_limited:
            return ""  # it came by itself, or whoever was reached looks for a shorter way
        with trio.move_on_after(UPGRADE_S):
            await self._host.unless_met(peer, circuit.gone.wait)
        self._nursery.start_soon(self._leave, circuit)
        if not self._host.is_met(peer):
            return f"{addresses[0]}: no way leads through the routers between us"
        return ""

    async def _connect_patiently(self, relay: PeerId, peer: PeerId) -> Connection:
        """A circuit to `peer`, also from a relay that is busy for a while. Raises NoCircuit."""
        for pause_s in BUSY_PAUSES_S:
            try:
                return await self.circuits.connect(relay, peer)
            except RelayBusy as busy:
                log.debug("asked again in a moment: %s", busy)
            await trio.sleep(self._rng.uniform(pause_s, 2 * pause_s))
        return await self.circuits.connect(relay, peer)

    async def _get_to_know(self, connection: Connection) -> None:
        """Ask a peer where it sees us, and to be our relay."""
        told = await self._identify(connection)
        if told is None:
            return
        connection.agent = told.agent
        if told.observed is not None and connection.muxer.is_open:
            self._sights[connection.number] = told.observed
        if told.observed is not None and connection.route.from_listening and is_public(told.observed):
            self.observed.note(connection.number, connection.route.origin, told.observed)
            self._offer(Source.OBSERVED, self.observed.candidates())
        if DIAL_REQUEST in told.protocols and connection.muxer.is_open:
            self._servers[connection.number] = connection
            self._stir()
        if HOP in told.protocols and connection.dialled:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_seen, connection)
                await self._keep_reserved(connection)
                nursery.cancel_scope.cancel()

    def _offer(self, source: Source, addresses: Iterable[Address]) -> None:
        public = [replace(one, peer=None) for one in addresses if is_public(one)]
        if self.own.offer(source, public, trio.current_time()):
            self._stir()

    def _stir(self) -> None:
        """Wake who waits for something to find out."""
        self._news.set()
        self._news = trio.Event()

    def _askable(self, now: float) -> list[Connection]:
        """Who may be asked to dial back now."""
        return [
            one
            for number, one in self._servers.items()
            if now - self._asked_in_vain.get(number, -math.inf) > ASK_SELDOM_S
        ]

    async def _find_out(self) -> None:
        """Have what is to be tried dialled by others, one address at a time, until cancelled."""
        while True:
            now = trio.current_time()
            due, asked = self.own.due(now), None
            if due:
                doubts = next(one.failed_by for one in self.own.all() if one.address == due[0])
                asked = next((one for one in self._askable(now) if one.route.origin not in doubts), None)
            if asked is None:
                with trio.move_on_at(max(self.own.next_due_s(), now + ASK_AGAIN_S) if not due else now + ASK_SELDOM_S):
                    await self._news.wait()
                continue
            said = await self.questions.ask(asked, due)
            if said.address is None or said.word is Word.NONE:
                self._asked_in_vain[asked.number] = trio.current_time()
                continue
            origins = {one.route.origin for one in self._servers.values()}
            self.own.hear(said.address, said.word, asked.route.origin, len(origins), trio.current_time(), began_s=now)
            await trio.sleep(ASK_AGAIN_S)

    async def _look_around(self) -> None:
        """Notice sleep, and another network, until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            change = self._watch.look(own_interfaces(), time.monotonic(), self.wall_clock())
            if change is Change.NOTHING:
                continue
            log.info("this machine %s", change.value)
            hosts = own_hosts()
            for connection in self._host.connections():
                if connection.route.local_host in hosts or not _is_of_an_interface(connection.route.local_host):
                    self._nursery.start_soon(self._doubt, connection, "this machine slept, or moved")
                else:
                    connection.muxer.break_off("this machine no longer has the address that it left from")
            self._host.relist()
            if self._mapper is not None:
                self._mapper.look_again()
            self.own.forget_verdicts()
            self._stir()

    async def _doubt_all(self, peer: PeerId, but: Connection) -> None:
        """End those connections to a peer on which nobody answers any more: it came to us another way."""
        async with trio.open_nursery() as nursery:
            for connection in self._host.connections_to(peer):
                if connection is not but:
                    nursery.start_soon(self._doubt, connection, "the peer came another way")

    async def _doubt(self, connection: Connection, cause: str) -> None:
        """End a connection that nobody answers on any more."""
        try:
            with trio.fail_after(DOUBT_S):
                ping = await self._host.open_stream_on(connection, PING_PROTOCOL, bytes(PING_BYTES))
                await ping.receive_some(PING_BYTES)
                await ping.aclose()
        except TransportError:
            pass  # the peer takes no ping, so it is there; or the connection is ending by itself
        except trio.TooSlowError:
            connection.muxer.break_off(f"nobody answered within {DOUBT_S:.0f} s after {cause}")

    async def _identify(self, connection: Connection) -> Introduced | None:
        with suppress(TransportError, PeerError, trio.TooSlowError), trio.fail_after(IDENTIFY_S):
            stream = await self._host.open_stream_on(connection, IDENTIFY_PROTOCOL)
            try:
                return await read_introduction(stream)
            finally:
                with trio.CancelScope(shield=True):
                    await stream.aclose()
        return None

    async def _keep_reserved(self, connection: Connection) -> None:
        """Be reachable through this peer for as long as it is connected."""
        pause_s = ASK_AGAIN_S
        while connection.muxer.is_open:
            again_s = ASK_SELDOM_S
            if connection.peer in (relays := self.circuits.relays()) or len(relays) < MAX_RELAYS:
                try:
                    again_s = await self.circuits.reserve(connection.peer) / 2
                except NoCircuit as refused:  # it may not have taken us for a member yet
                    log.debug("no reservation: %s", refused)
                    again_s, pause_s = pause_s, min(2 * pause_s, ASK_SELDOM_S)
            with trio.move_on_after(again_s):
                await connection.gone.wait()

    async def _keep_seen(self, connection: Connection) -> None:
        """Have a relay say where our listening port is seen, where the connection to it left from another one.

        It did because one between the same ports had just ended, or has ended and does not know it: after a node's
        restart, a machine's sleep, a router's. Without it nobody could knock here as long as the connection lasts.
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
                self.observed.note(connection.number, connection.route.origin, seen)
                self._offer(Source.OBSERVED, self.observed.candidates())
            pause_s = SEEN_AGAIN_S if seen is not None else min(2 * pause_s, SEEN_SELDOM_S)

    async def _seen_from_listening(self, peer: PeerId, address: Address) -> Address | None:
        """Where a peer sees the port on which we listen; None while no connection can leave from it."""
        try:
            with trio.fail_after(DIAL_TIMEOUT_S):
                apart = await self._host.connect_apart(peer, address, Leaves.WHERE_WE_LISTEN)
        except (OSError, HandshakeFailed, trio.TooSlowError):
            return None
        told = await self._identify(apart)
        await apart.aclose()
        return told.observed if told is not None and told.observed is not None and is_public(told.observed) else None

    def _upgrade(self, circuit: Connection) -> None:
        self._nursery.start_soon(self._meet, circuit)

    async def _meet(self, circuit: Connection) -> None:
        """Get a direct connection to who reached us through a relay, though we may believe to have one."""
        await self._doubt_all(circuit.peer, but=circuit)
        if not circuit.route.is_limited or self._punches.of(circuit.peer).admit(trio.current_time()):
            with trio.move_on_after(UPGRADE_S):
                await self._host.unless_met(circuit.peer, partial(self._punch, circuit))
        if circuit.route.is_limited or self._host.is_met(circuit.peer):
            await self._leave(circuit)

    async def _punch(self, circuit: Connection) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reverse, circuit)
            punched = await self.puncher.upgrade(circuit)
            self.punched[circuit.peer] = punched
            while len(self.punched) > MAX_PUNCHED:
                self.punched.pop(next(iter(self.punched)))
            log.debug("%d tries to punch a hole to %s: %s", punched.tries, circuit.peer, punched.why or "done")

    async def _reverse(self, circuit: Connection) -> None:
        """Dial who reached us through a relay, where it can be dialled in the internet.

        Not inside: whoever shares our network was told where we are by the learner, and anybody else who names such an
        address means a machine of ours. And from a port of our own: from that on which we listen, it would be taken for
        a knock.
        """
        told = await self._identify(circuit)
        attempts = [
            partial(self._dial_back, circuit.peer, address)
            for address in (told.addresses if told is not None else ())
            if is_public(address)
        ]
        await race(attempts)

    async def _dial_back(self, peer: PeerId, address: Address) -> str:
        try:
            await self._host.connect(peer, address, leaves=Leaves.ANEW, way=Way.REVERSED)
        except (OSError, HandshakeFailed) as error:
            return f"{address}: {error}"
        return ""

    async def _prune(self, newest: Connection) -> None:
        """Leave one connection of several, where two dials have crossed: the smaller id decides which.

        Or the peer connects anew because it slept, or moved, and the older connection is dead without our knowing it.
        """
        peer = newest.peer
        await self._doubt_all(peer, but=newest)
        if self._host.peer_id < peer:
            await trio.sleep(PRUNE_S)
            for one in self._host.connections_to(peer)[1:]:
                await one.aclose()

    async def _leave(self, circuit: Connection) -> None:
        await trio.sleep(LINGER_S)
        await circuit.aclose()

    def _may_dial_back(self, address: Address) -> bool:
        """Whether we can tell if somebody is there: without IPv6 of our own, nobody is anywhere."""
        version = ipaddress.ip_address(address.host).version
        return is_public(address) and (
            version == 4 or any(one.is_global for one in self._watch.networks if one.version == 6)
        )


def _tcp(host: str, port: int) -> str:
    return f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}"


def _is_of_an_interface(host: str) -> bool:
    """Whether an address of ours on a connection is an interface's: not over a circuit, nor within this machine, whose
    interface has one of all those addresses.
    """
    return host != "" and not ipaddress.ip_address(host).is_loopback
