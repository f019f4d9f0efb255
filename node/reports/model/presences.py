"""Turn a peer's rows of presence into presences that do not overlap, so that a report can add them up. Pure.

Invariants:

- Time that two presences share belongs to the earlier one.
- Joules that no machine can have drawn since the presence before are kept apart, and counted nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from learner.ledger.queries.peers import PeerPresence
from protocol.accounting.claims import EnergySource, is_believed


@dataclass(frozen=True, kw_only=True)
class Presence:
    """The part of a presence that no earlier one covers, in seconds since the run began, and what happened in it."""

    began_s: float
    ended_s: float
    active_s: float
    standby_s: float
    bytes_up: int
    bytes_down: int
    energy: Mapping[EnergySource, float]
    is_believed: bool

    @property
    def joules(self) -> float:
        """Joules of this presence; 0 if they are not plausible."""
        return sum(self.energy.values()) if self.is_believed else 0.0


def presences_of(presences: Iterable[PeerPresence], started_ms: int) -> tuple[Presence, ...]:
    """Return the presences in order of time."""
    found: list[Presence] = []
    until_ms: int | None = None
    for one in sorted(presences, key=lambda one: one.began_ms):
        # A node still counts joules while its connection is broken, and reports them when it is back.
        since_ms = one.began_ms if until_ms is None else until_ms
        began_ms = one.began_ms if until_ms is None else max(one.began_ms, until_ms)
        ended_ms = max(began_ms, one.ended_ms)
        here_s = (ended_ms - began_ms) / 1000
        standby_s = min(max(0.0, one.standby_s), here_s)
        found.append(
            Presence(
                began_s=(began_ms - started_ms) / 1000,
                ended_s=(ended_ms - started_ms) / 1000,
                active_s=here_s - standby_s,
                standby_s=standby_s,
                bytes_up=one.bytes_up,
                bytes_down=one.bytes_down,
                energy=one.energy,
                is_believed=is_believed(sum(one.energy.values()), (ended_ms - since_ms) / 1000),
            )
        )
        until_ms = ended_ms
    return tuple(found)
