"""Connect to the peers that the learner introduces, so that chunks travel among peers and not only from the learner.

The loop starts a dial for each peer that is due (`dial_plan`). It wakes when the next pause ends, at introductions,
when connections come or go, when a dial ends, and every LOOK_S.

Invariants:

- If both of two peers can be dialled, the one with the smaller id dials, or each pair would dial twice. If only one can
  be dialled, the other dials. After a lost connection either one dials.
- Addresses inside a network of somebody else are not dialled, no matter who named them.
- A dial uses all known addresses. It begins again when another address becomes known.
- At most MAX_DIALS peers are dialled at a time, and not all at once after a learner's restart.
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
"""Most peers that are dialled at a time. Hole punching takes seconds for each, and a node has two dozen neighbours."""

LOOK_S = 10.0
"""Seconds between checks whether this node is reached in another way than before, which no event tells."""

OPEN = frozenset({ReachKind.DIRECTLY, ReachKind.MAPPED})


@dataclass(frozen=True, kw_only=True)
class _Dial:
    """A dial under way, to these addresses."""

    addresses: tuple[str, ...]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


@dataclass(kw_only=True)
class Neighbours:
    """Keep connections to the introduced peers. `rng` spreads what would otherwise happen at once."""

    transport: Transport
    events: EventLog
    rng: Random = field(default_factory=Random)
    _plan: DialPlan = field(init=False)
    _dialling: dict[PeerId, _Dial] = field(default_factory=dict)
    _news: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self._plan = DialPlan(rng=self.rng)

    def hear(self, introduction: Introduction) -> None:
        """Take the peers of the learner's introduction as neighbours, in place of those before. They are no strangers,
        and are dialled soon."""
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
            if set(self._usable(peer)) - set(dial.addresses):  # a new address may lead there
                dial.scope.cancel()
        self._stir()

    async def run(self) -> None:
        """Dial the peers that are due, until cancelled."""
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
        """Return whether this node is to dial the peer now."""
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
        """Return whether others can dial this node, as far as they and it know."""
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
