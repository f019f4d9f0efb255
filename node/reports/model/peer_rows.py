"""From what the ledger counted of a peer to its row in the report.

Pure functions. What always holds: time that two presences share is counted once, so that a peer that came back before
its old connection was noticed gone is not paid twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from node.reports.model.audits import PeerAudits
from node.reports.model.report import LeaseCounts, PeerReport, Role
from node.reports.model.stays import PeerPresence, stays_of
from protocol.accounting.claims import Price
from protocol.accounting.reputation import Reputation
from protocol.core.ids import PeerId
from protocol.work import Rule


@dataclass(frozen=True, kw_only=True)
class PeerFacts:
    """Everything the ledger holds of one peer, counted."""

    peer: PeerId
    name: str
    role: str
    engine: str
    machine: str
    price: Price
    engine_s: float
    first_seen_ms: int
    last_seen_ms: int
    presences: tuple[PeerPresence, ...]
    leases: LeaseCounts
    verdicts: Mapping[Rule, int]
    tokens: int
    trained: int
    dropped: int
    bytes_relayed: int
    reputation: Reputation
    audits: PeerAudits | None = None


def peer_report(facts: PeerFacts, *, trained: int, started_ms: int = 0) -> PeerReport:
    """The row of one peer; `trained` counts all rollouts of all batches."""
    stays = stays_of(facts.presences, started_ms)
    standby_s = sum(stay.standby_s for stay in stays)
    return PeerReport(
        peer=facts.peer,
        name=facts.name,
        role=Role(facts.role),
        engine=facts.engine,
        machine=facts.machine,
        price=facts.price,
        leases=facts.leases,
        verdicts=facts.verdicts,
        tokens=facts.tokens,
        trained=facts.trained,
        dropped=facts.dropped,
        share=facts.trained / trained if trained else None,
        bytes_up=sum(presence.bytes_up for presence in facts.presences),
        bytes_down=sum(presence.bytes_down for presence in facts.presences),
        bytes_relayed=facts.bytes_relayed,
        active_s=max(0.0, present_s(facts.presences) - standby_s),
        standby_s=standby_s,
        engine_s=facts.engine_s,
        first_seen_ms=facts.first_seen_ms,
        last_seen_ms=facts.last_seen_ms,
        reputation=facts.reputation if facts.role == Role.ROLLOUT.value else None,
        audits=facts.audits,
        stays=stays,
    )


def present_s(presences: Iterable[PeerPresence]) -> float:
    """Seconds covered by at least one of `presences`."""
    total_ms, until_ms = 0, 0
    for presence in sorted(presences, key=lambda p: p.began_ms):
        total_ms += max(0, presence.ended_ms - max(presence.began_ms, until_ms))
        until_ms = max(until_ms, presence.ended_ms)
    return total_ms / 1000


def in_order(peers: Iterable[PeerReport]) -> tuple[PeerReport, ...]:
    """The learner first, then who had most records admitted."""
    return tuple(sorted(peers, key=lambda p: (p.role is not Role.LEARNER, -p.admitted, p.peer)))
