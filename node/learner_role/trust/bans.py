"""Ban and pardon peers: write the decision, reject records, and notify.

A peer that an audit convicts, by the threshold of `learner.trust.ban_evidence`, is banned together with the record of
the audit (`node.learner_role.trust.audit_service`). A peer is banned here if it delivered selectively
(`node.learner_role.trust.selection_service`), or if the operator decides so
(`node.learner_role.trust.operator_service`).

Invariants:

- A banned peer has no lease, no connection and nothing in the buffer, and the ledger has the reason.
- If several peers contributed turns to a group, only the banned peer's records are rejected. The others' stay admitted,
  but the group is no longer used for training.
- A ban or a pardon is on disk before anything but the buffer acts on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import trio

from learner.ledger.reputation import PARDON
from learner.trust.audit_history import AuditHistory, pardoned
from node.learner_role.shared.context import Service
from node.learner_role.shared.signals import PeerBanned
from node.learner_role.trust.audit_service import AuditService
from node.learner_role.trust.receipt_revisions import BANNED_REASON, banned_detail
from protocol.core.ids import LeaseId, PeerId
from protocol.core.limits import MAX_REASON_CHARS
from protocol.work import Rule


@dataclass(kw_only=True, eq=False)
class Bans(Service):
    """Bans and pardons, with all their consequences."""

    audits: AuditService

    async def convict(self, peer: PeerId, why: str, holds: Callable[[], bool] = lambda: True) -> None:
        """Ban a peer that was found dishonest by something else than an audit.

        Does nothing if the peer is banned already, or if `holds` returns False when the ban's turn comes.
        """
        async with self.audits.standings.lock:
            known = await self.audits.standings.recall(peer)
            if holds() and not known.banned:
                await self.ban(peer, replace(known, banned=why[:MAX_REASON_CHARS]))

    async def ban(self, peer: PeerId, known: AuditHistory, *, decision: str = "") -> None:
        """Ban a peer without an audit, for the reason in `known`. The caller holds the lock of the standings.

        `decision`: BAN if the operator decided it.
        """
        self.events.emit("peer_banned", peer=peer, lease=None, reason=known.banned)
        audits = self.audits
        audits.standings.note(peer, known)
        wrong = audits.withdraw(peer) | await audits.withdraw_parts(peer)
        others = audits.revisions.takes_back(peer)
        now_ms = self.context.signing_ms()

        def write() -> dict[LeaseId, bytes]:
            own = {*self.ledger.trust.parts_of(peer, wrong), *others}
            revised = audits.revisions.rejections(own, Rule.BANNED, banned_detail(known.banned), now_ms)
            dropped = dict.fromkeys(wrong, BANNED_REASON)
            self.ledger.trust.confidence_written(peer, known, now_ms, revised, dropped, decision=decision)
            return {lease: raw for lease, (_, _, raw) in revised.items()}

        audits.revisions.announce(peer, await trio.to_thread.run_sync(write))
        self.signals.peer_banned.emit(PeerBanned(peer=peer, why=known.banned))
        self.reconsider(peer)

    async def pardon(self, peer: PeerId) -> None:
        """Pardon a peer, which forgives everything before. The caller holds the lock of the standings."""
        known = pardoned(await self.audits.standings.recall(peer))
        self.events.emit("peer_pardoned", peer=peer)
        self.audits.standings.note(peer, known)
        now_ms = self.context.signing_ms()
        await trio.to_thread.run_sync(
            lambda: self.ledger.trust.confidence_written(peer, known, now_ms, decision=PARDON)
        )
        self.reconsider(peer)

    def reconsider(self, peer: PeerId) -> None:
        """Update a peer's quota and notify others after a decision about the peer."""
        self.audits.standings.set_quota(peer)
        self.signals.peer_judged.emit(peer)
        self.state.notify()
