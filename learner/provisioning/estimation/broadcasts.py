"""Measure how long a version travels: from the end of its training step until enough peers use it or a newer one.

Pure. How long the source is busy with one version follows from how well peers keep up, and not from T_bcast. Several
versions can be under way one behind the other; T_bcast is the time until one has arrived.

Invariants:

- A version concerns the peers that were here when it was published, had a version in service (or no peer had), and are
  still here. So a newcomer's first download is no broadcast, and a peer that left is no longer waited for.
- T_bcast ends when a share QUORUM of the active ones of these peers has that version or a newer one. It lasts as long
  as the last of them took.
- A version that was overtaken before that counts with the newer one's arrival, since that is when the peers' rollouts
  stopped being too old for it. Until then it is not counted at all.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from learner.provisioning.estimation.estimates import Estimate, Recent
from learner.provisioning.model.capacity import QUORUM

UNDER_WAY = 2
"""Versions that a learner makes at a time, between snapshot and announcement: one is exported while the one before is
signed. So versions keep up with training if making one takes at most this many publication periods."""

VERSIONS = 32
"""Versions remembered that some peer still lacks. A peer that is further behind has stopped following."""

_ROUNDING = 1e-9
"""Tolerance for rounding: 11 peers times QUORUM is 10."""


@dataclass(slots=True)
class _Broadcast:
    published_s: float
    audience: set[str]
    """The active peers; a share QUORUM of them must have it."""
    waiting: set[str]
    """The peers that lack it, active or not."""
    took_s: dict[str, float] = field(default_factory=dict)
    is_settled: bool = False

    def settle(self) -> float | None:
        """Return the seconds until the quorum had it, the first time that it has; else None."""
        needed = math.ceil(QUORUM * len(self.audience) - _ROUNDING)
        if self.is_settled or needed == 0 or len(self.took_s) < needed:
            return None
        self.is_settled = True
        return sorted(self.took_s.values())[needed - 1]


class BroadcastTracker:
    """The versions that are under way, and how long those before took."""

    def __init__(self) -> None:
        self._under_way: dict[int, _Broadcast] = {}
        self._has: dict[str, int] = {}
        self._since_s: dict[str, float] = {}
        self._broadcasts = Recent()
        self._jumps = Recent()
        self._gaps_s = Recent()

    @property
    def broadcast_s(self) -> Estimate | None:
        """T_bcast: the median over the last versions that the quorum reached."""
        return self._broadcasts.median()

    def source_s(self, kappa: int, train_s: float) -> float | None:
        """Return how many seconds the source is busy with one version, at most; None before anything is known of
        T_bcast.

        If peers install every published version, the source is done with one when the next one comes. Else it begins
        one version for each that they install.
        """
        broadcast, jump, gap_s = self.broadcast_s, self._jumps.median(), self._gaps_s.median()
        if broadcast is None:
            return None
        if jump is None or gap_s is None:
            return broadcast.value
        return min(broadcast.value, kappa * train_s if jump.value <= kappa else gap_s.value)

    def has(self, peer: str) -> bool:
        """Return whether the peer has a version in service."""
        return peer in self._has

    def begin(self) -> None:
        """Start again: versions are numbered from the beginning, and no peer is here."""
        self._under_way.clear()
        self._has.clear()
        self._since_s.clear()

    def published(self, version: int, at_s: float, present: Collection[str], active: Collection[str]) -> None:
        """Record a publication. `active` are the active ones of the `present` peers."""
        here = {peer for peer in present if peer in self._has} or set(present)
        broadcast = _Broadcast(published_s=at_s, audience=here & set(active), waiting=here)
        for peer in [peer for peer in here if self._has.get(peer, -1) >= version]:
            self._arrived(broadcast, peer, 0.0)
        self._under_way[version] = broadcast
        self._tidy(version, broadcast)
        if len(self._under_way) > VERSIONS:
            del self._under_way[next(iter(self._under_way))]

    def installed(self, peer: str, version: int, at_s: float) -> list[float]:
        """Return how many seconds each version that the peer no longer lacks took to be in service there."""
        before = self._has.get(peer)
        if before is not None and version > before:
            self._jumps.add(version - before)
            self._gaps_s.add(at_s - self._since_s[peer])
        if before is None or version > before:
            self._has[peer], self._since_s[peer] = version, at_s
        delays_s = []
        for reached, broadcast in list(self._under_way.items()):
            if reached <= version and peer in broadcast.waiting:
                delays_s.append(at_s - broadcast.published_s)
                self._arrived(broadcast, peer, delays_s[-1])
                self._tidy(reached, broadcast)
        return delays_s

    def left(self, peer: str) -> None:
        """Stop waiting for a peer that left."""
        self._has.pop(peer, None)
        self._since_s.pop(peer, None)
        for version, broadcast in list(self._under_way.items()):
            broadcast.audience.discard(peer)
            broadcast.waiting.discard(peer)
            broadcast.took_s.pop(peer, None)
            self._settle(broadcast)
            self._tidy(version, broadcast)

    def _arrived(self, broadcast: _Broadcast, peer: str, delay_s: float) -> None:
        broadcast.waiting.discard(peer)
        if peer in broadcast.audience and not broadcast.is_settled:
            broadcast.took_s[peer] = delay_s
            self._settle(broadcast)

    def _settle(self, broadcast: _Broadcast) -> None:
        if (took_s := broadcast.settle()) is not None:
            self._broadcasts.add(took_s)

    def _tidy(self, version: int, broadcast: _Broadcast) -> None:
        if not broadcast.waiting:
            del self._under_way[version]
