"""Run a member that meets others through routers, and obeys commands: `python -m tests.faults.member ASSIGNMENT`.

It is put together as `volery` does it, without engine, work and chunks: the libp2p transport, and a node's own meeting
of neighbours. The stage introduces the members, as a learner would. The hostile commands are at the end of
`obey`: they use the real transport, and only messages that a member could send.

    it hears      trust (names)              take these for members
                  join (addresses)           keep a connection to the learner, as `volery join` does
                  introduce (peers)          these are your neighbours, at these addresses
                  dial (addresses, wait)     once, at a moment of the monotonic clock
                  sleep (seconds)            the wall's clock is ahead by so much from now on
                  status                     say what there is
    it says       ready, connected, gone, trouble, dialled, status, and what came of each hostile deed
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import trio
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.relay.circuit_v2.pb import circuit_pb2 as pb

from benchmarks.network.founding import key_of
from node.network.introductions import Neighbours
from node.runtime.events import EventLog
from protocol.core.errors import PeerError
from protocol.core.ids import PeerId
from protocol.versions.exchange import PeerAddresses
from protocol.work import Introduction
from swarm.libp2p import open_libp2p
from swarm.libp2p.host import Host
from swarm.libp2p.identify import IDENTIFY_PROTOCOL, PING_PROTOCOL
from swarm.libp2p.reachability.autonat import autonat_pb2
from swarm.libp2p.reachability.autonat.client import DATA_BYTES
from swarm.libp2p.reachability.autonat.server import DIAL_REQUEST
from swarm.libp2p.reachability.circuits import NoCircuit
from swarm.libp2p.reachability.multiaddrs import to_bytes
from swarm.libp2p.reachability.relaying.relay import HOP
from swarm.libp2p.reachability.wire import framed, receive
from swarm.libp2p.sockets.addresses import parse_address
from swarm.transport.interface import DialFailed, PeerConnected, PeerDisconnected, Stream, TransportError
from tests.faults.node import read_commands, say

REDIAL_S = 0.5
"""Seconds until the learner is dialled again: at first a node does that after half a second as well."""

AT_ONCE = 100
"""Requests of a flood that are under way at once."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A member's identity, and the names that it may meet."""

    name: str
    names: list[str]
    listen: list[str]


class Member:
    """One member, from the first command to the last."""

    def __init__(self, task: Assignment, host: Host) -> None:
        self.host = host
        self.names = {key_of(name).peer_id: name for name in task.names}
        events = EventLog()
        events.listen(self._note)
        self.neighbours = Neighbours(transport=host, events=events)
        self.asleep_s = 0.0
        self.told: list[str] = []
        host.reaching.wall_clock = lambda: time.time() + self.asleep_s

    async def run(self, commands: AsyncIterator[dict[str, Any]]) -> None:
        """Run until the commands end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._note_connections)
            nursery.start_soon(self.neighbours.run)
            say("ready", addresses=self.host.addresses(), pid=os.getpid())
            async for command in commands:
                await self.obey(command, nursery)
            nursery.cancel_scope.cancel()

    async def obey(self, command: dict[str, Any], nursery: trio.Nursery) -> None:
        """Do what one command asks."""
        match command:
            case {"do": "trust", "names": names}:
                for name in names:
                    self.host.trust(key_of(name).peer_id)
            case {"do": "join", "addresses": addresses}:
                nursery.start_soon(self._stay, addresses)
            case {"do": "introduce", "peers": peers}:
                told = [PeerAddresses(peer=PeerId(peer), addresses=addresses) for peer, addresses in peers.items()]
                self.neighbours.hear(Introduction(peers=told))
            case {"do": "dial", "addresses": addresses, "wait": at}:
                nursery.start_soon(self._dial, addresses, at)
            case {"do": "sleep", "seconds": seconds}:
                self.asleep_s += seconds
            case {"do": "status"}:
                say("status", **self.status())
            case _:
                nursery.start_soon(self._misbehave, command)

    def status(self) -> dict[str, object]:
        """Return the member's state. `met` has for each peer the number of connections, and how the first was made."""
        connections = {
            self.names.get(peer, peer): [
                {"way": one.route.way.value, "address": one.route.address, "relay": one.route.relay is not None}
                for one in self.host.connections_to(peer)
            ]
            for peer in self.host.connected_peers()
        }
        reach = self.host.reached()
        return {
            "met": connections,
            "reach": {"kind": reach.kind.value, "addresses": reach.addresses, "relays": reach.relays},
            "addresses": self.told or self.host.addresses(),
            "origins": self.host.origins(),
            "seen_at": [str(one) for one in self.host.reaching.own_reach.seen_at()],
            "circuits": self.host.reaching.relay.budget.num_circuits,
            "relayed": self.host.reaching.relay.relayed_bytes,
            "resident": int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            * os.sysconf("SC_PAGE_SIZE"),
            "tasks": trio.lowlevel.current_statistics().tasks_living,
        }

    # The life of a node.

    async def _stay(self, addresses: list[str]) -> None:
        learner = PeerId(addresses[0].rpartition("/")[2])
        while True:
            if learner not in self.host.connected_peers():
                with suppress(DialFailed):
                    await self.host.dial(addresses)
            await trio.sleep(REDIAL_S)

    async def _dial(self, addresses: list[str], at: float) -> None:
        await trio.sleep(max(0.0, at - time.monotonic()))
        try:
            await self.host.dial(addresses)
        except DialFailed as error:
            say("dialled", why=str(error))
        else:
            say("dialled", why="")

    async def _note_connections(self) -> None:
        async for event in self.host.events():
            match event:
                case PeerConnected(peer=peer):
                    say("connected", peer=self.names.get(peer, peer))
                case PeerDisconnected(peer=peer):
                    say("gone", peer=self.names.get(peer, peer))

    def _note(self, name: str, fields: Mapping[str, Any]) -> None:
        peer = fields.get("peer", "")
        say("trouble", **{**fields, "what": name, "peer": self.names.get(peer, peer)})

    # Hostile commands, which no honest member has.

    async def _misbehave(self, command: dict[str, Any]) -> None:
        match command:
            case {"do": "lie", "addresses": addresses}:
                self._lie(addresses)
            case {"do": "misreport", "observed": observed}:
                self._misreport(observed)
            case {"do": "reserve", "relay": relay, "times": times}:
                await self._reserve(key_of(relay).peer_id, times)
            case {"do": "bulk", "relay": relay, "peer": peer}:
                await self._send_bulk(key_of(relay).peer_id, key_of(peer).peer_id)
            case {"do": "circuit", "relay": relay, "peer": peer}:
                await self._reach(key_of(relay).peer_id, key_of(peer).peer_id)
            case {"do": "ask_dial_back", "peer": peer, "address": address, "pays": pays}:
                await self._ask_dial_back(key_of(peer).peer_id, address, pays)
            case _:
                raise ValueError(f"nobody knows how to {command}")

    def _lie(self, addresses: list[str]) -> None:
        """Claim other addresses: to the learner, in identify and before hole punching."""
        self.told = [f"{one}/p2p/{self.host.peer_id}" for one in addresses]
        self.host.reaching.own_reach.seen_at = lambda: [parse_address(one) for one in addresses]  # type: ignore[method-assign]
        self.host.reaching.meetings.puncher.seen_at = self.host.reaching.own_reach.seen_at
        self._introduce_as(addresses, "")
        say("lied")

    def _misreport(self, observed: str) -> None:
        """Claim to see every peer at one address."""
        self._introduce_as(self.host.addresses(), observed)
        say("misreported")

    def _introduce_as(self, addresses: list[str], observed: str) -> None:
        async def introduce(stream: Stream) -> None:
            await stream.send_all(
                framed(
                    Identify(
                        public_key=self.host.identity.key_pair.public_key.serialize(),
                        listen_addrs=[to_bytes(one.partition("/p2p/")[0]) for one in addresses],
                        protocols=list(self.host.handlers),
                        observed_addr=to_bytes(observed) if observed else None,
                    )
                )
            )

        self.host.handle(IDENTIFY_PROTOCOL, introduce)

    async def _reserve(self, relay: PeerId, times: int) -> None:
        """Ask for so many reservations; report how many were granted, refused, and not even answered."""
        answers: Counter[str] = Counter()
        limit = trio.CapacityLimiter(AT_ONCE)

        async def one() -> None:
            async with limit:
                connection = self.host.open_connection(relay)
                try:
                    if connection is None:
                        raise NoCircuit("there is no connection")
                    stream = await self.host.open_stream_on(
                        connection, HOP, framed(pb.HopMessage(type=pb.HopMessage.RESERVE))
                    )
                    answer = await receive(stream, pb.HopMessage)
                    answers["granted" if answer.status == pb.OK else "refused"] += 1
                    await stream.aclose()
                except (TransportError, PeerError, NoCircuit):
                    answers["unanswered"] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(times):
                nursery.start_soon(one)
        say("reserved", **{key: answers[key] for key in ("granted", "refused", "unanswered")})

    async def _send_bulk(self, relay: PeerId, peer: PeerId) -> None:
        """Push as much as possible through a circuit, on the one stream that is open to everybody; report how much
        went.
        """
        sent, why = 0, ""
        try:
            circuit = await self.host.reaching.circuits.connect(relay, peer)
            stream = await self.host.open_stream_on(circuit, PING_PROTOCOL)
            while True:
                await stream.send_all(bytes(1024))
                sent += 1024
        except (TransportError, NoCircuit) as error:
            why = str(error)
        say("sent", size=sent, why=why)

    async def _reach(self, relay: PeerId, peer: PeerId) -> None:
        """Make the peer dial us: it asks for our addresses, and dials those that we name."""
        try:
            circuit = await self.host.reaching.circuits.connect(relay, peer)
        except NoCircuit as error:
            say("circuit_over", why=str(error))
        else:
            await circuit.gone.wait()
            say("circuit_over", why="")

    async def _ask_dial_back(self, peer: PeerId, address: str, pays: bool) -> None:
        """Have the peer dial an address; report what it asked in return, and what it answers."""
        connection = self.host.open_connection(peer)
        assert connection is not None
        request = autonat_pb2.DialRequest(addrs=[to_bytes(address)], nonce=7)
        wanted, status = 0, ""
        try:
            stream = await self.host.open_stream_on(
                connection, DIAL_REQUEST, framed(autonat_pb2.Message(dialRequest=request))
            )
            answer = await receive(stream, autonat_pb2.Message)
            if answer.WhichOneof("msg") == "dialDataRequest":
                wanted = answer.dialDataRequest.numBytes
                data = framed(
                    autonat_pb2.Message(dialDataResponse=autonat_pb2.DialDataResponse(data=bytes(DATA_BYTES)))
                )
                for _ in range(-(-wanted // DATA_BYTES) if pays else 1):
                    await stream.send_all(data)
                answer = await receive(stream, autonat_pb2.Message)
            status = autonat_pb2.DialResponse.ResponseStatus.Name(answer.dialResponse.status)
        except (TransportError, PeerError) as error:
            status = str(error)
        say("dialled_back", wanted=wanted, status=status)


async def play(task: Assignment) -> None:
    async with open_libp2p(key_of(task.name).seed, task.listen) as transport:
        await Member(task, cast(Host, transport)).run(read_commands())


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s")
    for name in ("host", "reachability.reaching"):
        logging.getLogger(f"swarm.libp2p.{name}").setLevel(logging.DEBUG)
    trio.run(play, msgspec.json.decode(sys.argv[1], type=Assignment))
