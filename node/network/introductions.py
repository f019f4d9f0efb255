"""Meet the peers that the learner introduces, so that chunks travel among peers and not from the learner alone.

The loop starts a dial for each peer that is due (`dial_plan`). It waits for the next pause to end, and is woken by
introductions, by connections that come or go, by each dial that ends, and every LOOK_S.

Invariants:
- Of two peers that can both be dialled the one with the smaller id dials, or each pair would dial twice. Of two of
  which one can be dialled, the other one dials. Whoever has lost the other dials again, whichever it is.
- Addresses that lie inside somebody else's network are not dialled, whoever named them.
- A dial goes to all addresses that are known: it begins anew when another one becomes known.
- At most MAX_DIALS peers are dialled at a time, and after a learner's restart not all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import trio

from node.network.dial_plan import DialPlan, Place
from node.runtime.events import EventLog
from protocol.core.ids import PeerId
from protocol.reach import ReachKind
from protocol.work import Introduction
from swarm.libp2p import is_circuit
from swarm.transport.interface import DialFailed, PeerConnected, PeerDisconnected, Transport

MAX_DIALS = 8
"""Peers that are dialled at a time: each may take seconds of knocking, and a neighbourhood has two dozen."""

LOOK_S = 10.0
"""How often to see whether we are reached otherwise than before, which nobody tells."""

OPEN = frozenset({ReachKind.DIRECTLY, ReachKind.MAPPED})


@dataclass(frozen=True, kw_only=True)
class _Dial:
    """One that goes on, to these addresses."""

    addresses: tuple[str, ...]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


@dataclass(kw_only=True)
class Neighbours:
    """See the module's paragraph. `rng` spreads what would happen at once."""

    transport: Transport
    events: EventLog
    rng: Random = field(default_factory=Random)
    _plan: DialPlan = field(init=False)
    _dialling: dict[PeerId, _Dial] = field(default_factory=dict)
    _news: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self._plan = DialPlan(rng=self.rng)

    def hear(self, introduction: Introduction) -> None:
        """These are our neighbours now, in the learner's word, and no longer those of before: no strangers to us. They
        are dialled soon."""
        told = {PeerId(one.peer): tuple(one.addresses) for one in introduction.peers}
        before = set(self._plan.peers())
        for peer in before - told.keys():
            self.transport.distrust(peer)
        for peer in told.keys() - before:
            self.transport.trust(peer)
        self._plan.introduce(told, trio.current_time())
        for peer in self.transport.connected_peers():
            self._plan.note_met(peer)
        for peer, dial in self._dialling.items():
            if set(self._usable(peer)) - set(dial.addresses):  # a way may lead there where none did
                dial.scope.cancel()
        self._stir()

    async def run(self) -> None:
        """Dial those we should, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear_of_connections)
            while True:
                now = trio.current_time()
                for peer in [peer for peer in self._plan.peers() if self._is_due(peer, now)]:
                    if len(self._dialling) < MAX_DIALS:
                        dial = self._dialling[peer] = _Dial(addresses=self._usable(peer))
                        nursery.start_soon(self._meet, peer, dial)
                with trio.move_on_at(min(self._plan.next_s(now), now + LOOK_S)):
                    await self._news.wait()

    def _is_due(self, peer: PeerId, now: float) -> bool:
        """Whether this peer is to be dialled from here, and now."""
        if peer in self._dialling or peer in self.transport.connected_peers() or peer == self.transport.peer_id:
            return False
        addresses = self._usable(peer)
        if not addresses or not self._plan.is_due(peer, self._place(addresses), now):
            return False
        can_be_dialled = any(not is_circuit(address) for address in addresses)
        if self._is_open() == can_be_dialled:
            return self.transport.peer_id < peer or self._plan.is_lost(peer)
        return can_be_dialled

    def _is_open(self) -> bool:
        """Whether others can dial us, as far as they and we know."""
        kind = self.transport.reached().kind
        return kind in OPEN or (kind is ReachKind.UNKNOWN and bool(self.transport.addresses()))

    def _usable(self, peer: PeerId) -> tuple[str, ...]:
        return tuple(address for address in self._plan.addresses(peer) if self.transport.may_dial(address))

    def _place(self, addresses: Sequence[str]) -> Place:
        reached = self.transport.reached()
        own = (*self.transport.addresses(), *reached.relays)
        return Place(addresses=tuple(addresses), kind=reached.kind, own=own)

    async def _meet(self, peer: PeerId, dial: _Dial) -> None:
        began = self._place(dial.addresses)
        try:
            with dial.scope:
                await self.transport.dial(dial.addresses, named_by_others=True)
        except DialFailed as error:
            self._plan.note_failed(peer, began, self._place(self._usable(peer)), trio.current_time())
            self.events.emit("neighbour_not_met", peer=peer, reason=str(error))
        finally:
            del self._dialling[peer]
            self._stir()

    async def _hear_of_connections(self) -> None:
        async for event in self.transport.events():
            match event:
                case PeerConnected(peer=peer):
                    self._plan.note_met(peer)
                case PeerDisconnected(peer=peer):
                    self._plan.note_lost(peer, trio.current_time())
            self._stir()

    def _stir(self) -> None:
        self._news.set()
        self._news = trio.Event()
