"""Keep what audits have shown of one peer so far, and decide how its next group is treated.

Pure. A group that fails its audit is rejected and makes its peer a newcomer again: the soft strike. Only the evidence
of all audits together convicts (`learner.trust.ban_evidence`): the hard strike. The size of a peer does not matter.

Invariants:

- A newcomer's groups are trained on only after each of them was audited, until enough have passed. So are those of a
  peer with some evidence against it, until honest audits have reduced that.
- A group that passes its own audit is not trained on if all audits of its peer together speak against it. Otherwise a
  cheat could use one new key after the other until each is detected. Such a group still counts for its peer.
- A peer that was once convicted stays so until the operator decides otherwise.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from learner.trust.ban_evidence import (
    Audited,
    History,
    Margin,
    Measure,
    is_convicted,
    log_evidence,
    log_ratio,
    with_audit,
)
from protocol.core.ids import LeaseId, ManifestHash

NEWCOMER_GROUPS = 8
"""Audits that must be passed before any group is trained on without an audit."""

FLOOR = 0.03
"""Least share of a peer's groups that is audited. If a peer cheats in one group in five among 300, made with many
versions, it is then missed with probability (1 - 0.2 x 0.03)^300 = 0.16; with a share of 5 %, with 0.05. If it cheats
with one version only, it is missed with at least 0.75, since all groups of most versions are left alone."""

VERSIONS = 0.25
"""Least share of versions that have any audits, for peers whose share of groups is smaller. With a fourth of the
versions, loading them costs a fourth. With fewer, a peer that cheats with one version in ten would be found later and
later."""


SUSPECT_EVIDENCE = math.log(100)
"""Evidence at which a peer is called a suspect: an honest peer ever has it with probability 0.01 at most."""

SUSPICION_EVIDENCE = math.log(10)
"""Evidence at which all groups of a trusted peer wait for their audit, and none that waited is trained on. An honest
peer ever has it with probability 0.1 at most. Its work counts nevertheless, and one or two honest audits reduce the
evidence."""

NEWCOMER_SUSPICION = 0.0
"""Evidence above which nothing of a newcomer is trained on: its audits speak against it rather than for it. That is so
after 2.5 % of a newcomer's audits if an honest machine's arithmetic is as far off as the margins allow
(`benchmarks/drills/lifetimes.py`). For a cheat that names a version near the true one, it is so from its first groups
on, long before the evidence convicts."""

SUSPICION_REASON = "doubt"
"""Why such a group is dropped, as stored in the ledger."""

GROUP_ERROR = 1e-4
"""Largest probability that an honest group fails its audit. It costs that group, and eight audits."""


UNHEARD = History()


class TrustLevel(Enum):
    """The trust level of a peer. The value is its name in the ledger, events and reports."""

    NEWCOMER = "newcomer"
    TRUSTED = "trusted"
    SUSPECT = "suspect"
    BANNED = "banned"


@dataclass(frozen=True, kw_only=True)
class AuditHistory:
    """The audits of one peer. `passed` counts those passed since the peer came, or since one failed; `failed` counts
    all that failed. `history` is the evidence of all. `banned` is why the peer is banned, "" if it is not."""

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
        is_new = self.passed < NEWCOMER_GROUPS or evidence >= SUSPICION_EVIDENCE
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
    """Return whether the group of this lease, made with that version, is audited. `odd`: a cheap check of the group
    asks for an audit."""
    return known.waits or odd or is_chosen(secret, lease, version, audit_share(known.passed, floor))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one audit: whether the group passed, and whether its peer is convicted, or suspected, after it."""

    passed: bool
    convicted: bool
    suspected: bool
    detail: str


def after(known: AuditHistory, audited: Audited, margins: Sequence[Margin]) -> tuple[AuditHistory, Finding]:
    """Return the audit history with one more audit, and the result of that audit."""
    history = with_audit(known.history, audited, margins)
    alone = log_evidence(with_audit(UNHEARD, audited, margins))
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
    suspected = found.waits and log_evidence(history) > NEWCOMER_SUSPICION  # SUSPICION_EVIDENCE is above that
    return found, Finding(passed=passed, convicted=convicted, suspected=suspected, detail=detail)


def pardoned(known: AuditHistory) -> AuditHistory:
    """Return the history after the operator takes a ban back: the peer starts again, and what was counted stays
    counted."""
    return replace(known, passed=0, history=UNHEARD, banned="")


def _detail(audited: Audited, margins: Sequence[Margin]) -> str:
    """Return what was measured and what is allowed, at the margin that says most."""
    counted, margin = max(zip(audited.counts, margins, strict=True), key=lambda pair: log_ratio(*pair))
    match margin.measure:
        case Measure.GAP:
            off = f"{counted.above} of {counted.trials} tokens (at most one for each context)"
            wrong = "are not what the seeded sampler draws with the version named"
            where = f", where it leads by {margin.leads}" if margin.is_band else ""
            what = f"{off} {wrong} (more than {margin.above:g} nats below it{where})"
        case Measure.LOGPROB:
            wrong = f"log probabilities are more than {margin.above:g} nats from those of the version named"
            what = f"in {counted.above} of {counted.trials} contexts {wrong}"
        case Measure.MEAN:
            wrong = f"log probabilities are {margin.above:g} nats and more from those of the version named, on average"
            return f"the {audited.tokens} {wrong}, as {margin.rate:.0%} of all audits may be"
    return f"{what}, where {100 * margin.rate:g}% are allowed"


def audit_share(passed: int, floor: float = FLOOR) -> float:
    """Return the share of a peer's groups that is audited after this many passed audits: 1 below NEWCOMER_GROUPS, then
    falling as 1/passed, and never below `floor`. So each doubling of the audits takes as much honest work again. The
    speed of the peer does not matter."""
    return 1.0 if passed < NEWCOMER_GROUPS else max(floor, NEWCOMER_GROUPS / (passed + 1))


def is_chosen(secret: bytes, lease: LeaseId, version: ManifestHash, share: float) -> bool:
    """Return whether the group of this lease, made with that version, belongs to the `share` that is audited; a larger
    share contains a smaller one. The choice uses the learner's secret, so no peer can predict it, nor later claim that
    a group was chosen for its contents.

    At small shares, most versions are left alone and the others are audited more: weights have to be loaded for each
    version, which costs more than some audits.
    """
    versions = max(share, VERSIONS)
    return _is_below(versions, secret, b"audited versions" + version) and _is_below(
        share / versions, secret, b"audit" + lease
    )


def is_score_audited(known: AuditHistory, secret: bytes, lease: LeaseId, *, floor: float = FLOOR) -> bool:
    """Return whether the scores that a teacher delivered for this lease are audited. It is as `is_audited`, but a
    teacher's weights stay, so every lease costs the same to audit."""
    return known.waits or _is_below(audit_share(known.passed, floor), secret, b"audit of scores" + lease)


def _is_below(share: float, secret: bytes, word: bytes) -> bool:
    return int.from_bytes(hmac.digest(secret, word, "sha256")[:8], "big") < share * 2.0**64
