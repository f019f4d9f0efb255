"""When a peer is banned, and when the operator decides: what is written, what is refused, and who is told.

Invariants:
- Who is banned has no lease, no connection and nothing in the buffer, and the ledger says why.
- If several peers contributed turns to a group, only the banned peer's records are refused. The others' stay admitted,
  but the group is no longer used for training.
- A ban or a pardon is on disk before anybody but the buffer acts on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import trio

from learner.ledger.reputation import BAN, PARDON
from learner.trust.standing import AuditHistory, pardoned
from node.learner_role.shared.context import Service
from node.learner_role.shared.signals import PeerBanned
from node.learner_role.trust.audit_service import AuditService
from node.learner_role.trust.receipt_revisions import BANNED_REASON
from node.state.operator_orders import Ban, NoOrder, OperatorDecisions, Pardon, read_order
from protocol.core.ids import LeaseId, PeerId
from protocol.core.limits import MAX_REASON_CHARS
from protocol.work import Rule

LOOK_S = 1.0
"""Between looks for orders of the operator's."""


@dataclass(kw_only=True, eq=False)
class Bans(Service):
    """See the module's paragraph."""

    audits: AuditService

    async def convict(self, peer: PeerId, why: str, holds: Callable[[], bool] = lambda: True) -> None:
        """Something else than an audit has found out that this peer is not honest: it is banned, unless it was, or that
        `holds` no more when its turn comes."""
        async with self.audits.standings.lock:
            known = await self.audits.standings.recall(peer)
            if holds() and not known.banned:
                await self.ban(peer, replace(known, banned=why[:MAX_REASON_CHARS]))

    async def ban(self, peer: PeerId, known: AuditHistory, *, decision: str = "") -> None:
        """Ban it without an audit, for the reason in `known`; `decision`: BAN if it is the operator's. The caller holds
        the lock of the standings."""
        self.events.emit("peer_banned", peer=peer, lease=None, reason=known.banned)
        audits = self.audits
        audits.standings.note(peer, known)
        wrong = audits.withdraw(peer) | await audits.withdraw_parts(peer)
        now_ms = self.context.signing_ms()

        def write() -> dict[LeaseId, bytes]:
            own = self.ledger.trust.parts_of(peer, wrong)
            revised = audits.revisions.refusals(own, Rule.BANNED, f"its peer is banned: {known.banned}", now_ms)
            dropped = dict.fromkeys(wrong, BANNED_REASON)
            self.ledger.trust.confidence_written(peer, known, now_ms, revised, dropped, decision=decision)
            return {lease: raw for lease, (_, _, raw) in revised.items()}

        audits.revisions.announce(peer, await trio.to_thread.run_sync(write))
        self.signals.peer_banned.emit(PeerBanned(peer=peer, why=known.banned))
        self.reconsider(peer)

    async def pardon(self, peer: PeerId) -> None:
        """All that was before is forgiven. The caller holds the lock of the standings."""
        known = pardoned(await self.audits.standings.recall(peer))
        self.events.emit("peer_pardoned", peer=peer)
        self.audits.standings.note(peer, known)
        now_ms = self.context.signing_ms()
        await trio.to_thread.run_sync(
            lambda: self.ledger.trust.confidence_written(peer, known, now_ms, decision=PARDON)
        )
        self.reconsider(peer)

    def reconsider(self, peer: PeerId) -> None:
        """It was decided how the peer stands."""
        self.audits.standings.set_quota(peer)
        self.signals.peer_judged.emit(peer)
        self.state.notify()


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
