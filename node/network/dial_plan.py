"""Which of the introduced peers are dialled, and when: at once, after a pause, or no more.

    introduced --dialled, or knocked at--> met --lost--> dialled again after a pause, ever more seldom
                        +--no way leads there--> left alone, until its addresses or ours change

A pure core; times are in seconds, monotonic.

Invariants:
- A peer that was never met is dialled once in each place: the same would come of it again.
- Whoever was met once can be met, so it is tried again for as long as it is introduced: its router may have started
  anew, or its machine may sleep. Pauses double up to SELDOM_S.
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
"""Knocks at other homes begin within so long, at random: a learner that comes back introduces everybody at once, and a
router that sees hundreds of new connections in a moment takes them for an attack."""

LOST_S = 5.0
"""Before a neighbour that was lost is dialled again, and as long again at random: it has just lost all of them."""

SELDOM_S = 120.0
"""The longest pause between two dials of a peer that was met once, at least half of it. A home router is back within
two minutes, and a laptop that sleeps costs its neighbours some packets an hour."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a peer is looked for, and how we are reached meanwhile: until either changes, the same will come of it."""

    addresses: tuple[str, ...]
    kind: ReachKind
    own: tuple[str, ...]


@dataclass(kw_only=True)
class _Prospect:
    addresses: tuple[str, ...]
    due_s: float
    was_met: bool = False
    failed: int = 0
    """Dials in vain since it was last met."""
    in_vain: Place | None = None


@dataclass(kw_only=True)
class DialPlan:
    """See the module's paragraph."""

    rng: Random = field(default_factory=Random)
    _prospects: dict[PeerId, _Prospect] = field(default_factory=dict)

    def peers(self) -> list[PeerId]:
        """Those introduced now."""
        return list(self._prospects)

    def addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Where the learner says that a peer is; nothing of one that is not introduced."""
        one = self._prospects.get(peer)
        return one.addresses if one is not None else ()

    def introduce(self, told: Mapping[PeerId, tuple[str, ...]], now: float) -> None:
        """These are to be met from now on, at these addresses, and nobody else."""
        self._prospects = {peer: one for peer, one in self._prospects.items() if peer in told}
        for peer, addresses in told.items():
            if peer in self._prospects:
                self._prospects[peer].addresses = addresses
            else:
                spread_s = SPREAD_S if all(map(is_circuit, addresses)) else 0.0
                due_s = now + self.rng.uniform(0.0, spread_s)
                self._prospects[peer] = _Prospect(addresses=addresses, due_s=due_s)

    def is_due(self, peer: PeerId, place: Place, now: float) -> bool:
        """Whether a peer that is not connected may be dialled now."""
        one = self._prospects.get(peer)
        return one is not None and one.due_s <= now and one.in_vain != place

    def is_lost(self, peer: PeerId) -> bool:
        """Whether there was a connection. Then either end dials, since the other may not know that it is gone."""
        one = self._prospects.get(peer)
        return one is not None and one.was_met

    def next_s(self, now: float) -> float:
        """When the next peer's pause ends; infinity when none has one."""
        return min((one.due_s for one in self._prospects.values() if one.due_s > now), default=math.inf)

    def note_met(self, peer: PeerId) -> None:
        """There is a connection."""
        if (one := self._prospects.get(peer)) is not None:
            one.was_met, one.failed, one.in_vain = True, 0, None

    def note_lost(self, peer: PeerId, now: float) -> None:
        """The connection is gone."""
        if (one := self._prospects.get(peer)) is not None:
            one.due_s = now + self.rng.uniform(LOST_S, 2 * LOST_S)

    def note_failed(self, peer: PeerId, began: Place, ended: Place, now: float) -> None:
        """It was dialled in vain, in a place which may have become another one meanwhile."""
        if (one := self._prospects.get(peer)) is None:
            return
        if one.was_met:
            pause_s = min(LOST_S * 2 ** min(one.failed, 16), SELDOM_S / 2)
            one.failed += 1
            one.due_s = now + self.rng.uniform(pause_s, 2 * pause_s)
        elif began == ended:
            one.in_vain = began
        else:  # tried anew in the place where we are now, and that is as good as never tried
            one.due_s = now + self.rng.uniform(0.0, SPREAD_S)
