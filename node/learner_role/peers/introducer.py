"""Tells peers who their neighbours are, and where: anew where a peer that came, left or moved changes that.

While many come at once, each is concerned again and again. So the first change is told at once, and those that follow
within EVERY_S together.

What always holds: what is told is what the neighbour graph and the sessions say at that moment; whoever was told the
same before hears nothing; a change is told within EVERY_S, if `tell_late` is called as often. A change costs as much as
the neighbours that it concerns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from node.learner_role.peers.introductions import addresses_for, meets_of, share_network
from node.learner_role.shared.context import Service
from protocol.core.ids import PeerId
from protocol.reach import Reach
from protocol.versions.exchange import PeerAddresses
from protocol.work import Introduction
from swarm.work.neighbour_graph import NeighbourGraph

EVERY_S = 1.0
"""How often introductions are told at most. A newcomer hears of its neighbours with its Welcome, and dials them."""


@dataclass(kw_only=True, eq=False)
class Introducer(Service):
    """See the module's paragraph. `addresses`: where the learner, which is everybody's relay, can be dialled;
    `origins`: where peers come from, as this machine sees them; `carries_bulk`: whether it carries chunks for those who
    cannot meet."""

    addresses: Callable[[], Sequence[str]]
    origins: Callable[[], Mapping[PeerId, str]]
    carries_bulk: bool = False
    _graph: NeighbourGraph = field(default_factory=NeighbourGraph)
    _told: dict[PeerId, list[PeerAddresses]] = field(default_factory=dict)
    _own: tuple[str, ...] = ()
    _concerned: set[PeerId] = field(default_factory=set)
    _moved: set[PeerId] = field(default_factory=set)
    _told_s: float = -math.inf

    def note(self, *peers: PeerId) -> None:
        """Something is new of these: they came, left, or are elsewhere. All whom that concerns are told."""
        for peer in peers:
            if (session := self.state.present.get(peer)) is None:
                self._concerned |= self._graph.remove(peer)
                self._told.pop(peer, None)
            else:
                self._concerned |= self._graph.put(peer, meets_of(session.reach, carries_bulk=self.carries_bulk))
                self._concerned |= {peer, *self._graph.beside(peer)}
        self._moved.update(peers)
        self.tell_late()

    def tell_late(self) -> None:
        """Tell what was noted since the last time, if that is EVERY_S ago."""
        if not self._moved or trio.current_time() < self._told_s + EVERY_S:
            return
        own, self._own = self._own, tuple(self.addresses())
        if own != self._own:
            self._moved.add(self.identity.keypair.peer_id)
        for peer, session in self.state.present.items():
            if session.reach is not None and not self._moved.isdisjoint(session.reach.relays):
                self._concerned |= self._graph.beside(peer)
        concerned, self._concerned, self._moved = self._concerned, set(), set()
        origins, self._told_s = self.origins(), trio.current_time()
        for peer in sorted(concerned & self.state.present.keys()):
            if self._told.get(peer) != (told := self._neighbours(peer, origins)):
                self._told[peer] = told
                self.signals.tell(peer, Introduction(peers=told))

    def greet(self, peer: PeerId) -> list[PeerAddresses]:
        """Note a peer that has come; return whom it should exchange chunks with."""
        self.note(peer)
        if peer in self._concerned:
            self._told[peer] = self._neighbours(peer, self.origins())
        return self._told[peer]

    def _neighbours(self, peer: PeerId, origins: Mapping[PeerId, str]) -> list[PeerAddresses]:
        present = self.state.present
        return [
            addresses_for(
                present[peer].reach,
                other,
                present[other].reach,
                present[other].addresses,
                self._relays_of(present[other].reach),
                shares_network=share_network(origins.get(peer), origins.get(other)),
            )
            for other in sorted(self._graph.beside(peer))
        ]

    def _relays_of(self, reach: Reach | None) -> dict[PeerId, Sequence[str]]:
        """The addresses of those through whom a peer can be reached."""
        found = dict[PeerId, Sequence[str]]()
        for relay in map(PeerId, () if reach is None else reach.relays):
            if relay == self.identity.keypair.peer_id:
                found[relay] = self._own
            elif (session := self.state.present.get(relay)) is not None:
                found[relay] = session.addresses
        return found
