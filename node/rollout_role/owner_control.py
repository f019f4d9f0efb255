"""Carry out the owner's orders (pause, resume, drain, limits), and show the node's status.

Invariants:

- A node that is paused when it starts generates nothing before it is resumed.
- A draining node can still be paused, which returns its unfinished leases at once, or be given a new deadline.
- An order about a limit is carried out once, or reported; one that was given before this process began does nothing.
- The status that commands on this machine read (`node.state.status_file`) is at most LOOK_S old.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import trio

from learner.ledger.troubles import in_words
from node.config.live_limits import SECTIONS, as_toml
from node.rollout_role.availability import Availability
from node.rollout_role.resource_limits import RunningLimits
from node.rollout_role.retry_policy import RetryPolicy
from node.rollout_role.worker import RolloutCounts
from node.runtime.errors import RunError, UsageError
from node.runtime.events import Clock
from node.runtime.formatting import counted
from node.runtime.loop_delay import LoopFigures
from node.state.order_files import BY_FILE, OrderInbox, process_began_ns
from node.state.owner_orders import LOOK_S, Drain, Limit, LimitOrders, OwnerRequests, OwnerSignals, read_limit
from node.state.status_file import NodeStatus, StatusFile
from protocol.core.ids import LeaseId
from swarm.work.client import WorkClient

PAUSED = "owner"
"""The holder of the shift while the owner has paused the node."""


class NodeWorker(Protocol):
    """The parts of a worker that its owner's orders need: of `RolloutWorker`, or of a teacher node's worker."""

    shift: Availability
    retry_policy: RetryPolicy
    work_client: WorkClient
    counts: RolloutCounts
    holding: set[LeaseId]
    is_draining: bool

    @property
    def has_freed_memory(self) -> bool:
        """Return whether the engine's memory is free while the machine is not lent."""

    async def drain(self, within_s: float | None) -> int: ...

    async def leave(self, reason: str = ...) -> None: ...


class Drained(Exception):
    """Raised when the node is drained, as the owner ordered. The message says what became of its leases."""


@dataclass(kw_only=True)
class Owner:
    """Reads the owner's orders and carries them out.

    Args:
        root: the node's state directory, with its orders and its status file.
        signals: wakes `run` when an order may have arrived.
        role: the worker that is paused and drained.
        limits: the limits in force, some of which the owner may change.
        trouble: called with a sentence when something cannot be done.
        loop: how long the event loop recently delayed its tasks.
        reach: a sentence that says how others reach this node.
        began_ns: when this process began, in nanoseconds since 1970.
    """

    root: Path
    signals: OwnerSignals
    role: NodeWorker
    limits: RunningLimits
    trouble: Callable[[str], None]
    loop: Callable[[], LoopFigures | None] = lambda: None
    reach: Callable[[], str] = str
    began_ns: int = field(default_factory=process_began_ns)
    orders: OwnerRequests = field(init=False)
    _order: Drain | None = None
    _draining: trio.CancelScope = field(default_factory=trio.CancelScope)

    def __post_init__(self) -> None:
        self.orders, self._inbox = OwnerRequests(self.root), OrderInbox(LimitOrders(self.root), read_limit)
        self.orders.forget_drain()
        self._heed_pause()

    async def run(self) -> None:
        """Carry out orders until cancelled. Wakes on a signal, and every LOOK_S. Raises Drained."""
        board = StatusFile(self.root)
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    self._heed_pause()
                    await self._heed_limits()
                    if (order := self.orders.drained) is not None and order != self._order:
                        self._order = order
                        self._draining.cancel()  # the newest order counts: it may set a deadline where there was none
                        self._draining = trio.CancelScope()
                        nursery.start_soon(self._drain, order, self._draining)
                        await trio.lowlevel.checkpoint()  # the drain begins before its status is shown
                    board.show(self._status())
                    with trio.move_on_after(LOOK_S):
                        await self.signals.told.wait()
        finally:
            board.clear()

    def _heed_pause(self) -> None:
        try:
            self.signals.heed(self.orders)
        except RunError as error:
            self.trouble(str(error))
        if by := self.orders.paused_by:
            self.role.shift.hold(PAUSED, f"paused by {by}")
        else:
            self.role.shift.release(PAUSED)

    async def _heed_limits(self) -> None:
        orders, troubles = self._inbox.take()
        for text in troubles:
            self.trouble(text)
        for given in orders:
            if given.was_before(self.began_ns):
                self.trouble(f"An order was not carried out: {_said(given.order)} was for a run before this one.")
            else:
                await self._change(given.order)
            given.remove()

    async def _change(self, order: Limit) -> None:
        try:
            await self.limits.change(order.key, order.value, order.by or BY_FILE)
        except UsageError as error:
            self.trouble(f"An order was not carried out: {error}")

    def _status(self) -> NodeStatus:
        return NodeStatus(
            doing=self._doing(),
            limits=self.limits.shown,
            changeable=self.limits.changeable,
            loop=self.loop(),
            reach=self.reach(),
        )

    async def _drain(self, order: Drain, scope: trio.CancelScope) -> None:
        """Finish the leases, say goodbye and end, unless `scope` is cancelled before the leases are finished."""
        within_s = None if order.deadline_ms is None else max(0.0, (order.deadline_ms - Clock.now_ms()) / 1000)
        left: int | None = None
        with scope:
            left = await self.role.drain(within_s)
        if left is None:
            return
        await self.role.leave()
        self.orders.forget_drain()
        late = "was not delivered in time and goes" if left == 1 else "were not delivered in time and go"
        others = f"{counted(left, 'lease')} {late} to other nodes"
        raise Drained(f"Drained: {others if left else 'all leases are delivered'}.")

    def _doing(self) -> str:
        if self.role.is_draining:
            return f"draining, {counted(len(self.role.holding), 'lease')} to deliver"
        shift = self.role.shift
        if shift.is_lent:
            return in_words(self.role.retry_policy.troubles) or (
                "at work" if self.role.work_client.is_up else "not connected to the learner"
            )
        why = shift.held or f"outside its hours, until {shift.turns_at}"
        return f"{why}; the engine's memory is free" if self.role.has_freed_memory else why


def _said(order: Limit) -> str:
    return as_toml(order.key, order.value) if order.key in SECTIONS else repr(order.key)
