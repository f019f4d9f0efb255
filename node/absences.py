"""In which words the ledger says why a stay of a peer ended, and which of them say that it vanished.

What always holds: a stay without a word went on until the learner itself ended, or still does; every word that is not
EXCUSED is about a line that broke or a peer that fell silent.
"""

from __future__ import annotations

from swarm.work.server import IN_GOOD_ORDER

BANNED = "banned"
OUT_OF_HOURS = "gone outside its owner's hours"
"""Its line broke, or it fell silent, while nothing was expected of it: outside its hours, or paused."""

EXCUSED = frozenset({IN_GOOD_ORDER, BANNED, OUT_OF_HOURS})
