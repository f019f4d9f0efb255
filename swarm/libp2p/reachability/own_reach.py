"""How this node is reached, as far as others say: where they see us, and to which of our addresses they could dial.

    connected --identify--> the peer says where it sees us
    an address of ours that is untried --AutoNAT--> a peer dials it --> reachable, or not

Invariants:
- What is told is public, and was dialled by somebody.
- One address is tried at a time, by somebody who did not fail to reach it.
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
"""Between two addresses that are tried, and before somebody is asked again who dialled nothing."""

DIALLED, DIALLED_BY_KNOWN = "others dialled it", "others dialled it, to whom it had spoken before"
"""A router that lets in whom one has spoken to is not told apart from one that lets in everybody. So who is introduced
is told of circuits as well."""

SHOWS_ALL_THE_SAME = "its router shows everybody the same port, and lets nobody in uncalled"
SEEN_BY_ONE = "its router lets nobody in uncalled, and one peer alone has said which port it shows"


class OwnReach:
    """See the module's paragraph."""

    def __init__(self, host: Hosting) -> None:
        self.observed = ObservedAddresses()
        self.own = OwnAddresses()
        self.questions = ReachabilityQuestions(host=host)
        self._host = host
        self._servers: dict[int, Connection] = {}
        """Who dials back for us, by connection."""
        self._sights: dict[int, Address] = {}
        """Where each connection's peer sees us, whatever that is worth."""
        self._asked_in_vain: dict[int, float] = {}
        """When such a connection's peer last dialled nothing."""
        self._news = trio.Event()

    def offer(self, source: Source, addresses: Iterable[Address]) -> None:
        """These, and no others, are ours by `source`."""
        public = [replace(one, peer=None) for one in addresses if is_public(one)]
        if self.own.offer(source, public, trio.current_time()):
            self._stir()

    def note_sight(self, connection: Connection, seen: Address) -> None:
        """The peer at the other end says that it sees us there."""
        self._sights[connection.number] = seen
        if connection.route.from_listening:
            self.note_listening_seen(connection, seen)

    def note_listening_seen(self, connection: Connection, seen: Address) -> None:
        """The same, of the port on which we listen."""
        if is_public(seen):
            self.observed.note(connection.number, connection.route.origin, seen)
            self.offer(Source.OBSERVED, self.observed.candidates())

    def note_helper(self, connection: Connection) -> None:
        """The peer at the other end dials back for whoever asks."""
        self._servers[connection.number] = connection
        self._stir()

    def note_gone(self, connection: Connection) -> None:
        """A connection has ended."""
        self.observed.forget(connection.number)
        self.offer(Source.OBSERVED, self.observed.candidates())
        self._servers.pop(connection.number, None)
        self._sights.pop(connection.number, None)
        self._asked_in_vain.pop(connection.number, None)

    def look_again(self) -> None:
        """Whatever was found out may be wrong: this machine slept, or moved."""
        self.own.forget_verdicts()
        self._stir()

    def addresses(self) -> list[Address]:
        """Those that a dial came through to."""
        return [one.address for one in self.own.reachable()]

    def verdict(self) -> tuple[ReachKind, str]:
        """How others reach us, and why that is believed."""
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

    def seen_at(self) -> list[Address]:
        """Where others may knock: as they see us, and our own public addresses."""
        own = [parse_address(text) for text in self._host.addresses()]
        found = [*(one for one in own if is_public(one)), *self.observed.candidates()]
        return list(dict.fromkeys(replace(one, peer=None) for one in found))

    async def find_out(self) -> None:
        """Have what is to be tried dialled by others, one address at a time, until cancelled."""
        while True:
            now = trio.current_time()
            due, asked = self.own.due(now), None
            if due:
                doubts = next(one.failed_by for one in self.own.all() if one.address == due[0])
                asked = next((one for one in self._askable(now) if one.route.origin not in doubts), None)
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
        """Who may be asked to dial back now."""
        return [
            one for number, one in self._servers.items() if now - self._asked_in_vain.get(number, -math.inf) > SELDOM_S
        ]

    def _stir(self) -> None:
        """Wake who waits for something to find out."""
        self._news.set()
        self._news = trio.Event()


def _tcp(host: str, port: int) -> str:
    return f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}"
