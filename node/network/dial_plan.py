"""Decide which of the introduced peers to dial, and when: at once, after a pause, or no more.

    introduced --dialled, or hole punching--> met --lost--> dialled again after a pause, ever more seldom
                        +--no way leads there--> left alone, until its addresses or ours change

A pure core. Times are in seconds, monotonic.

Invariants:

- A peer that was never met is dialled once in each place: a second dial would have the same result.
- A peer that was met once is tried again for as long as it is introduced: its router may have restarted, or its machine
  may sleep. Pauses double up to SELDOM_S.
- Peers that become due together are spread at random: see SPREAD_S and LOST_S.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from protocol.core.ids import PeerId
from protocol.reach import ReachKind
from swarm.libp2p import is_circuit

SPREAD_S = 2.0
"""Seconds over which hole punching begins, at random. A learner that comes back introduces all nodes at once, and a
router that sees hundreds of new connections in a moment takes them for an attack."""

LOST_S = 5.0
"""Seconds before a lost neighbour is dialled again, plus as many again at random: it has just lost all its
neighbours."""

SELDOM_S = 120.0
"""Longest pause, in seconds, between two dials of a peer that was met once; the shortest is half of it. A home router
is back within two minutes, and a laptop that sleeps costs its neighbours some packets an hour."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A peer's addresses, and how this node is reached. While both are the same, a dial has the same result."""

    addresses: tuple[str, ...]
    kind: ReachKind
    own: tuple[str, ...]


@dataclass(kw_only=True)
class _Prospect:
    addresses: tuple[str, ...]
    due_s: float
    was_met: bool = False
    failed: int = 0
    """Failed dials since the peer was last met."""
    in_vain: Place | None = None


@dataclass(kw_only=True)
class DialPlan:
    """Peers that are introduced, and when each is due."""

    rng: Random = field(default_factory=Random)
    _prospects: dict[PeerId, _Prospect] = field(default_factory=dict)

    def peers(self) -> list[PeerId]:
        """Return the peers that are introduced now."""
        return list(self._prospects)

    def addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Return the addresses that the learner gave for a peer; none if it is not introduced."""
        one = self._prospects.get(peer)
        return one.addresses if one is not None else ()

    def introduce(self, told: Mapping[PeerId, tuple[str, ...]], now: float) -> None:
        """From now on, only these peers are to be met, at these addresses."""
        self._prospects = {peer: one for peer, one in self._prospects.items() if peer in told}
        for peer, addresses in told.items():
            if peer in self._prospects:
                self._prospects[peer].addresses = addresses
            else:
                spread_s = SPREAD_S if all(map(is_circuit, addresses)) else 0.0
                due_s = now + self.rng.uniform(0.0, spread_s)
                self._prospects[peer] = _Prospect(addresses=addresses, due_s=due_s)

    def is_due(self, peer: PeerId, place: Place, now: float) -> bool:
        """Return whether a peer that is not connected may be dialled now."""
        one = self._prospects.get(peer)
        return one is not None and one.due_s <= now and one.in_vain != place

    def is_lost(self, peer: PeerId) -> bool:
        """Return whether there was a connection. Then either end dials, because the other may not know that it is
        gone."""
        one = self._prospects.get(peer)
        return one is not None and one.was_met

    def next_s(self, now: float) -> float:
        """Return when the next peer's pause ends; infinity if none has one."""
        return min((one.due_s for one in self._prospects.values() if one.due_s > now), default=math.inf)

    def note_met(self, peer: PeerId) -> None:
        """Record that a connection to `peer` exists."""
        if (one := self._prospects.get(peer)) is not None:
            one.was_met, one.failed, one.in_vain = True, 0, None

    def note_lost(self, peer: PeerId, now: float) -> None:
        """Record that the connection to `peer` is gone."""
        if (one := self._prospects.get(peer)) is not None:
            one.due_s = now + self.rng.uniform(LOST_S, 2 * LOST_S)

    def note_failed(self, peer: PeerId, began: Place, ended: Place, now: float) -> None:
        """Record that a dial failed. The place may have changed between its beginning and its end."""
        if (one := self._prospects.get(peer)) is None:
            return
        if one.was_met:
            pause_s = min(LOST_S * 2 ** min(one.failed, 16), SELDOM_S / 2)
            one.failed += 1
            one.due_s = now + self.rng.uniform(pause_s, 2 * pause_s)
        elif began == ended:
            one.in_vain = began
        else:  # dial again where we are now: in this place it was never tried
            one.due_s = now + self.rng.uniform(0.0, SPREAD_S)
