"""Bound what is trained on of one peer since its last audit.

A pure core. Chance decides which groups of a trusted peer are audited, and training does not wait for these audits. So
when audits come late, or a peer delivers a burst, much could be trained on before an audit looks at anything. This core
counts the groups of each peer that were believed since the newest of its groups that passed an audit. When there are as
many as its `credit`, the next group waits for its audit; from half of that on the next group is audited at once.

Invariants:
- No more than `credit` groups of a peer are believed after the newest one that passed, however late audits are.
- An audit that passes clears what was delivered before its group, and nothing that came later.
- What a peer may have unseen grows with the audits that it has passed, as the share that is audited falls.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from learner.trust.audit_history import NEWCOMER_GROUPS
from protocol.core.ids import LeaseId, PeerId


def credit(passed: int) -> int:
    """Groups of a trusted peer that may be believed one after the other without a look at any: as many as its share
    lets by between two audits, on average (`learner.trust.audit_history`), so that this costs few audits beside those
    that chance chooses."""
    return max(1, passed // NEWCOMER_GROUPS)


@dataclass(kw_only=True)
class Exposure:
    """See the module's paragraph."""

    _since: dict[PeerId, dict[LeaseId, bool]] = field(default_factory=dict)
    """Of each peer its groups since the last that passed, in the order of their coming, and whether each was believed
    before its audit. Bounded: a peer has no more than its credit believed, and what waits is on the agenda."""

    def unseen(self, peer: PeerId) -> int:
        """Groups of the peer that were believed since the newest that passed an audit."""
        return sum(self._since.get(peer, {}).values())

    def must_wait(self, peer: PeerId, passed: int) -> bool:
        """Whether the next group of a trusted peer is trained on only after its audit."""
        return self.unseen(peer) >= credit(passed)

    def is_due(self, peer: PeerId, passed: int) -> bool:
        """Whether the next group should be audited, so that the one after need not wait."""
        return 2 * (self.unseen(peer) + 1) > credit(passed)

    def came(self, peer: PeerId, lease: LeaseId, *, believed: bool) -> None:
        """A group came, and was `believed` without an audit, or waits for one."""
        self._since.setdefault(peer, {})[lease] = believed

    def passed(self, peer: PeerId, lease: LeaseId) -> None:
        """A group passed its audit: the peer was looked at, up to that group."""
        since = self._since.get(peer, {})
        if lease not in since:
            return  # a later one has passed already
        while next(iter(since)) != lease:
            del since[next(iter(since))]
        del since[lease]
        if not since:
            del self._since[peer]

    def gone(self, peer: PeerId, lease: LeaseId) -> None:
        """The group is not trained on, and its audit will not be made."""
        self._since.get(peer, {}).pop(lease, None)

    def forget(self, peer: PeerId) -> None:
        """Nothing more is to be counted of the peer."""
        self._since.pop(peer, None)

    def clear(self) -> None:
        """Another chain is in place; what is taken up again comes again."""
        self._since.clear()
