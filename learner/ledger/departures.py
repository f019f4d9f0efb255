"""Name the reasons with which the ledger ends a peer's stay, and tell which of them mean that the peer vanished.

Invariants:
- A stay without a reason is still open, or ended when the learner stopped.
- Every reason outside EXCUSED means that the connection broke or the peer timed out.
"""

from __future__ import annotations

from protocol.work import IN_GOOD_ORDER

BANNED = "banned"
OUT_OF_HOURS = "gone outside its owner's hours"
"""Its line broke, or it fell silent, while nothing was expected of it: outside its hours, or paused."""

EXCUSED = frozenset({IN_GOOD_ORDER, BANNED, OUT_OF_HOURS})
