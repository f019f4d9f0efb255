"""Decide how rarely a peer is leased to whose leases bring no record.

A pure core. A peer owes a lease for each one that it returned, let expire or lost, or whose records were all rejected.
It owes BLAMED for records that a working node never sends. For each lease with an admitted record, FORGIVEN are
subtracted. Up to FREE_LEASES do not matter: a node returns what would be late, and two batches when its owner needs the
machine. A peer that owes more is leased one group at a time, and after each that brings nothing it waits longer, up to
LONGEST_PAUSE_MS. Leases that the learner recalled do not count.

The rule needs no report from the peer: it works for nodes that are too old to say what they cannot do, and for hostile
ones. It applies to a peer id, and outlives its connection, so leaving and coming back gains nothing.

Invariants:

- A peer that brings no record is granted freely until it owes more than FREE_LEASES, and then one group for each pause.
  Pauses double.
- At most MOST_PEERS peers are remembered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from protocol.core.ids import PeerId

FREE_LEASES = 64
"""Leases that may bring nothing: two batches of a large node, which a pause returns at once."""

FORGIVEN = 16
"""Leases that one with an admitted record makes up for: a batch in which all but a few would have been late."""

BLAMED = 8
"""Leases that count for one whose delivery was rejected with blame. A working node never has one, and eight are the
quota of a newcomer. A peer that sends junk is slowed after nine leases, and after every second one if half are good."""

MOST_OWED = 2 * FREE_LEASES
"""Largest debt that is counted, so that a node that works again is trusted again after a few leases."""

FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 1_000, 300_000
"""Milliseconds: from one second to five minutes. A node that was repaired is at work within that time, and one that was
not costs the ledger 300 rows a day."""

MOST_PEERS = 4096
"""Peers whose debt is remembered, also after they have left. The one that was heard of longest ago is forgotten."""


@dataclass(kw_only=True, slots=True)
class _Debt:
    """Leases owed, the number of pauses so far, and when the current one ends."""

    owed: int = 0
    pauses: int = 0
    until_ms: float = -math.inf


@dataclass(kw_only=True)
class LeaseDebts:
    """The debts of all peers. Times are milliseconds on the learner's clock."""

    _debts: dict[PeerId, _Debt] = field(default_factory=dict)

    def brought_nothing(self, peer: PeerId, leases: int, now_ms: int) -> None:
        """Record that this many leases of the peer brought no record. Leases reported within one pause count
        together."""
        if leases <= 0:
            return
        debt = self._debts.pop(peer, None) or _Debt()
        self._debts[peer] = debt  # moves to the end: the peer heard of last
        if len(self._debts) > MOST_PEERS:
            del self._debts[next(iter(self._debts))]
        debt.owed = min(MOST_OWED, debt.owed + leases)
        if debt.owed > FREE_LEASES and self.wait_ms(peer, now_ms) == 0:
            debt.until_ms = now_ms + min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS << min(debt.pauses, 16))
            debt.pauses += 1

    def brought(self, peer: PeerId) -> None:
        """Record that a record of one of its leases was admitted."""
        if (debt := self._debts.get(peer)) is None:
            return
        debt.owed, debt.pauses, debt.until_ms = debt.owed - FORGIVEN, 0, -math.inf
        if debt.owed <= 0:
            del self._debts[peer]

    def is_owing(self, peer: PeerId) -> bool:
        """Return whether the peer is leased one group at a time."""
        return peer in self._debts and self._debts[peer].owed > FREE_LEASES

    def wait_ms(self, peer: PeerId, now_ms: int) -> int:
        """Return how long until it is leased a group again; 0 means now."""
        debt = self._debts.get(peer)
        left_ms = 0.0 if debt is None else debt.until_ms - now_ms
        return math.ceil(left_ms) if 0 < left_ms <= LONGEST_PAUSE_MS else 0  # else the clock was set back
