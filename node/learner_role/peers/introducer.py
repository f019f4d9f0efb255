"""Tells peers who their neighbours are, and where: anew where a peer that came, left or moved changes that.

What always holds: what is told is what the neighbour graph and the sessions say at that moment; whoever was told the
same before hears nothing. A change costs as much as the neighbours that it concerns, and one look at each peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from node.learner_role.peers.introductions import addresses_for, meets_of, share_network
from node.learner_role.shared.context import Service
from protocol.core.ids import PeerId
from protocol.reach import Reach
from protocol.versions.exchange import PeerAddresses
from protocol.work import Introduction
from swarm.work.neighbour_graph import NeighbourGraph


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

    def note(self, *peers: PeerId) -> None:
        """Something is new of these: they came, left, or are elsewhere. Tell all whom that concerns."""
        present, concerned, moved = self.state.present, set[PeerId](), set(peers)
        for peer in peers:
            if (session := present.get(peer)) is None:
                concerned |= self._graph.remove(peer)
                self._told.pop(peer, None)
            else:
                concerned |= self._graph.put(peer, meets_of(session.reach, carries_bulk=self.carries_bulk))
                concerned |= {peer, *self._graph.beside(peer)}
        own, self._own = self._own, tuple(self.addresses())
        if own != self._own:
            moved.add(self.identity.keypair.peer_id)
        for peer, session in present.items():
            if session.reach is not None and not moved.isdisjoint(session.reach.relays):
                concerned |= self._graph.beside(peer)
        origins = self.origins()
        for peer in present:
            if peer in concerned and self._told.get(peer) != (told := self._neighbours(peer, origins)):
                self._told[peer] = told
                self.signals.tell(peer, Introduction(peers=told))

    def neighbours(self, peer: PeerId) -> list[PeerAddresses]:
        """Whom a peer that is here should exchange chunks with, as it was told."""
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
