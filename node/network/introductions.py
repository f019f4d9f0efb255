"""Meet the peers that the learner introduces, so that chunks travel among peers and not from the learner alone.

    introduced --dialled, or knocked at--> met --lost--> dialled again
                        +--no way leads there--> left alone, until its addresses or ours change

Invariants:
- Of two peers that can both be dialled the one with the smaller id dials, or each pair would dial twice. Of two of
  which one can be dialled, the other one dials.
- Addresses that lie inside somebody else's network are not dialled, whoever named them.
- At most MAX_DIALS peers are dialled at a time, and after a learner's restart not all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import trio

from node.runtime.events import EventLog
from protocol.core.ids import PeerId
from protocol.reach import ReachKind
from protocol.work import Introduction
from swarm.libp2p import is_circuit
from swarm.transport.interface import DialFailed, PeerDisconnected, Transport

MAX_DIALS = 8
"""Peers that are dialled at a time: each may take seconds of knocking, and a neighbourhood has two dozen."""

SPREAD_S = 2.0
"""Knocks at other homes begin within so long, at random: a learner that comes back introduces everybody at once, and a
router that sees hundreds of new connections in a moment takes them for an attack."""

LOST_S = 5.0
"""Before a neighbour that was lost is dialled again, and as long again at random: it has just lost all of them."""

OPEN = frozenset({ReachKind.DIRECTLY, ReachKind.MAPPED})


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a peer was looked for, and how we were reached then: until either changes, the same will come of it."""

    addresses: tuple[str, ...]
    kind: ReachKind
    own: tuple[str, ...]


@dataclass(kw_only=True)
class Neighbours:
    """See the module's paragraph."""

    transport: Transport
    events: EventLog
    rng: Random = field(default_factory=Random)
    _introduced: dict[PeerId, tuple[str, ...]] = field(default_factory=dict)
    _dialling: set[PeerId] = field(default_factory=set)
    _in_vain: dict[PeerId, _Place] = field(default_factory=dict)
    _news: trio.Event = field(default_factory=trio.Event)

    def hear(self, introduction: Introduction) -> None:
        """These are our neighbours now, in the learner's word, and no longer those of before: no strangers to us. They
        are dialled soon."""
        introduced = {PeerId(told.peer): tuple(told.addresses) for told in introduction.peers}
        for peer in self._introduced.keys() - introduced.keys():
            self.transport.distrust(peer)
        for peer in introduced.keys() - self._introduced.keys():
            self.transport.trust(peer)
        self._introduced = introduced
        self._in_vain = {peer: place for peer, place in self._in_vain.items() if peer in introduced}
        self._stir()

    async def run(self) -> None:
        """Dial those we should, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear_of_losses, nursery)
            while True:
                for peer in [peer for peer in self._introduced if self._is_due(peer)]:
                    if len(self._dialling) < MAX_DIALS:
                        self._dialling.add(peer)
                        nursery.start_soon(self._meet, peer)
                await self._news.wait()

    def _is_due(self, peer: PeerId) -> bool:
        """Whether this peer is to be dialled from here, and now."""
        if peer in self._dialling or peer in self.transport.connected_peers() or peer == self.transport.peer_id:
            return False
        addresses = self._usable(peer)
        if not addresses or self._in_vain.get(peer) == self._place(addresses):
            return False
        can_be_dialled = any(not is_circuit(address) for address in addresses)
        if self._is_open() == can_be_dialled:
            return self.transport.peer_id < peer
        return can_be_dialled

    def _is_open(self) -> bool:
        """Whether others can dial us, as far as they and we know."""
        kind = self.transport.reached().kind
        return kind in OPEN or (kind is ReachKind.UNKNOWN and bool(self.transport.addresses()))

    def _usable(self, peer: PeerId) -> tuple[str, ...]:
        return tuple(address for address in self._introduced.get(peer, ()) if self.transport.may_dial(address))

    def _place(self, addresses: Sequence[str]) -> _Place:
        reached = self.transport.reached()
        own = (*self.transport.addresses(), *reached.relays)
        return _Place(addresses=tuple(addresses), kind=reached.kind, own=own)

    async def _meet(self, peer: PeerId) -> None:
        addresses = self._usable(peer)
        place = self._place(addresses)
        try:
            if all(map(is_circuit, addresses)):
                await trio.sleep(self.rng.uniform(0.0, SPREAD_S))
            await self.transport.dial(addresses)
        except DialFailed as error:
            self._in_vain[peer] = place
            self.events.emit("neighbour_not_met", peer=peer, reason=str(error))
        else:
            self._in_vain.pop(peer, None)
        finally:
            self._dialling.discard(peer)
            self._stir()

    async def _hear_of_losses(self, nursery: trio.Nursery) -> None:
        async for event in self.transport.events():
            if isinstance(event, PeerDisconnected) and event.peer in self._introduced:
                nursery.start_soon(self._look_again)

    async def _look_again(self) -> None:
        await trio.sleep(LOST_S + self.rng.uniform(0.0, LOST_S))
        self._stir()

    def _stir(self) -> None:
        self._news.set()
        self._news = trio.Event()
