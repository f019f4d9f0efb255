"""Find out how this node is reached: where others see it, and to which of its addresses they could dial.

    connected --identify--> the peer says where it sees us
    an address of ours that is untried --AutoNAT--> a peer dials it --> reachable, or not

Invariants:

- An address that we tell others is public, and was dialled by some peer.
- One address is tried at a time, by a peer of an origin that has not failed to reach it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import trio

from protocol.reach import ReachKind
from swarm.libp2p.connection import Connection
from swarm.libp2p.reachability.autonat.client import ReachabilityQuestions, Word
from swarm.libp2p.reachability.dial_policy import is_public
from swarm.libp2p.reachability.hosting import Hosting
from swarm.libp2p.reachability.observed_addresses import ObservedAddresses
from swarm.libp2p.reachability.own_addresses import OwnAddresses, Source, Standing
from swarm.libp2p.sockets.addresses import Address, parse_address
from swarm.transport.reach_evidence import ReachEvidence, Sight, TriedAddress

PAUSE_S, SELDOM_S = 0.5, 60.0
"""Seconds between two tried addresses, and before a peer that dialled nothing is asked again."""

DIALLED, DIALLED_BY_KNOWN = "others dialled it", "peers that the node had contacted before dialled it"
"""Some routers let in only peers that the node has contacted. We cannot tell them from routers that let in everybody.
So peers that are introduced to such a node also learn of circuits."""

SHOWS_ALL_THE_SAME = "its router shows all peers the same port, and blocks peers that the node has not contacted"
SEEN_BY_ONE = "its router blocks peers that the node has not contacted, and only one peer has said which port it shows"


class OwnReach:
    """Collect what others say about our addresses, and conclude how this node is reached."""

    def __init__(self, host: Hosting) -> None:
        self.observed = ObservedAddresses()
        self.own = OwnAddresses()
        self.questions = ReachabilityQuestions(host=host)
        self._host = host
        self._servers: dict[int, Connection] = {}
        """Connections whose peers dial back for us, by number."""
        self._sights: dict[int, Address] = {}
        """Where each connection's peer sees us, whether that can be trusted or not."""
        self._asked_in_vain: dict[int, float] = {}
        """When the peer of each such connection last dialled nothing."""
        self._news = trio.Event()

    def offer(self, source: Source, addresses: Iterable[Address]) -> None:
        """Replace the addresses that `source` knows by these."""
        public = [replace(one, peer=None) for one in addresses if is_public(one)]
        if self.own.offer(source, public, trio.current_time()):
            self._stir()

    def note_sight(self, connection: Connection, seen: Address) -> None:
        """Note where the peer at the other end says that it sees us."""
        self._sights[connection.number] = seen
        if connection.route.from_listening:
            self.note_listening_seen(connection, seen)

    def note_listening_seen(self, connection: Connection, seen: Address) -> None:
        """Do the same for the port on which we listen."""
        if is_public(seen):
            self.observed.note(connection.number, connection.route.origin, seen)
            self.offer(Source.OBSERVED, self.observed.candidates())

    def note_helper(self, connection: Connection) -> None:
        """Note that the peer at the other end dials back for others."""
        self._servers[connection.number] = connection
        self._stir()

    def note_gone(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self.observed.forget(connection.number)
        self.offer(Source.OBSERVED, self.observed.candidates())
        self._servers.pop(connection.number, None)
        self._sights.pop(connection.number, None)
        self._asked_in_vain.pop(connection.number, None)

    def look_again(self) -> None:
        """Doubt all results, because this machine slept or moved."""
        self.own.forget_verdicts()
        self._stir()

    def addresses(self) -> list[Address]:
        """Return the addresses that a dial has reached."""
        return [one.address for one in self.own.reachable()]

    def verdict(self) -> tuple[ReachKind, str]:
        """Return how others reach us, and the reason for that verdict."""
        reachable = self.own.reachable()
        if any(one.sources - {Source.MAPPED} for one in reachable):
            seen = all(one.sources <= {Source.MAPPED, Source.OBSERVED} for one in reachable)
            return ReachKind.DIRECTLY, DIALLED_BY_KNOWN if seen else DIALLED
        if reachable:
            return ReachKind.MAPPED, "its router forwards a port"
        if not self._host.listeners:
            return ReachKind.NOT, "it listens nowhere"
        if self.observed.is_mapped_anew():
            return ReachKind.NOT, "its router shows each peer a different port"
        if self.observed.candidates():
            return ReachKind.BY_PUNCHING, SHOWS_ALL_THE_SAME if self.observed.believed() else SEEN_BY_ONE
        return ReachKind.UNKNOWN, "no peer has said where it sees the node"

    def evidence(self) -> ReachEvidence:
        """Return the facts behind the verdict."""
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

    def seen_at(self) -> list[Address]:
        """Return where others may knock: the addresses at which they see us, and our own public addresses."""
        own = [parse_address(text) for text in self._host.addresses()]
        found = [*(one for one in own if is_public(one)), *self.observed.candidates()]
        return list(dict.fromkeys(replace(one, peer=None) for one in found))

    async def find_out(self) -> None:
        """Have peers dial the addresses that are due, one at a time, until cancelled."""
        while True:
            now = trio.current_time()
            due, asked = self.own.due(now), None
            if due:
                failed_by = next(one.failed_by for one in self.own.all() if one.address == due[0])
                asked = next((one for one in self._askable(now) if one.route.origin not in failed_by), None)
            if asked is None:
                with trio.move_on_at(max(self.own.next_due_s(), now + PAUSE_S) if not due else now + SELDOM_S):
                    await self._news.wait()
                continue
            said = await self.questions.ask(asked, due)
            if said.address is None or said.word is Word.NONE:
                self._asked_in_vain[asked.number] = trio.current_time()
                continue
            origins = {one.route.origin for one in self._servers.values()}
            self.own.hear(said.address, said.word, asked.route.origin, len(origins), trio.current_time(), began_s=now)
            await trio.sleep(PAUSE_S)

    def _askable(self, now: float) -> list[Connection]:
        """Return connections whose peers may be asked to dial back now."""
        return [
            one for number, one in self._servers.items() if now - self._asked_in_vain.get(number, -math.inf) > SELDOM_S
        ]

    def _stir(self) -> None:
        """Wake the task that waits for something to try."""
        self._news.set()
        self._news = trio.Event()


def _tcp(host: str, port: int) -> str:
    return f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}"
