"""Report what the budgets for strangers and members refused, and the faults of peers.

Invariants:

- However much is refused, a period leaves one event for each budget.
- However many faults one peer or many commit, the log gains a bounded number of events. The next one counts those that
  were left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from node.runtime.events import EventLog
from protocol.core.errors import Fault
from protocol.core.ids import PeerId
from swarm.transport.event_rate import Bucket, Buckets, Rate
from swarm.transport.interface import Transport

TOLD_EVERY_S = 30.0
"""Seconds between reports of refusals: a node under attack reports it within this time."""

FAULTS_OF_PEER = Rate(per_s=1 / 30, burst=10.0)
"""Rate of events about one peer's faults, or its copied key. An honest peer has none."""

FAULTS = Rate(per_s=1.0, burst=100.0)
"""The same rate for all peers together: at most 20 MB of log a day."""


async def tell_refusals(transport: Transport, events: EventLog) -> None:
    """Emit `over_budget` for each budget that refused something, every TOLD_EVERY_S, until cancelled."""
    try:
        while True:
            await trio.sleep(TOLD_EVERY_S)
            _tell(transport, events)
    finally:
        _tell(transport, events)


def _tell(transport: Transport, events: EventLog) -> None:
    for refusal in transport.refusals():
        events.emit(
            "over_budget", budget=refusal.budget, times=refusal.times, who=refusal.who, who_times=refusal.who_times
        )


@dataclass(kw_only=True)
class FaultLog:
    """Write events about peers' faults, at a bounded rate."""

    events: EventLog
    _of: Buckets[PeerId] = field(default_factory=lambda: Buckets(rate=FAULTS_OF_PEER))
    _all: Bucket = field(default_factory=lambda: Bucket(rate=FAULTS))
    _unsaid: int = 0

    def report(self, peer: PeerId, fault: Fault, detail: str) -> None:
        if (unsaid := self.admit(peer)) is not None:
            self.events.emit("peer_fault", peer=peer, fault=fault.value, detail=detail, unsaid=unsaid)

    def admit(self, peer: PeerId) -> int | None:
        """Return how many rows were left out since the last one if `peer` may have a row now, else None."""
        now = trio.current_time()
        if not (self._of.of(peer).admit(now) and self._all.admit(now)):
            self._unsaid += 1
            return None
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid
