"""Which groups are audited: all of a newcomer's, ever fewer of who has passed, never fewer than a floor.

What always holds: whether a group is audited is a function of the learner's secret, its lease and the version that made
it, so nobody can tell beforehand, nor afterwards find that it was chosen by who they are; size does not enter: of a
slow volunteer the same share is audited as of a fast one with as many audits passed. Of small shares most versions are
left alone and the others looked at more closely: weights have to be loaded for each, which costs more than some audits.
"""

from __future__ import annotations

import hmac

from protocol.core.ids import LeaseId, ManifestHash

NEWCOMER_GROUPS = 8
"""So many audits must be passed before any group is believed unseen."""

FLOOR = 0.03
"""Least share audited of anybody. A cheat of one group in five among 300, made with many versions, is then missed with
probability (1 - 0.2 x 0.03)^300 = 0.16, at a share of 5 % with 0.05; one who cheats with one version only, with 0.75 at
least, since all groups of most versions are left alone."""


def audit_share(passed: int, floor: float = FLOOR) -> float:
    """The share of a peer's groups that is audited once so many audits were passed: 1 below NEWCOMER_GROUPS, then
    falling as 1/passed, so that each doubling of the audits takes as much again of honest work."""
    return 1.0 if passed < NEWCOMER_GROUPS else max(floor, NEWCOMER_GROUPS / (passed + 1))


VERSIONS = 0.25
"""Share of versions of which anything is audited of those whose share of groups is smaller. Of a fourth, loading costs
a fourth; of ever fewer, a peer that cheats with one version in ten would be found ever later."""


def is_chosen(secret: bytes, lease: LeaseId, version: ManifestHash, share: float) -> bool:
    """Whether the group of this lease, made with that version, is one of the `share` that is audited; a larger share
    has all of a smaller's."""
    versions = max(share, VERSIONS)
    return _is_below(versions, secret, b"audited versions" + version) and _is_below(
        share / versions, secret, b"audit" + lease
    )


def _is_below(share: float, secret: bytes, word: bytes) -> bool:
    return int.from_bytes(hmac.digest(secret, word, "sha256")[:8], "big") < share * 2.0**64
