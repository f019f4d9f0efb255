"""Read the results of each peer's audits from a ledger."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection

from learner.ledger.queries.reader import LedgerReader
from learner.ledger.queries.trust import AuditSums
from learner.trust.ban_evidence import History, is_convicted, log_evidence, wagered
from learner.trust.selection_test import DeliveryOutcome, seen
from node.reports.model.audits import BannedBy, PeerAudits, SelectionEvidence, is_same
from protocol.core.ids import PeerId


def audits_by_peer(ledger: LedgerReader, started_ms: int) -> dict[PeerId, PeerAudits]:
    """Return the results of the peers that were ever audited, or banned."""
    sums, unseen = ledger.trust.audit_sums(), ledger.trust.unaudited()
    by_operator = ledger.trust.banned_by_operator()
    found: dict[PeerId, PeerAudits] = {}
    for peer, (known, since_ms) in ledger.trust.confidence().items():
        heard = sums.get(peer, AuditSums())
        found[peer] = PeerAudits(
            standing=known.standing,
            audits=heard.audits,
            failed=heard.failed,
            tokens=heard.tokens,
            worst=heard.worst,
            evidence=log_evidence(known.history),
            banned=known.banned,
            banned_by=_banned_by(ledger, peer, known.history, by_operator) if known.banned else None,
            banned_at_s=(since_ms - started_ms) / 1000 if known.banned else None,
            unseen=unseen.get(peer, 0),
        )
    return found


def _banned_by(ledger: LedgerReader, peer: PeerId, history: History, operators: Collection[PeerId]) -> BannedBy:
    if peer in operators:
        return BannedBy.OPERATOR
    selection = None if is_convicted(history) else selection_of(ledger, peer)
    return BannedBy.SELECTION if selection is not None and selection.convicts else BannedBy.AUDITS


def selection_of(ledger: LedgerReader, peer: PeerId) -> SelectionEvidence | None:
    """Return the peer's test for selective delivery; None if no regenerated group of it differed."""
    if not (rows := ledger.trust.selections(peer=peer)):
        return None
    history, convicts = History(), False
    found: defaultdict[DeliveryOutcome, Counter[str]] = defaultdict(Counter)
    for row in rows:
        told = seen(row.outcome, row.theirs, row.ours, withheld=min(max(0.0, row.withheld), 1 - 1e-9))
        if told is None:
            continue  # a learner does not write this; the sum will not agree
        found[row.outcome].update(drawn=1, better=told.value > 0, gained=told.gain > 0)
        history = wagered(history, told.log_ratios)
        convicts = convicts or is_convicted(history)  # whatever later groups showed
    return SelectionEvidence(
        found=dict(found),
        evidence=log_evidence(history),
        convicts=convicts,
        agrees=is_same(history, History(audits=len(rows), log_wealth=rows[-1].log_wealth)),
    )
