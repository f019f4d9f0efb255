"""How long a version travels: from the end of its training step until enough peers work with it or a newer one.

Pure. What always holds: a version's journey concerns those who were here when it was published, had a version in
service (or nobody had), and are still here: a newcomer's first download is no broadcast, and who left is waited for no
more. It is over for T_bcast when a share QUORUM of the active ones has that version or a newer one, and lasts as long
as the last of those took; a version that was overtaken before counts with the newer one's arrival, since that is when
what peers make was no longer too old for it. Until then it is not counted at all.

How long the source is busy with one version shows in how peers keep up, and not in T_bcast: versions can be under way
one behind the other, and T_bcast counts what happens after they have arrived.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from learner.provisioning.estimation.estimates import Estimate, Recent
from learner.provisioning.model.capacity import QUORUM

UNDER_WAY = 2
"""Versions that a learner makes at a time, between snapshot and announcement: one is exported while the one before is
signed. So they keep up with training where making one takes no longer than so many publication periods."""

VERSIONS = 32
"""Versions that somebody still lacks and that are remembered; a peer that is further behind has stopped following."""

_ROUNDING = 1e-9
"""11 peers times QUORUM is 10."""


@dataclass(slots=True)
class _Journey:
    published_s: float
    audience: set[str]
    """Those whose share is the quorum."""
    waiting: set[str]
    """Those who lack it, active or not."""
    took_s: dict[str, float] = field(default_factory=dict)
    is_settled: bool = False

    def settle(self) -> float | None:
        """The seconds until the quorum had it, once."""
        needed = math.ceil(QUORUM * len(self.audience) - _ROUNDING)
        if self.is_settled or needed == 0 or len(self.took_s) < needed:
            return None
        self.is_settled = True
        return sorted(self.took_s.values())[needed - 1]


class BroadcastTracker:
    """The versions under way; see the module's paragraph."""

    def __init__(self) -> None:
        self._journeys: dict[int, _Journey] = {}
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
        """How long the source is busy with one version, at most; None before anything is known of T_bcast.

        Where peers install every version published, it is done with one when the next one comes; else it begins one
        for each that they install.
        """
        broadcast, jump, gap_s = self.broadcast_s, self._jumps.median(), self._gaps_s.median()
        if broadcast is None:
            return None
        if jump is None or gap_s is None:
            return broadcast.value
        return min(broadcast.value, kappa * train_s if jump.value <= kappa else gap_s.value)

    def has(self, peer: str) -> bool:
        """Whether it has a version in service."""
        return peer in self._has

    def begin(self) -> None:
        """Versions are numbered anew from here, and nobody is here."""
        self._journeys.clear()
        self._has.clear()
        self._since_s.clear()

    def published(self, version: int, at_s: float, present: Collection[str], active: Collection[str]) -> None:
        """`active` are those of `present` who are on."""
        here = {peer for peer in present if peer in self._has} or set(present)
        journey = _Journey(published_s=at_s, audience=here & set(active), waiting=here)
        for peer in [peer for peer in here if self._has.get(peer, -1) >= version]:
            self._arrived(journey, peer, 0.0)
        self._journeys[version] = journey
        self._tidy(version, journey)
        if len(self._journeys) > VERSIONS:
            del self._journeys[next(iter(self._journeys))]

    def installed(self, peer: str, version: int, at_s: float) -> list[float]:
        """Return how long each version that the peer no longer lacks took to be in service there, in seconds."""
        before = self._has.get(peer)
        if before is not None and version > before:
            self._jumps.add(version - before)
            self._gaps_s.add(at_s - self._since_s[peer])
        if before is None or version > before:
            self._has[peer], self._since_s[peer] = version, at_s
        delays_s = []
        for reached, journey in list(self._journeys.items()):
            if reached <= version and peer in journey.waiting:
                delays_s.append(at_s - journey.published_s)
                self._arrived(journey, peer, delays_s[-1])
                self._tidy(reached, journey)
        return delays_s

    def left(self, peer: str) -> None:
        """It is waited for no more."""
        self._has.pop(peer, None)
        self._since_s.pop(peer, None)
        for version, journey in list(self._journeys.items()):
            journey.audience.discard(peer)
            journey.waiting.discard(peer)
            journey.took_s.pop(peer, None)
            self._settle(journey)
            self._tidy(version, journey)

    def _arrived(self, journey: _Journey, peer: str, delay_s: float) -> None:
        journey.waiting.discard(peer)
        if peer in journey.audience and not journey.is_settled:
            journey.took_s[peer] = delay_s
            self._settle(journey)

    def _settle(self, journey: _Journey) -> None:
        if (took_s := journey.settle()) is not None:
            self._broadcasts.add(took_s)

    def _tidy(self, version: int, journey: _Journey) -> None:
        if not journey.waiting:
            del self._journeys[version]
