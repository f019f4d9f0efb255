"""Limit how many notices of a kind are posted. A pure core.

Strangers cause some kinds at will: whoever brings a thousand keys is banned a thousand times. A phone must not ring as
often, and the service must not block the operator for it.

Invariants:

- At most BURST notices of a kind follow each other, then one in REFILL_MS.
- Left-out notices are counted, and the next notice of the kind says how many there were.
- The end of a run is always posted.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from node.notices.notice import MAX_TEXT_CHARS, Notice
from protocol.core.visible import one_line

BURST = 5
"""Notices of a kind at once: as many alarms as are raised together when training collapses."""

REFILL_MS = 600_000
"""Milliseconds until one more notice of a kind may follow: 144 a day."""

UNLIMITED = ("end",)


@dataclass
class _Kind:
    left: float = BURST
    at_ms: int = 0
    skipped: int = 0


@dataclass(kw_only=True)
class FloodLimit:
    """What was posted of each kind."""

    _kinds: defaultdict[str, _Kind] = field(default_factory=lambda: defaultdict(_Kind))

    def admit(self, notice: Notice) -> Notice | None:
        """Return the notice to post, with the number of those left out before; None if it is left out itself."""
        if notice.kind in UNLIMITED:
            return notice
        kind = self._kinds[notice.kind]
        kind.left = min(BURST, kind.left + max(0, notice.at_ms - kind.at_ms) / REFILL_MS)
        kind.at_ms = notice.at_ms
        if kind.left < 1:
            kind.skipped += 1
            return None
        kind.left -= 1
        skipped, kind.skipped = kind.skipped, 0
        if not skipped:
            return notice
        more = f" ({skipped} more of this kind since the last notice: see volery status.)"
        return replace(notice, text=one_line(notice.text, MAX_TEXT_CHARS - len(more)) + more)
