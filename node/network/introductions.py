"""Which peers are named to a peer as its neighbours."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from node.runtime.events import EventLog
from protocol.core.ids import PeerId
from protocol.work import Introduction
from swarm.transport.interface import DialFailed, Transport

WAITING = 16
"""Introductions waiting to be dialled; each is the whole list anew."""

Channel = tuple[trio.MemorySendChannel[Introduction], trio.MemoryReceiveChannel[Introduction]]


@dataclass(kw_only=True)
class Neighbours:
    """Dials the peers the learner introduces, so that chunks travel among peers and not from the learner alone.

    Of two peers that can both be dialled the one with the smaller id dials, or each pair would dial twice.
    """

    transport: Transport
    events: EventLog
    _introduced: set[PeerId] = field(default_factory=set)
    _channel: Channel = field(default_factory=lambda: trio.open_memory_channel[Introduction](WAITING))

    def hear(self, introduction: Introduction) -> None:
        """These are our neighbours now, in the learner's word, and no longer those of before: no strangers to us. They
        are dialled soon; where `run` is behind, it has a newer list to come anyway."""
        introduced = {PeerId(told.peer) for told in introduction.peers}
        for peer in self._introduced - introduced:
            self.transport.distrust(peer)
        for peer in introduced - self._introduced:
            self.transport.trust(peer)
        self._introduced = introduced
        try:
            self._channel[0].send_nowait(introduction)
        except trio.WouldBlock:
            self.events.emit("introduction_dropped")

    async def run(self) -> None:
        """Dial those we should, until cancelled; what fails is tried again with the next introduction."""
        me = self.transport.peer_id
        async for introduction in self._channel[1]:
            reachable = bool(self.transport.addresses())
            for peer, addresses in ((PeerId(told.peer), told.addresses) for told in introduction.peers):
                if peer == me or not addresses or peer in self.transport.connected_peers() or (reachable and peer < me):
                    continue
                try:
                    await self.transport.dial(list(addresses))
                except DialFailed:
                    continue
