"""Which groups are audited: all of a newcomer's, ever fewer of who has passed, never fewer than a floor.

What always holds: whether a group is audited is a function of the learner's secret and its lease, so nobody can tell
beforehand, nor afterwards find that it was chosen by who they are; size does not enter: of a slow volunteer the same
share is audited as of a fast one with as many audits passed.
"""

from __future__ import annotations

import hmac

from protocol.ids import LeaseId

NEWCOMER_GROUPS = 8
"""So many audits must be passed before any group is believed unseen."""

FLOOR = 0.03
"""Least share audited of anybody. A cheat of one group in five among 300 is then missed with probability
(1 - 0.2 x 0.03)^300 = 0.16, at a share of 5 % with 0.05."""


def audit_share(passed: int, floor: float = FLOOR) -> float:
    """The share of a peer's groups that is audited once so many audits were passed: 1 below NEWCOMER_GROUPS, then
    falling as 1/passed, so that each doubling of the audits takes as much again of honest work."""
    return 1.0 if passed < NEWCOMER_GROUPS else max(floor, NEWCOMER_GROUPS / (passed + 1))


def is_chosen(secret: bytes, lease: LeaseId, share: float) -> bool:
    """Whether the group of this lease is one of the `share` that is audited; a larger share has all of a smaller's."""
    word = int.from_bytes(hmac.digest(secret, b"audit" + lease, "sha256")[:8], "big")
    return word < share * 2.0**64
