"""Track how far each peer is trusted, and set its quota accordingly.

Peers that are here, or have leases under way, are in memory. For other peers, the ledger is read before anything is
written about them, so that no result is ever forgotten.

Invariants:

- While no task holds `lock`, the ledger has everything that is known here.
- A peer that is not trusted yet, or is in quarantine, has a newcomer's quota. Others have none.
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
"""Most peers whose history is kept in memory, beside those that are here."""


def ban_notice(why: str) -> str:
    """Return the message for a banned peer that comes back."""
    said = f"This key is banned from the swarm: {why}. If that is wrong, ask the operator to check the evidence."
    return said[:MAX_REASON_CHARS]


@dataclass(kw_only=True, eq=False)
class PeerStandings(Service):
    """The histories of peers. `audits`: whether peers are audited. The operator's bans hold in either case."""

    quarantine: ReputationService
    audits: bool = True
    lock: trio.Lock = field(default_factory=trio.Lock)
    """Held while a peer's history is recalled or written, or while the agenda is rebuilt."""
    _known: dict[PeerId, AuditHistory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.signals.quarantine_changed.subscribe(lambda _: self.reconsider())

    async def recall(self, peer: PeerId) -> AuditHistory:
        """Return a peer's history, from the ledger if it is not in memory. The caller holds `lock`."""
        if (known := self._known.get(peer)) is None:
            found = await trio.to_thread.run_sync(self.ledger.trust.confidence_of, [peer])
            known = self._known[peer] = found.get(peer, AuditHistory())
        return known

    async def recall_banned(self, peer: PeerId) -> str:
        """Return why a joining peer is banned, empty if it is not. The answer holds until the caller's next await."""
        if peer not in self._known:  # it was forgotten because others came meanwhile
            async with self.lock:
                await self.recall(peer)
        return self._known[peer].banned

    def remember(self, peer: PeerId) -> AuditHistory:
        """Return the history of a peer that is here or has leases under way. Not for a history that is then written."""
        return self._known.get(peer, AuditHistory())

    def note(self, peer: PeerId, known: AuditHistory) -> None:
        """Set a peer's history. The caller holds `lock`, and writes it."""
        self._known[peer] = known

    def note_read(self, found: Mapping[PeerId, AuditHistory]) -> None:
        """Note histories that were read from the ledger."""
        self._known = {**found, **self._known}

    def forget_others(self, busy: Collection[PeerId]) -> list[PeerId]:
        """If there are too many, forget and return peers that are neither here nor `busy` nor have leases under way.

        The caller holds `lock`.
        """
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
        """Set all quotas again, because the peers in quarantine changed."""
        for peer in self.state.present:
            self.set_quota(peer)
        self.state.notify()

    def set_quota(self, peer: PeerId) -> None:
        """Set the quota of a peer, if it is here."""
        if peer in self.state.present:
            known = self.remember(peer)
            is_held = self.audits and (known.waits or self.quarantine.is_quarantined(peer))
            newcomers = NEWCOMER_GROUPS * self.capacity.leasing.terms.group_size
            self.scheduler.worker(peer).quota = newcomers if is_held else math.inf
