"""Bound how much is trained on of one peer since its last audit.

A pure core. Chance decides which groups of a trusted peer are audited, and training does not wait for these audits. So
when audits come late, or a peer delivers a burst, much could be trained on without any audit. This core counts the
groups of each peer that were accepted without an audit since the newest of its groups that passed one. When there are
as many as its `credit`, the next group waits for its audit. From half of that on, the next group is audited at once.

Invariants:

- At most `credit` groups of a peer are accepted unaudited after the newest one that passed, however late audits are.
- An audit that passes clears what was delivered before its group, and nothing that came later.
- The credit of a peer grows with the audits that it has passed, as the share that is audited falls.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from learner.trust.audit_history import NEWCOMER_GROUPS
from protocol.core.ids import LeaseId, PeerId


def credit(passed: int) -> int:
    """Return how many groups of a trusted peer may be accepted one after the other without an audit: as many as lie
    between two audits on average at its share (`learner.trust.audit_history`). So this adds few audits to those that
    chance chooses."""
    return max(1, passed // NEWCOMER_GROUPS)


@dataclass(kw_only=True)
class Exposure:
    """The unaudited groups of all peers."""

    _since: dict[PeerId, dict[LeaseId, bool]] = field(default_factory=dict)
    """For each peer, its groups since the last that passed, in the order of arrival, and whether each was accepted
    before its audit. It is bounded: a peer has at most its credit accepted, and groups that wait are on the agenda."""

    def unseen(self, peer: PeerId) -> int:
        """Return how many groups of the peer were accepted unaudited since the newest that passed an audit."""
        return sum(self._since.get(peer, {}).values())

    def must_wait(self, peer: PeerId, passed: int) -> bool:
        """Return whether the next group of a trusted peer is trained on only after its audit."""
        return self.unseen(peer) >= credit(passed)

    def is_due(self, peer: PeerId, passed: int) -> bool:
        """Return whether the next group should be audited, so that the one after need not wait."""
        return 2 * (self.unseen(peer) + 1) > credit(passed)

    def came(self, peer: PeerId, lease: LeaseId, *, believed: bool) -> None:
        """Record that a group came, and whether it was accepted without an audit (`believed`) or waits for one."""
        self._since.setdefault(peer, {})[lease] = believed

    def passed(self, peer: PeerId, lease: LeaseId) -> None:
        """Record that a group passed its audit, which clears the peer's groups up to that one."""
        since = self._since.get(peer, {})
        if lease not in since:
            return  # a later one has passed already
        while next(iter(since)) != lease:
            del since[next(iter(since))]
        del since[lease]
        if not since:
            del self._since[peer]

    def gone(self, peer: PeerId, lease: LeaseId) -> None:
        """Record that the group is not trained on, and will not be audited."""
        self._since.get(peer, {}).pop(lease, None)

    def forget(self, peer: PeerId) -> None:
        """Stop counting for this peer."""
        self._since.pop(peer, None)

    def clear(self) -> None:
        """Start again, since another chain is in place; groups that are taken up again come again."""
        self._since.clear()
