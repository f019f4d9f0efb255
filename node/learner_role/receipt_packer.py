"""Packs the receipts of leases that ended long ago, while the learner works.

What always holds: nothing is lost (`learner.ledger.compaction`); intake and training wait for one round at most, which
takes some 50 ms, and rounds are PAUSE_S apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from learner.ledger.compaction import ROUND
from node.learner_role.shared.context import Service
from protocol.core.dates import DAY_MS

LOOK_S = 600.0
"""Between two looks at what has become old enough."""

PAUSE_S = 2.0
"""Between two rounds: 250 receipts a second, more than any learner gives for long."""


@dataclass(kw_only=True, eq=False)
class ReceiptPacker(Service):
    """See the module's paragraph. `keep_days`: how old a lease is when its receipt is packed."""

    keep_days: float

    async def run(self) -> None:
        """Pack until cancelled. Raises LedgerError."""
        while True:
            await trio.sleep(PAUSE_S if await self.pack() == ROUND else LOOK_S)

    async def pack(self) -> int:
        """One round; return how many were packed, ROUND at most. Raises LedgerError."""
        before_ms = self.context.now_ms() - round(self.keep_days * DAY_MS)
        return await trio.to_thread.run_sync(self.ledger.compaction.pack_receipts, before_ms)
