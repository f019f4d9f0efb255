"""Hold the results of each peer's audits as the ledger has them, and put them into sentences.

Invariants:

- A ledger from before audits were recorded has no results.
- A sentence about a ban says what the ledger holds of it: when, why, and what it cost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from learner.ledger.audit_recount import ROUNDING
from learner.trust.audit_history import TrustLevel
from learner.trust.ban_evidence import History
from learner.trust.selection_test import DeliveryOutcome
from node.runtime.formatting import counted, were


class BannedBy(Enum):
    """The reason of a ban: failed audits, selective delivery, or the operator's decision."""

    AUDITS = "audits"
    SELECTION = "choosing"
    OPERATOR = "operator"


BY = {
    BannedBy.AUDITS: "by audits",
    BannedBy.SELECTION: "for selective delivery",
    BannedBy.OPERATOR: "by the operator",
}


@dataclass(frozen=True, kw_only=True)
class SelectionEvidence:
    """The groups of a peer that the learner regenerated to detect selective delivery, since its last pardon.

    `found`: by outcome (withheld or delivered), how many groups there are, how many were better for the peer than those
    that were generated beside them, and how many gained more by their version. `evidence`: natural logarithm of the
    odds against its honesty. `convicts`: it was ever enough for a ban. All are recomputed from the value of each group;
    `agrees`: the ledger's own sum is the same."""

    found: dict[DeliveryOutcome, Counter[str]]
    evidence: float
    convicts: bool
    agrees: bool


@dataclass(frozen=True, kw_only=True)
class PeerAudits:
    """The results of one peer's audits.

    `audits`: audited leases. `failed`: those that failed. `tokens`: regenerated tokens. `worst`: the largest gap among
    them, in nats. `evidence`: natural logarithm of the odds against its honesty. `banned`: the reason, "" if it is not;
    `banned_by`: the kind of reason; `banned_at_s`: when, on the report's clock. `unseen`: its rollouts that were
    trained on without an audit of their group.
    """

    standing: TrustLevel
    audits: int
    failed: int
    tokens: int
    worst: float
    evidence: float
    banned: str = ""
    banned_by: BannedBy | None = None
    banned_at_s: float | None = None
    unseen: int = 0

    @property
    def odds(self) -> float:
        """Return in how many lives an honest peer would look like this once; 1 if there is no evidence against it."""
        return math.exp(min(700.0, max(0.0, self.evidence)))


def is_same(one: History, other: History) -> bool:
    """Return whether two histories are the same except for rounding."""
    close = len(one.log_wealth) == len(other.log_wealth) and all(
        math.isclose(mine, theirs, abs_tol=ROUNDING)
        for mine, theirs in zip(one.log_wealth, other.log_wealth, strict=True)
    )
    return one.audits == other.audits and close


def bans_in_words(banned: Iterable[PeerAudits]) -> str:
    """Return how many peers were banned by what: "171 by audits, 2 by the operator"."""
    found = Counter(one.banned_by for one in banned)
    return ", ".join(f"{found[by]:,} {BY[by]}" for by in BannedBy if found[by])


def ban_in_words(name: str, audits: PeerAudits, *, judged: int, trained: int) -> str:
    """Return a sentence about a banned peer: by what it was banned, and what it cost."""
    rollouts = (
        f"{trained:,} of its {counted(judged, 'rollout')} {were(trained)} trained on"
        if trained
        else f"none of its {counted(judged, 'rollout')} was trained on"
    )
    by = {
        BannedBy.AUDITS: f"its audit number {audits.audits}",
        BannedBy.SELECTION: "the test for selective delivery",
        BannedBy.OPERATOR: "the operator",
        None: "an unknown authority",
    }[audits.banned_by]
    return f"{name} was banned by {by}: {audits.banned}. Damage: {rollouts}."
