"""Turn the counts of a peer's heartbeats into sums of one presence.

A node counts since its start, but a presence lasts as long as one connection.

Invariants:

- Nothing counts twice, no matter how often a node reconnects or restarts.
- No sum exceeds what the ledger can hold.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from learner.ledger.rows import PresenceRow
from node.learner_role.shared.run_state import PeerSession
from protocol.accounting.claims import EnergySource
from protocol.core.ids import PeerId
from protocol.work import Heartbeat

PEERS_REMEMBERED = 4096
"""Most peers whose last heartbeat is kept after they have left, so that its counts are not added again."""

COUNTED_MOST = (1 << 53) - 1
"""Most bytes, or seconds, of one presence: as much as one heartbeat may claim. A node that pretends to restart can add
this much again and again, and the ledger holds no more than 2^63."""


@dataclass(kw_only=True)
class PresenceCounts:
    """Adds heartbeats to presences, and remembers the last one of each peer."""

    _counted: dict[PeerId, Heartbeat | None] = field(default_factory=dict)

    def is_back(self, peer: PeerId) -> None:
        """Note that the ledger knows this peer. Unless its last heartbeat is kept, its next one only sets the start."""
        self._counted.setdefault(peer, None)

    def add(self, peer: PeerId, session: PeerSession, now: Heartbeat, here: Container[PeerId]) -> None:
        """Add to this presence what a heartbeat counts beyond the one before. `here`: peers that are always
        remembered."""
        before = self._counted.get(peer, Heartbeat())
        if before is None:
            before = now
        elif now.bytes_up < before.bytes_up or now.bytes_down < before.bytes_down or now.engine_s < before.engine_s:
            before = Heartbeat()  # the node was restarted
        session.bytes_up = min(session.bytes_up + now.bytes_up - before.bytes_up, COUNTED_MOST)
        session.bytes_down = min(session.bytes_down + now.bytes_down - before.bytes_down, COUNTED_MOST)
        session.engine_s = min(session.engine_s + now.engine_s - before.engine_s, float(COUNTED_MOST))
        for source, joules in _energy_since(before, now).items():
            session.energy[source] = min(session.energy.get(source, 0.0) + joules, float(COUNTED_MOST))
        self._counted[peer] = now
        if len(self._counted) > PEERS_REMEMBERED:
            self._counted = {one: heartbeat for one, heartbeat in self._counted.items() if one in here}


def presence_row(session: PeerSession, reason: str = "") -> PresenceRow:
    """Return the row of a presence for the ledger. `reason`: why it ended, "" while it lasts."""
    return PresenceRow(
        presence=session.row,
        bytes_up=session.bytes_up,
        bytes_down=session.bytes_down,
        engine_s=session.engine_s,
        standby_s=session.standby_s,
        reason=reason,
        energy=dict(session.energy),
    )


def _energy_since(before: Heartbeat, now: Heartbeat) -> dict[EnergySource, float]:
    """Return the joules by source since the heartbeat before. A sum that has shrunk started again at 0."""
    told, known = _joules(before), _joules(now)
    return {
        source: joules - told.get(source, 0.0) if joules >= told.get(source, 0.0) else joules
        for source, joules in known.items()
    }


def _joules(heartbeat: Heartbeat) -> dict[EnergySource, float]:
    """Return the joules by source, with several entries of one source added up."""
    found: dict[EnergySource, float] = {}
    for one in heartbeat.energy:
        found[one.source] = found.get(one.source, 0.0) + one.joules
    return found
