"""What the operator decides: bans and pardons, which lie as files in the state directory until they are done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import trio

from learner.ledger.reputation import BAN
from node.learner_role.shared.context import Service
from node.learner_role.trust.bans import Bans
from node.state.operator_orders import Ban, NoOrder, OperatorDecisions, Pardon, read_order
from protocol.core.ids import PeerId
from protocol.core.limits import MAX_REASON_CHARS

LOOK_S = 1.0
"""Between looks for orders of the operator's."""


@dataclass(kw_only=True, eq=False)
class OperatorService(Service):
    """Do what the operator decides, and refuse what was admitted of peers that were banned meanwhile.

    `orders`: where the decisions lie. `forgive` is awaited before a pardon is written: what else speaks against a peer
    than its audits is forgotten.
    """

    bans: Bans
    forgive: Callable[[PeerId], Awaitable[None]]
    orders: OperatorDecisions
    _no_orders: set[Path] = field(default_factory=set)

    async def run(self) -> None:
        """Look every LOOK_S, and when something is to be refused; until cancelled."""
        revisions = self.bans.audits.revisions
        while True:
            revisions.wakeup = trio.Event()  # before we look, or what comes meanwhile would wake nobody
            await revisions.settle()
            await self._obey()
            with trio.move_on_after(LOOK_S):
                await revisions.wakeup.wait()

    async def _obey(self) -> None:
        for path in await trio.to_thread.run_sync(self.orders.waiting):
            try:
                order = await trio.to_thread.run_sync(read_order, path)
            except NoOrder as error:
                if path not in self._no_orders:
                    self._no_orders.add(path)
                    self.events.trouble(str(error))
                continue
            async with self.bans.audits.standings.lock:
                await self._decide(order)
            with suppress(OSError):
                path.unlink()

    async def _decide(self, order: Ban | Pardon) -> None:
        peer = PeerId(order.peer)
        if isinstance(order, Ban):
            before = await self.bans.audits.standings.recall(peer)
            reason = order.reason[:MAX_REASON_CHARS] or "the operator decided so"
            await self.bans.ban(peer, replace(before, banned=reason), decision=BAN)
            return
        await self.forgive(peer)
        await self.bans.pardon(peer)
