"""What audits found of each peer, read from the ledger, and in sentences.

What always holds: a ledger of before audits were written tells of none; what is said of a ban is what the ledger holds
of it: when, why, and what it cost.
"""

from __future__ import annotations

import json
import math
import sqlite3
from dataclasses import dataclass

from learner.ledger_file import has_table
from learner.verification.confidence import Confidence, Standing
from learner.verification.sequential import History, log_evidence
from protocol.ids import PeerId


@dataclass(frozen=True, kw_only=True)
class PeerAudits:
    """What audits found of one peer.

    `audits` made of its leases, of which `failed` failed; `tokens` that were drawn again, `worst` the largest gap of
    them in nats; `evidence` the logarithm of that against its honesty. `banned`: why, "" if it is not, and
    `banned_at_s` when, on the report's clock. `unseen`: rollouts of it that were trained on without an audit of their
    group.
    """

    standing: Standing
    audits: int
    failed: int
    tokens: int
    worst: float
    evidence: float
    banned: str = ""
    banned_at_s: float | None = None
    unseen: int = 0

    @property
    def odds(self) -> float:
        """How rarely an honest peer would look like this: once in so many lives, 1 for whom nothing speaks against."""
        return math.exp(min(700.0, max(0.0, self.evidence)))


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
    rows = db.execute("SELECT peer, passed, failed, audits, log_wealth, banned, since_ms FROM confidence")
    for peer, passed, failed, heard, log_wealth, banned, since_ms in rows:
        history = History(audits=heard, log_wealth=tuple(json.loads(log_wealth)))
        audits, ever_failed, tokens, worst = sums.get(peer, (0, 0, 0, 0.0))
        found[PeerId(peer)] = PeerAudits(
            standing=Confidence(passed=passed, failed=failed, history=history, banned=banned).standing,
            audits=audits,
            failed=ever_failed,
            tokens=tokens,
            worst=worst,
            evidence=log_evidence(history),
            banned=banned,
            banned_at_s=(since_ms - started_ms) / 1000 if banned else None,
            unseen=unseen.get(peer, 0),
        )
    return found


def ban_in_words(name: str, audits: PeerAudits, *, judged: int, trained: int) -> str:
    """What happened to a peer that is banned: by what, and what it cost."""
    rollouts = (
        f"{trained:,} of its {judged:,} rollouts were trained on"
        if trained
        else (f"none of its {judged:,} rollouts was trained on")
    )
    return f"{name} was banned by its audit number {audits.audits}: {audits.banned}. Damage: {rollouts}."
