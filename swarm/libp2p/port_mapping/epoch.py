"""Decide from a gateway's clock whether it has forgotten its mappings.

Each answer of PCP and NAT-PMP carries the seconds since the gateway's table of mappings was last empty. If that clock
went back, or moves unlike ours, the table is gone. A pure core; times are in seconds, ours monotonic.

Specifications: RFC 6886 section 3.6, RFC 6887 section 8.5.

Invariants:

- A gateway whose clock moves with ours never counts as forgetful, however late its answers arrive.
- A gateway whose clock is more than two seconds behind what it must show always counts as forgetful.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.libp2p.port_mapping.outcomes import MappedBy

SLACK_S = 2.0
"""Seconds of tolerance in both RFCs: clocks show whole seconds, and answers take their time."""

NAT_PMP_RATE = 7 / 8
"""RFC 6886: the least rate of a gateway's clock."""

PCP_DRIFT = 1 / 16
"""RFC 6887: the fraction by which either clock may be slower than the other."""


@dataclass(kw_only=True)
class EpochWatch:
    """The clock of one gateway, as its last answer showed it."""

    protocol: MappedBy
    _epoch: int | None = None
    _heard_s: float = 0.0

    def has_forgotten(self, epoch: int, now: float) -> bool:
        """Note the clock of an answer; return whether the gateway has lost its mappings since the previous answer."""
        before, elapsed = self._epoch, max(0.0, now - self._heard_s)
        self._epoch, self._heard_s = epoch, now
        if before is None:
            return False
        if self.protocol is MappedBy.NAT_PMP:
            return epoch < before + elapsed * NAT_PMP_RATE - SLACK_S
        if epoch + 1 < before:
            return True
        moved = float(epoch - before)
        slow = elapsed + SLACK_S < moved - moved * PCP_DRIFT
        return slow or moved + SLACK_S < elapsed - elapsed * PCP_DRIFT
