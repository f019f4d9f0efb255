"""What a peer's heartbeats count, as sums of one stay.

A node counts since it started, a stay lasts as long as a connection. What always holds: nothing counts twice, however
often a node comes and goes or is started anew; no sum leaves what the ledger can hold.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from learner.ledger.rows import StayRow
from node.learner_role.shared.run_state import PeerSession
from protocol.accounting.claims import EnergySource
from protocol.core.ids import PeerId
from protocol.work import Heartbeat

PEERS_REMEMBERED = 4096
"""Peers whose last heartbeat is remembered after they have left, so that what it counted is not counted again."""

COUNTED_MOST = (1 << 53) - 1
"""Bytes, or seconds, that one stay counts: as much as one heartbeat may say. A node that says again and again that it
was started anew adds that each time, and the ledger holds no more than 2^63."""


@dataclass(kw_only=True)
class StayCounts:
    """See the module's paragraph."""

    _counted: dict[PeerId, Heartbeat | None] = field(default_factory=dict)

    def is_back(self, peer: PeerId) -> None:
        """The ledger knows this peer: unless it is remembered here, what it says first is where we begin to count."""
        self._counted.setdefault(peer, None)

    def add(self, peer: PeerId, session: PeerSession, now: Heartbeat, here: Container[PeerId]) -> None:
        """Add what a heartbeat counts beyond the one before it to this stay. `here`: who is remembered in any case."""
        before = self._counted.get(peer, Heartbeat())
        if before is None:
            before = now
        elif now.bytes_up < before.bytes_up or now.bytes_down < before.bytes_down or now.engine_s < before.engine_s:
            before = Heartbeat()  # the node was started anew
        session.bytes_up = min(session.bytes_up + now.bytes_up - before.bytes_up, COUNTED_MOST)
        session.bytes_down = min(session.bytes_down + now.bytes_down - before.bytes_down, COUNTED_MOST)
        session.engine_s = min(session.engine_s + now.engine_s - before.engine_s, float(COUNTED_MOST))
        for source, joules in _energy_since(before, now).items():
            session.energy[source] = min(session.energy.get(source, 0.0) + joules, float(COUNTED_MOST))
        self._counted[peer] = now
        if len(self._counted) > PEERS_REMEMBERED:
            self._counted = {one: beat for one, beat in self._counted.items() if one in here}


def stay_row(session: PeerSession, reason: str = "") -> StayRow:
    """How the stay stands, for the ledger; `reason` why it ended, if it did."""
    return StayRow(
        presence=session.row,
        bytes_up=session.bytes_up,
        bytes_down=session.bytes_down,
        engine_s=session.engine_s,
        standby_s=session.standby_s,
        reason=reason,
        energy=dict(session.energy),
    )


def _energy_since(before: Heartbeat, now: Heartbeat) -> dict[EnergySource, float]:
    """Joules by source beyond those told before; a sum that has shrunk began anew."""
    told, known = _joules(before), _joules(now)
    return {
        source: joules - told.get(source, 0.0) if joules >= told.get(source, 0.0) else joules
        for source, joules in known.items()
    }


def _joules(heartbeat: Heartbeat) -> dict[EnergySource, float]:
    """By source; what is told of one source in several entries is added up."""
    found: dict[EnergySource, float] = {}
    for one in heartbeat.energy:
        found[one.source] = found.get(one.source, 0.0) + one.joules
    return found
