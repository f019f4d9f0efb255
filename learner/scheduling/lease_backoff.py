"""Decide how seldom a peer is leased to whose leases bring no record.

A pure core. A peer owes a lease for each one that it gave back, let expire or lost, or answered with what was refused;
it owes BLAMED if that is what a working node never sends. It is forgiven FORGIVEN for each lease of which a record is
admitted. Up to FREE_LEASES are no matter: a node gives back what would be late, and two batches when its owner needs
the machine. Whoever owes more is leased one group at a time, and after each that brings nothing it waits longer, up to
LONGEST_PAUSE_MS. Leases that the learner recalled are nobody's debt.

The rule needs no word from the peer: it holds for nodes that are too old to say what they cannot do, and for hostile
ones. It is about a peer id, and outlives its line, so that leaving and coming back gains nothing.

Invariants:
- A peer that brings no record is granted freely until it owes more than FREE_LEASES, and then one group for each pause.
  Pauses double.
- No more than MOST_PEERS are remembered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from protocol.core.ids import PeerId

FREE_LEASES = 64
"""Leases that may bring nothing: two batches of a large node, which a pause gives back at once."""

FORGIVEN = 16
"""Leases that one with an admitted record makes up for: a batch of which all but a few would have been late."""

BLAMED = 8
"""Leases that count for one whose delivery was refused with blame: a working node never has one, and eight are the
quota of a newcomer. Whoever sends junk is slowed after nine leases, and after each second one if half are good."""

MOST_OWED = 2 * FREE_LEASES
"""What is counted at most, so that a node that works again is trusted again after a few leases."""

FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 1_000, 300_000
"""From one second to five minutes: a node that was mended is at work within that, and one that was not costs the ledger
300 rows a day."""

MOST_PEERS = 4096
"""Peers whose debt is remembered, also after they have left; the one that was heard of longest ago is forgotten."""


@dataclass(kw_only=True, slots=True)
class _Debt:
    """Leases owed, how many pauses there were, and when the one in force ends."""

    owed: int = 0
    pauses: int = 0
    until_ms: float = -math.inf


@dataclass(kw_only=True)
class GiveBacks:
    """See the module's paragraph. Times are milliseconds on the learner's clock."""

    _debts: dict[PeerId, _Debt] = field(default_factory=dict)

    def brought_nothing(self, peer: PeerId, leases: int, now_ms: int) -> None:
        """So many leases of the peer brought no record; together, if they are told of within one pause."""
        if leases <= 0:
            return
        debt = self._debts.pop(peer, None) or _Debt()
        self._debts[peer] = debt  # last in the order of who was heard of
        if len(self._debts) > MOST_PEERS:
            del self._debts[next(iter(self._debts))]
        debt.owed = min(MOST_OWED, debt.owed + leases)
        if debt.owed > FREE_LEASES and self.wait_ms(peer, now_ms) == 0:
            debt.until_ms = now_ms + min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS << min(debt.pauses, 16))
            debt.pauses += 1

    def brought(self, peer: PeerId) -> None:
        """A record of one of its leases was admitted."""
        if (debt := self._debts.get(peer)) is None:
            return
        debt.owed, debt.pauses, debt.until_ms = debt.owed - FORGIVEN, 0, -math.inf
        if debt.owed <= 0:
            del self._debts[peer]

    def is_owing(self, peer: PeerId) -> bool:
        """Whether it is leased one group at a time."""
        return peer in self._debts and self._debts[peer].owed > FREE_LEASES

    def wait_ms(self, peer: PeerId, now_ms: int) -> int:
        """How long until it is leased a group again; 0: it may be now."""
        debt = self._debts.get(peer)
        left_ms = 0.0 if debt is None else debt.until_ms - now_ms
        return math.ceil(left_ms) if 0 < left_ms <= LONGEST_PAUSE_MS else 0  # else somebody has set the clock back
