"""Carry out the operator's bans and pardons, which are files in the state directory until they are done."""

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
"""Seconds between two looks for the operator's orders."""


@dataclass(kw_only=True, eq=False)
class OperatorService(Service):
    """Carries out the operator's decisions, and rejects records that were admitted of peers banned meanwhile.

    `orders`: the files of the decisions. `forgive` is awaited before a pardon is written. It forgets all evidence
    against the peer besides its audits.
    """

    bans: Bans
    forgive: Callable[[PeerId], Awaitable[None]]
    orders: OperatorDecisions
    _no_orders: set[Path] = field(default_factory=set)

    async def run(self) -> None:
        """Look for orders every LOOK_S, and when records must be rejected, until cancelled."""
        revisions = self.bans.audits.revisions
        while True:
            revisions.wakeup = trio.Event()  # before the look, so that news that comes meanwhile wakes us
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
