"""What audits found of each peer, read from the ledger, and in sentences.

What always holds: a ledger of before audits were written tells of none; what is said of a ban is what the ledger holds
of it: when, why, and what it cost.
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
    """Whose doing a ban is: what its audits found, what the groups were worth that it may have chosen, the operator."""

    AUDITS = "audits"
    CHOOSING = "choosing"
    OPERATOR = "operator"


BY = {
    BannedBy.AUDITS: "by audits",
    BannedBy.CHOOSING: "by what they chose",
    BannedBy.OPERATOR: "by the operator",
}


@dataclass(frozen=True, kw_only=True)
class Choosing:
    """The groups of a peer that it may have chosen, and that were drawn by the learner, since it was last pardoned: of
    those that it withheld and of those that it delivered how many there are, and how many were better for it than what
    was drawn beside them, or gained more by their version. `evidence` is the logarithm of that against its honesty;
    `convicts`: that was ever enough for a ban. All are reckoned anew from what each group was worth; `agrees`: the
    ledger's own sum is the same."""

    found: dict[DeliveryOutcome, Counter[str]]
    evidence: float
    convicts: bool
    agrees: bool


@dataclass(frozen=True, kw_only=True)
class PeerAudits:
    """What audits found of one peer.

    `audits` made of its leases, of which `failed` failed; `tokens` that were drawn again, `worst` the largest gap of
    them in nats; `evidence` the logarithm of that against its honesty. `banned`: why, "" if it is not, `banned_by` what
    and `banned_at_s` when, on the report's clock. `unseen`: rollouts of it that were trained on without an audit of
    their group.
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
        """How rarely an honest peer would look like this: once in so many lives, 1 for whom nothing speaks against."""
        return math.exp(min(700.0, max(0.0, self.evidence)))


def is_same(one: History, other: History) -> bool:
    """Whether two histories are the same but for rounding."""
    close = len(one.log_wealth) == len(other.log_wealth) and all(
        math.isclose(mine, theirs, abs_tol=ROUNDING)
        for mine, theirs in zip(one.log_wealth, other.log_wealth, strict=True)
    )
    return one.audits == other.audits and close


def bans_in_words(banned: Iterable[PeerAudits]) -> str:
    """How many peers what has banned: "171 by audits, 2 by the operator"."""
    found = Counter(one.banned_by for one in banned)
    return ", ".join(f"{found[by]:,} {BY[by]}" for by in BannedBy if found[by])


def ban_in_words(name: str, audits: PeerAudits, *, judged: int, trained: int) -> str:
    """What happened to a peer that is banned: by what, and what it cost."""
    rollouts = (
        f"{trained:,} of its {counted(judged, 'rollout')} {were(trained)} trained on"
        if trained
        else f"none of its {counted(judged, 'rollout')} was trained on"
    )
    by = {
        BannedBy.AUDITS: f"its audit number {audits.audits}",
        BannedBy.CHOOSING: "what it chose",
        BannedBy.OPERATOR: "the operator",
        None: "nobody",
    }[audits.banned_by]
    return f"{name} was banned by {by}: {audits.banned}. Damage: {rollouts}."
