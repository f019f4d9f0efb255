"""Carry out the operator's orders, which are files in the state directory until they are done.

Invariants:

- An order that cannot be carried out is reported, and removed.
- A change or a stop that was given to an earlier run does nothing to this one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import trio

from learner.ledger.reputation import BAN
from node.learner_role.scheduling.run_settings import RunSettings
from node.learner_role.shared.context import Service
from node.learner_role.trust.bans import Bans
from node.state.operator_orders import AnyOrder, Ban, Change, NoSetting, OperatorDecisions, Pardon, Stop, read_order
from node.state.order_files import BY_FILE, OrderInbox, process_began_ns
from protocol.core.ids import PeerId
from protocol.core.limits import MAX_REASON_CHARS

LOOK_S = 1.0
"""Seconds between two looks for the operator's orders."""


def interrupt() -> None:
    """End this program as Ctrl-C does: the training step ends, and its state is saved."""
    os.kill(os.getpid(), signal.SIGINT)


@dataclass(kw_only=True, eq=False)
class OperatorService(Service):
    """Carries out the operator's decisions, and rejects records that were admitted of peers banned meanwhile.

    `orders`: the files of the decisions. `settings`: what may change. `bans` is None if nothing is leased. `forgive` is
    awaited before a pardon is written. It forgets all evidence against the peer besides its audits. `stop` ends the
    program in order. `began_ns`: when the run began, in nanoseconds since 1970.
    """

    settings: RunSettings
    orders: OperatorDecisions
    bans: Bans | None = None
    forgive: Callable[[PeerId], Awaitable[None]] | None = None
    stop: Callable[[], None] = interrupt
    began_ns: int = field(default_factory=process_began_ns)

    def __post_init__(self) -> None:
        self._inbox = OrderInbox(self.orders, read_order)

    async def run(self) -> None:
        """Look for orders every LOOK_S, and when records must be rejected, until cancelled."""
        while True:
            wakeup = trio.Event()
            if self.bans is not None:
                revisions = self.bans.audits.revisions
                revisions.wakeup = wakeup  # before the look, so that news that comes meanwhile wakes us
                await revisions.settle()
            await self._obey()
            with trio.move_on_after(LOOK_S):
                await wakeup.wait()

    async def _obey(self) -> None:
        orders, troubles = await trio.to_thread.run_sync(self._inbox.take)
        for text in troubles:
            self.events.trouble(text)
        for given in orders:
            order = given.order
            if isinstance(order, Change | Stop) and given.was_before(self.began_ns):
                self.events.trouble(f"An order was not carried out: {_named(order)} was for a run before this one.")
            else:
                await self._carry_out(order)
            given.remove()

    async def _carry_out(self, order: AnyOrder) -> None:
        match order:
            case Change(key=key, value=value, by=by):
                try:
                    self.settings.change(key, value, by or BY_FILE)
                except NoSetting as error:
                    self.events.trouble(f"An order was not carried out: {error}")
            case Stop(by=by):
                self.events.emit("stop_ordered", by=by or BY_FILE)
                self.stop()
            case Ban() | Pardon():
                if self.bans is None:
                    self.events.trouble("An order about a peer was not carried out: this run leases nothing to peers.")
                    return
                async with self.bans.audits.standings.lock:
                    await self._decide(self.bans, order)

    async def _decide(self, bans: Bans, order: Ban | Pardon) -> None:
        peer = PeerId(order.peer)
        if isinstance(order, Ban):
            before = await bans.audits.standings.recall(peer)
            reason = order.reason[:MAX_REASON_CHARS] or "the operator decided so"
            await bans.ban(peer, replace(before, banned=reason), decision=BAN)
            return
        if self.forgive is not None:
            await self.forgive(peer)
        await bans.pardon(peer)


def _named(order: Change | Stop) -> str:
    return "stop" if isinstance(order, Stop) else f"{order.key} = {order.value:g}"
