"""Tell peers who their neighbours are and where, and tell them again when a peer comes, leaves or moves.

If many peers come at once, each change concerns the same peers again. So the first change is told at once, and those
that follow within EVERY_S are told together.

Invariants:

- An introduction shows the neighbour graph and the sessions at that moment.
- A peer that was told the same before gets no introduction.
- A change is told within EVERY_S, if `tell_late` is called as often.
- The cost of a change depends only on the neighbours that it concerns.
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
"""Least seconds between two rounds of introductions. A newcomer gets its neighbours with its Welcome, and dials
them."""


@dataclass(kw_only=True, eq=False)
class Introducer(Service):
    """Introduces peers to each other.

    Args:
        addresses: the learner's own addresses, since it is a relay for all peers.
        origins: the network from which each peer connects, as this machine sees it.
        carries_bulk: whether the learner carries chunks for peers that cannot connect directly.
    """

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
        """Note peers that came, left or moved, and tell all peers that this concerns."""
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
        """Tell peers the noted changes, if the last introductions are EVERY_S ago."""
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
        """Note a new peer, and return the neighbours with which it should exchange chunks."""
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
        """Return the addresses of the relays through which a peer can be reached."""
        found = dict[PeerId, Sequence[str]]()
        for relay in map(PeerId, () if reach is None else reach.relays):
            if relay == self.identity.keypair.peer_id:
                found[relay] = self._own
            elif (session := self.state.present.get(relay)) is not None:
                found[relay] = session.addresses
        return found
