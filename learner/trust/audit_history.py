"""What audits have shown of one peer so far, and how its next group is treated therefore.

Pure. What always holds: a newcomer's groups are trained on only after each of them was audited, until enough have
passed; so are those of a peer against whom there is some evidence, until honest audits have taken it back. What passes
its own audit is not trained on where all audits of its peer together speak against it, or who comes with one key after
the other would be believed until each is found; it counts for its peer all the same. Who was once convicted stays so
until the operator says otherwise. Size does not enter. A group that fails is refused and puts its peer back among the
newcomers, which is the soft strike; only the evidence of all audits together convicts
(`learner.trust.ban_evidence`), which is the hard one.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from learner.trust.ban_evidence import Audited, History, Margin, Measure, heard, is_convicted, log_evidence, log_ratio
from protocol.core.ids import LeaseId, ManifestHash

NEWCOMER_GROUPS = 8
"""So many audits must be passed before any group is believed unseen."""

FLOOR = 0.03
"""Least share audited of anybody. A cheat of one group in five among 300, made with many versions, is then missed with
probability (1 - 0.2 x 0.03)^300 = 0.16, at a share of 5 % with 0.05; one who cheats with one version only, with 0.75 at
least, since all groups of most versions are left alone."""

VERSIONS = 0.25
"""Share of versions of which anything is audited of those whose share of groups is smaller. Of a fourth, loading costs
a fourth; of ever fewer, a peer that cheats with one version in ten would be found ever later."""


SUSPECT_EVIDENCE = math.log(100)
"""Evidence from which on a peer is called a suspect: an honest peer ever has it with probability 0.01 at most."""

DOUBT_EVIDENCE = math.log(10)
"""Evidence from which on everything of a trusted peer waits for its audit, and nothing that waited is trained on: an
honest peer ever has it with probability 0.1 at most, what it made counts all the same, and an honest audit or two take
it back."""

NEWCOMER_DOUBT = 0.0
"""Evidence above which nothing of a newcomer is trained on: its audits speak against it rather than for it. That is so
after 2.5 % of a newcomer's audits where an honest machine's arithmetic is as far off as the margins allow
(`benchmarks/drills/lifetimes.py`), and of a cheat who names a version that is near the true one from its first groups
on, long before the evidence convicts."""

DOUBT_REASON = "doubt"
"""Why such a group is dropped."""

GROUP_ERROR = 1e-4
"""Probability at most that an honest group fails its audit. It costs that group, and eight audits."""


UNHEARD = History()


class TrustLevel(Enum):
    """How a peer stands. The value is its name in the ledger, events and reports."""

    NEWCOMER = "newcomer"
    TRUSTED = "trusted"
    SUSPECT = "suspect"
    BANNED = "banned"


@dataclass(frozen=True, kw_only=True)
class AuditHistory:
    """`passed`: audits passed since the peer came, or since one failed; `failed`: those that did, ever; `history`: the
    evidence of all; `banned`: why the peer is banned, "" if it is not."""

    passed: int = 0
    failed: int = 0
    history: History = UNHEARD
    banned: str = ""

    @property
    def standing(self) -> TrustLevel:
        if self.banned:
            return TrustLevel.BANNED
        if (evidence := log_evidence(self.history)) >= SUSPECT_EVIDENCE:
            return TrustLevel.SUSPECT
        is_new = self.passed < NEWCOMER_GROUPS or evidence >= DOUBT_EVIDENCE
        return TrustLevel.NEWCOMER if is_new else TrustLevel.TRUSTED

    @property
    def waits(self) -> bool:
        """Whether its groups are trained on only after their audit."""
        return self.standing is not TrustLevel.TRUSTED

    @property
    def share(self) -> float:
        """The share of its groups that is audited, at the lowest floor."""
        return 1.0 if self.waits else audit_share(self.passed)


def is_audited(
    known: AuditHistory,
    secret: bytes,
    lease: LeaseId,
    version: ManifestHash,
    *,
    floor: float = FLOOR,
    odd: bool = False,
) -> bool:
    """Whether the group of this lease, made with that version, is audited. `odd`: something cheap to see about it asks
    for a look."""
    return known.waits or odd or is_chosen(secret, lease, version, audit_share(known.passed, floor))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one audit came to: whether the group passed, and whether its peer is convicted, or doubted, with it."""

    passed: bool
    convicted: bool
    doubted: bool
    detail: str


def after(known: AuditHistory, audited: Audited, margins: Sequence[Margin]) -> tuple[AuditHistory, Finding]:
    """The confidence with one more audit, and what that audit came to."""
    history = heard(known.history, audited, margins)
    alone = log_evidence(heard(UNHEARD, audited, margins))
    convicted = is_convicted(history)
    passed = alone < -math.log(GROUP_ERROR) and not convicted
    detail = "" if passed else _detail(audited, margins)
    found = replace(
        known,
        passed=known.passed + 1 if passed else 0,
        failed=known.failed + (not passed),
        history=history,
        banned=known.banned or (detail if convicted else ""),
    )
    doubted = found.waits and log_evidence(history) > NEWCOMER_DOUBT  # whom DOUBT_EVIDENCE makes wait is above that
    return found, Finding(passed=passed, convicted=convicted, doubted=doubted, detail=detail)


def pardoned(known: AuditHistory) -> AuditHistory:
    """The operator takes a ban back: the peer begins anew, and what was counted stays counted."""
    return replace(known, passed=0, history=UNHEARD, banned="")


def _detail(audited: Audited, margins: Sequence[Margin]) -> str:
    """Measured against allowed, at the margin that says most."""
    counted, margin = max(zip(audited.counts, margins, strict=True), key=lambda pair: log_ratio(*pair))
    match margin.measure:
        case Measure.GAP:
            off = f"{counted.above} of {counted.trials} tokens (of those after one text one counts)"
            wrong = "are not what the seeded sampler draws with the version named"
            where = f", where it leads by {margin.leads}" if margin.is_band else ""
            what = f"{off} {wrong} (more than {margin.above:g} nats below it{where})"
        case Measure.LOGPROB:
            wrong = f"log probabilities are more than {margin.above:g} nats from those of the version named"
            what = f"in {counted.above} of {counted.trials} contexts {wrong}"
        case Measure.MEAN:
            wrong = f"log probabilities are {margin.above:g} nats and more from those of the version named, on average"
            return f"the {audited.tokens} {wrong}, as {margin.rate:.0%} of all audits may be"
    return f"{what}, where {100 * margin.rate:g}% may be"


def audit_share(passed: int, floor: float = FLOOR) -> float:
    """The share of a peer's groups that is audited once so many audits were passed: 1 below NEWCOMER_GROUPS, then
    falling as 1/passed, so that each doubling of the audits takes as much again of honest work, and never below
    `floor`. Size does not enter: it is the same for a slow volunteer and a fast one.
    """
    return 1.0 if passed < NEWCOMER_GROUPS else max(floor, NEWCOMER_GROUPS / (passed + 1))


def is_chosen(secret: bytes, lease: LeaseId, version: ManifestHash, share: float) -> bool:
    """Whether the group of this lease, made with that version, is of the `share` that is audited; a larger share has
    all of a smaller's. By the learner's secret, so that no peer can tell beforehand, nor find afterwards that it was
    chosen for what it is. At small shares most versions are left alone and the others are looked at more closely:
    weights have to be loaded for each, which costs more than some audits.
    """
    versions = max(share, VERSIONS)
    return _is_below(versions, secret, b"audited versions" + version) and _is_below(
        share / versions, secret, b"audit" + lease
    )


def is_score_audited(known: AuditHistory, secret: bytes, lease: LeaseId, *, floor: float = FLOOR) -> bool:
    """Whether what a teacher said by this lease is audited: as `is_audited`, but that a teacher's weights stay, so that
    none of its leases costs more to look at than another."""
    return known.waits or _is_below(audit_share(known.passed, floor), secret, b"audit of scores" + lease)


def _is_below(share: float, secret: bytes, word: bytes) -> bool:
    return int.from_bytes(hmac.digest(secret, word, "sha256")[:8], "big") < share * 2.0**64
