"""Keep the learner's revised receipts: verdicts that changed after a delivery was acknowledged, for instance by audits.

Invariants:

- Only the latest receipt of a lease is kept, as it was signed.
- Receipts are written one after the other on a worker thread. At most WAITING of them wait, which is more than a
  learner sends on one connection at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from node.runtime.events import EventLog
from node.state.receipts import Receipts
from swarm.work.client import ReceiptRevised

WAITING = 1024
"""Most revised receipts that wait to be written."""

Channel = tuple[trio.MemorySendChannel[ReceiptRevised], trio.MemoryReceiveChannel[ReceiptRevised]]


@dataclass(frozen=True, kw_only=True)
class Revisions:
    """Writes revised receipts to `receipts`."""

    receipts: Receipts
    events: EventLog
    _channel: Channel = field(default_factory=lambda: trio.open_memory_channel[ReceiptRevised](WAITING))

    def keep(self, change: ReceiptRevised) -> None:
        """Queue a revised receipt without waiting."""
        try:
            self._channel[0].send_nowait(change)
        except trio.WouldBlock:
            self.events.emit("revision_dropped", lease=change.receipt.lease.hex()[:8])

    async def run(self) -> None:
        """Write the queued receipts until cancelled."""
        async for change in self._channel[1]:
            receipt = change.receipt
            if not await trio.to_thread.run_sync(self.receipts.revise, receipt, change.raw):
                continue
            rejected = next((verdict for verdict in receipt.verdicts if not verdict.admitted), None)
            self.events.emit(
                "receipt_revised",
                lease=receipt.lease.hex()[:8],
                refused=sum(not verdict.admitted for verdict in receipt.verdicts),
                reason=rejected.rule.value if rejected else None,
                detail=rejected.detail if rejected else None,
                tokens=receipt.tokens,
            )
