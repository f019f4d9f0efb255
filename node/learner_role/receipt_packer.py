"""Pack the receipts of leases that ended long ago, while the learner works.

Invariants:

- Nothing is lost (`learner.ledger.compaction`).
- Intake and training wait for one round at most, which takes some 50 ms. Rounds are PAUSE_S apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from learner.ledger.compaction import ROUND
from node.learner_role.shared.context import Service
from protocol.core.dates import DAY_MS

LOOK_S = 600.0
"""Seconds between two looks for receipts that have become old enough."""

PAUSE_S = 2.0
"""Seconds between two rounds. That packs 250 receipts a second, more than any learner signs for long."""


@dataclass(kw_only=True, eq=False)
class ReceiptPacker(Service):
    """Packs receipts of leases that are older than `keep_days`."""

    keep_days: float

    async def run(self) -> None:
        """Pack until cancelled. Raises LedgerError."""
        while True:
            await trio.sleep(PAUSE_S if await self.pack() == ROUND else LOOK_S)

    async def pack(self) -> int:
        """Pack one round of receipts, and return how many, at most ROUND. Raises LedgerError."""
        before_ms = self.context.now_ms() - round(self.keep_days * DAY_MS)
        return await trio.to_thread.run_sync(self.ledger.compaction.pack_receipts, before_ms)
