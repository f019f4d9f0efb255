"""Which peers are named to a peer as its neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from protocol.core.ids import PeerId
from swarm.transport.interface import DialFailed, Transport


@dataclass(kw_only=True)
class Neighbours:
    """Dials the peers the learner introduces, so that chunks travel among peers and not from the learner alone.

    Of two peers that can both be dialled the one with the smaller id dials, or each pair would dial twice.
    """

    transport: Transport
    _introduced: set[PeerId] = field(default_factory=set)

    def trust(self, peers: Iterable[PeerId]) -> None:
        """These are our neighbours now, in the learner's word, and no longer those of before: no strangers to us."""
        introduced = set(peers)
        for peer in self._introduced - introduced:
            self.transport.distrust(peer)
        for peer in introduced - self._introduced:
            self.transport.trust(peer)
        self._introduced = introduced

    async def meet(self, introduction: Sequence[tuple[PeerId, Sequence[str]]]) -> None:
        """Dial those we should; what fails is tried again with the next introduction."""
        me = self.transport.peer_id
        reachable = bool(self.transport.addresses())
        for peer, addresses in introduction:
            if peer == me or not addresses or peer in self.transport.connected_peers() or (reachable and peer < me):
                continue
            try:
                await self.transport.dial(list(addresses))
            except DialFailed:
                continue
