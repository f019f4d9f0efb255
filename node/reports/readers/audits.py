"""Read what audits found of each peer, from a ledger."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection

from learner.ledger.reputation import BAN
from learner.ledger.sqlite.column_values import choice_from, wealth_from, worth_from
from learner.ledger.sqlite.database import has_table
from learner.trust.selection_test import DeliveryOutcome, heard_choice, seen
from learner.trust.sequential_test import History, is_convicted, log_evidence
from learner.trust.standing import AuditHistory
from node.reports.model.audits import BannedBy, Choosing, PeerAudits, is_same
from protocol.core.ids import PeerId


def audits_by_peer(db: sqlite3.Connection, started_ms: int) -> dict[PeerId, PeerAudits]:
    """Of those that were ever audited, or banned."""
    if not has_table(db, "audits"):
        return {}
    sums = {
        peer: (audits, failed, tokens, worst)
        for peer, audits, failed, tokens, worst in db.execute(
            "SELECT peer, count(*), sum(passed = 0), sum(tokens), max(worst) FROM audits GROUP BY peer"
        )
    }
    unseen = dict(
        db.execute(
            "SELECT r.peer, count(*) FROM records r WHERE r.step IS NOT NULL"
            " AND NOT EXISTS (SELECT 1 FROM audits a WHERE a.lease = r.lease) GROUP BY r.peer"
        )
    )
    found: dict[PeerId, PeerAudits] = {}
    rows = db.execute("SELECT peer, passed, failed, audits, log_wealth, banned, since_ms FROM confidence").fetchall()
    by_operator = _banned_by_operator(db)
    for peer, passed, failed, heard, log_wealth, banned, since_ms in rows:
        history = History(audits=heard, log_wealth=wealth_from("confidence.log_wealth", log_wealth))
        audits, ever_failed, tokens, worst = sums.get(peer, (0, 0, 0, 0.0))
        found[PeerId(peer)] = PeerAudits(
            standing=AuditHistory(passed=passed, failed=failed, history=history, banned=banned).standing,
            audits=audits,
            failed=ever_failed,
            tokens=tokens,
            worst=worst,
            evidence=log_evidence(history),
            banned=banned,
            banned_by=_banned_by(db, PeerId(peer), history, by_operator) if banned else None,
            banned_at_s=(since_ms - started_ms) / 1000 if banned else None,
            unseen=unseen.get(peer, 0),
        )
    return found


def _banned_by(db: sqlite3.Connection, peer: PeerId, history: History, operators: Collection[PeerId]) -> BannedBy:
    if peer in operators:
        return BannedBy.OPERATOR
    choosing = None if is_convicted(history) else choosing_of(db, peer)
    return BannedBy.CHOOSING if choosing is not None and choosing.convicts else BannedBy.AUDITS


def _banned_by_operator(db: sqlite3.Connection) -> set[PeerId]:
    """Those of whom the operator's last decision is a ban."""
    if not has_table(db, "decisions"):
        return set()
    rows = db.execute("SELECT peer, what, max(id) FROM decisions GROUP BY peer")
    return {PeerId(peer) for peer, what, _ in rows if what == BAN}


def choosing_of(db: sqlite3.Connection, peer: PeerId) -> Choosing | None:
    """None where nothing of it was drawn that differed."""
    if not has_table(db, "choices"):
        return None
    rows = db.execute(
        "SELECT choice, withheld, theirs, ours, log_wealth FROM choices WHERE peer = ? AND heard > 0 ORDER BY heard",
        (peer,),
    ).fetchall()
    if not rows:
        return None
    history, convicts = History(), False
    found: defaultdict[DeliveryOutcome, Counter[str]] = defaultdict(Counter)
    for name, withheld, theirs, ours, _ in rows:
        choice = choice_from("choices.choice", name)
        mine, yours = worth_from("choices.theirs", theirs), worth_from("choices.ours", ours)
        told = seen(choice, mine, yours, withheld=min(max(0.0, withheld), 1 - 1e-9))
        if told is None:
            continue  # not what a learner writes; the sum will not agree
        found[choice].update(drawn=1, better=told.worth > 0, gained=told.gain > 0)
        history = heard_choice(history, told)
        convicts = convicts or is_convicted(history)  # whatever was heard afterwards
    kept = History(audits=len(rows), log_wealth=wealth_from("choices.log_wealth", rows[-1][4]))
    return Choosing(
        found=dict(found),
        evidence=log_evidence(history),
        convicts=convicts,
        agrees=is_same(history, kept),
    )
