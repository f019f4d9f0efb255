"""How far each peer is trusted, and how much of its work may therefore be under way.

Peers that are here, or have leases under way, are known. Of others the ledger is asked before anything is written of
them, so that nothing that was found is ever forgotten.

Invariants:
- While nobody holds `lock`, the ledger knows as much as is known here.
- A peer that is not trusted yet, or is in quarantine, has a newcomer's quota; others have none.
- The trio thread never waits for the disk.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import trio

from learner.trust.audit_history import NEWCOMER_GROUPS, AuditHistory
from node.learner_role.shared.context import Service
from node.learner_role.trust.reputation_service import ReputationService
from protocol.core.ids import PeerId
from protocol.core.limits import MAX_REASON_CHARS

PEERS_REMEMBERED = 4096
"""Peers of whom is remembered what the ledger knows, beside those that are here."""


def ban_notice(why: str) -> str:
    """What a banned peer is told when it comes back."""
    said = f"This key is banned from the swarm: {why}. If that is wrong, ask the operator to look at the evidence."
    return said[:MAX_REASON_CHARS]


@dataclass(kw_only=True, eq=False)
class PeerStandings(Service):
    """See the module's paragraph. `audits`: whether anybody is audited; bans of the operator's hold either way."""

    quarantine: ReputationService
    audits: bool = True
    lock: trio.Lock = field(default_factory=trio.Lock)
    """Held while what is known of a peer is recalled or written, or all that waits is given anew."""
    _known: dict[PeerId, AuditHistory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.signals.quarantine_changed.subscribe(lambda _: self.reconsider())

    async def recall(self, peer: PeerId) -> AuditHistory:
        """What is known of a peer, from the ledger if it is not remembered. The caller holds `lock`."""
        if (known := self._known.get(peer)) is None:
            found = await trio.to_thread.run_sync(self.ledger.trust.confidence_of, [peer])
            known = self._known[peer] = found.get(peer, AuditHistory())
        return known

    async def recall_banned(self, peer: PeerId) -> str:
        """Why a peer that is about to be here is banned, empty if it is not. Nothing happens between the answer and the
        caller's next await."""
        if peer not in self._known:  # others came meanwhile
            async with self.lock:
                await self.recall(peer)
        return self._known[peer].banned

    def remember(self, peer: PeerId) -> AuditHistory:
        """What is known of a peer that is here or has leases under way; nothing of it is to be written."""
        return self._known.get(peer, AuditHistory())

    def note(self, peer: PeerId, known: AuditHistory) -> None:
        """From now on this is known of the peer. The caller holds `lock`, and writes it."""
        self._known[peer] = known

    def note_read(self, found: Mapping[PeerId, AuditHistory]) -> None:
        """The ledger says so of these peers."""
        self._known = {**found, **self._known}

    def forget_others(self, busy: Collection[PeerId]) -> list[PeerId]:
        """Forget, and return, peers that are neither here nor `busy` nor have anything under way, when there are too
        many. The caller holds `lock`."""
        if len(self._known) <= PEERS_REMEMBERED + len(self.state.present):
            return []
        pending = (
            self.capacity.leasing.pending
        )  # a delivery that is being judged is pending until its audit is decided on
        here = self.state.session_of
        gone = [one for one in self._known if here(one) is None and one not in busy and not pending(one)]
        for one in gone:
            del self._known[one]
        return gone

    def reconsider(self) -> None:
        """Who is in quarantine has changed."""
        for peer in self.state.present:
            self.set_quota(peer)
        self.state.notify()

    def set_quota(self, peer: PeerId) -> None:
        """Say how much of its work may be under way, if it is here."""
        if peer in self.state.present:
            known = self.remember(peer)
            is_held = self.audits and (known.waits or self.quarantine.is_quarantined(peer))
            newcomers = NEWCOMER_GROUPS * self.capacity.leasing.terms.group_size
            self.scheduler.worker(peer).quota = newcomers if is_held else math.inf
