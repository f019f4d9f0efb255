"""Make a volunteer's report of its own work from the receipts on its own disk.

It has the shape of the peer's row at the learner. Values that only the learner knows (share of batches, credit for
relaying) are None. The reputation is the learner's last statement. Leases are those that a receipt answers. The cost is
all active time at the latest price, as the learner computes it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from learner.ledger.queries.peers import PeerPresence
from node.reports.model.costs import CostTerms
from node.reports.model.history import FINEST, Bins, PeerHistory, Span, joined
from node.reports.model.presences import Presence, presences_of
from node.reports.model.report import LeaseCounts, OwnReport, PeerReport, RejectedRecord, Role, Scored
from node.state.receipt_queries import ReceiptQueries
from node.state.receipt_rows import Session
from protocol.accounting.claims import Price
from protocol.core.ids import PeerId
from protocol.work import Rule

REJECTED_SHOWN = 8
"""Rejected records that are shown: enough to see a pattern. The file has all of them."""

TRAFFIC_SHOWN = 64
"""Peers that are shown: as many as a node ever hears of at once."""


def own_report(
    receipts: ReceiptQueries,
    *,
    peer: PeerId,
    name: str = "",
    engine: str = "",
    machine: str = "",
    price: Price | None = None,
    with_history: bool = False,
    per_kwh: float | None = None,
) -> OwnReport:
    """Return the report of the node `peer` from `receipts`. `name`: what the node calls itself. `with_history`: also
    when it did what.

    `price`: what it asks today, for a node without any session yet. `per_kwh`: the owner's price of a kWh. Raises
    ReceiptsError.
    """
    sessions = receipts.sessions()
    asked = sessions[-1].price if sessions else price or Price()
    row = replace(_row(receipts, sessions, peer, asked), name=name, engine=engine, machine=machine)
    known, sums = receipts.reputation(), receipts.sums()
    return OwnReport(
        peer=row if known is None else replace(row, reputation=known.note.reputation),
        receipts=sums.receipts,
        oldest=sums.oldest,
        newest=sums.newest,
        refused=tuple(
            RejectedRecord(lease=v.lease, index=v.index, rule=v.rule, detail=v.detail, at_ms=v.issued_ms)
            for v in receipts.rejected(REJECTED_SHOWN)
        ),
        traffic=tuple(receipts.traffic(TRAFFIC_SHOWN)),
        reputed_ms=None if known is None else known.note.issued_ms,
        sent_bytes=_total(session.sent_bytes for session in sessions),
        received_bytes=_total(session.received_bytes for session in sessions),
        spans=_spans(sessions, row) if with_history else (),
        history=_history(receipts, row) if with_history else None,
        terms=CostTerms(currency=asked.currency, per_kwh=per_kwh),
    )


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum of those that are known; None if none is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _row(receipts: ReceiptQueries, sessions: Sequence[Session], peer: PeerId, price: Price) -> PeerReport:
    """Return what the node did, in the form of the learner's row."""
    sums = receipts.sums()
    dates = [date for s in sessions for date in (s.began_ms, s.ended_ms)]
    dates += [date for date in (sums.first_ms, sums.last_ms) if date is not None]
    late = receipts.leases_with(Rule.LATE, Rule.UNKNOWN_LEASE)
    presences = _presences(sessions, peer, min(dates, default=0))
    return PeerReport(
        peer=peer, name="", role=Role.ROLLOUT, engine="", machine="", price=price,
        leases=LeaseCounts(issued=sums.receipts, delivered=sums.receipts, late=late),
        verdicts=sums.verdicts, tokens=sums.tokens, trained=None, dropped=None, share=None,
        bytes_up=sum(s.bytes_up for s in sessions), bytes_down=sum(s.bytes_down for s in sessions), bytes_relayed=None,
        active_s=sum(presence.active_s for presence in presences), standby_s=0.0, engine_s=sums.engine_s,
        first_seen_ms=min(dates, default=0), last_seen_ms=max(dates, default=0), reputation=None, presences=presences,
        scored=Scored(groups=sums.groups_scored, tokens=sums.tokens_scored, refused=sums.groups_rejected)
        if sums.groups_scored + sums.groups_rejected
        else None,
    )  # fmt: skip


def worked_s(sessions: Sequence[Session]) -> float:
    """Return how many seconds a node worked in these sessions: what its report counts for the cost."""
    return sum(presence.active_s for presence in _presences(sessions, PeerId(""), 0))


def _presences(sessions: Sequence[Session], peer: PeerId, started_ms: int) -> tuple[Presence, ...]:
    return presences_of((_presence(session, peer) for session in sessions), started_ms)


def _spans(sessions: Sequence[Session], row: PeerReport) -> tuple[Span, ...]:
    wall_s = (row.last_seen_ms - row.first_seen_ms) / 1000
    presences = [((s.began_ms - row.first_seen_ms) / 1000, (s.ended_ms - row.first_seen_ms) / 1000) for s in sessions]
    return joined(presences, gap_s=wall_s / FINEST)


def _history(receipts: ReceiptQueries, row: PeerReport) -> PeerHistory:
    bins = Bins(wall_s=(row.last_seen_ms - row.first_seen_ms) / 1000)
    return PeerHistory(judged=bins.filled(receipts.judged(row.first_seen_ms, 1000 * bins.width_s)))


def _presence(session: Session, peer: PeerId) -> PeerPresence:
    return PeerPresence(
        peer=peer,
        began_ms=session.began_ms,
        ended_ms=session.ended_ms,
        bytes_up=session.bytes_up,
        bytes_down=session.bytes_down,
        energy=session.energy,
    )
