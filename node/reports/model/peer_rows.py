"""Make a peer's row of the report from the ledger's counts. Pure.

Invariant: time that two presences share is counted once, so that a peer that came back before its old connection was
found broken is not paid twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from learner.ledger.queries.peers import KnownPeer, PeerPresence
from learner.ledger.queries.work import PeerWork
from learner.ledger.rows import TeacherRow
from node.reports.model.audits import PeerAudits
from node.reports.model.presences import presences_of
from node.reports.model.reach import PeerReach
from node.reports.model.report import LeaseCounts, PeerReport, Role, Scored
from protocol.accounting.claims import Price
from protocol.accounting.reputation import Reputation
from protocol.work import Rule


def peer_report(
    peer: KnownPeer,
    here: Sequence[PeerPresence],
    *,
    leases: LeaseCounts,
    verdicts: Mapping[Rule, int],
    work: PeerWork,
    bytes_relayed: int,
    reputation: Reputation,
    audits: PeerAudits | None = None,
    reach: PeerReach | None = None,
    scored: TeacherRow | None = None,
    trained: int,
    started_ms: int = 0,
) -> PeerReport:
    """Return the row of one peer with the presences `here`; `trained` counts rollouts of all batches, `scored` a
    teacher's work."""
    presences = presences_of(here, started_ms)
    standby_s = sum(presence.standby_s for presence in presences)
    return PeerReport(
        peer=peer.peer,
        name=peer.name,
        role=Role(peer.role),
        engine=peer.engine,
        machine=peer.machine,
        price=Price(micros_per_hour=peer.micros_per_hour, currency=peer.currency),
        leases=leases,
        verdicts=verdicts,
        tokens=work.tokens,
        trained=work.trained,
        dropped=work.dropped,
        share=work.trained / trained if trained else None,
        bytes_up=sum(presence.bytes_up for presence in here),
        bytes_down=sum(presence.bytes_down for presence in here),
        bytes_relayed=bytes_relayed,
        active_s=max(0.0, present_s(here) - standby_s),
        standby_s=standby_s,
        engine_s=peer.engine_s,
        first_seen_ms=peer.first_seen_ms,
        last_seen_ms=peer.last_seen_ms,
        reputation=reputation if peer.role == Role.ROLLOUT.value else None,
        audits=audits,
        presences=presences,
        reach=reach,
        scored=None if scored is None else _scored(scored),
    )


def _scored(row: TeacherRow) -> Scored:
    return Scored(groups=row.groups, tokens=row.tokens, refused=row.refused)


def present_s(presences: Iterable[PeerPresence]) -> float:
    """Return the seconds covered by at least one of `presences`."""
    total_ms, until_ms = 0, 0
    for presence in sorted(presences, key=lambda p: p.began_ms):
        total_ms += max(0, presence.ended_ms - max(presence.began_ms, until_ms))
        until_ms = max(until_ms, presence.ended_ms)
    return total_ms / 1000


def in_order(peers: Iterable[PeerReport]) -> tuple[PeerReport, ...]:
    """Return the learner first, then the peers by admitted records, most first."""
    return tuple(sorted(peers, key=lambda p: (p.role is not Role.LEARNER, -p.admitted, p.peer)))
