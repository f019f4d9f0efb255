"""What audits found of each peer, read from the ledger, and in sentences.

What always holds: a ledger of before audits were written tells of none; what is said of a ban is what the ledger holds
of it: when, why, and what it cost.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from learner.ledger.audit_replay import ROUNDING
from learner.ledger.reputation import BAN
from learner.ledger.sqlite.column_values import choice_from, wealth_from, worth_from
from learner.ledger.sqlite.database import has_table
from learner.trust.selection_test import Choice, heard_choice, seen
from learner.trust.sequential_test import History, is_convicted, log_evidence
from learner.trust.standing import Confidence, Standing
from node.reports.text.formatting import counted, were
from protocol.core.ids import PeerId


class BannedBy(Enum):
    """Whose doing a ban is: what its audits found, what the groups were worth that it may have chosen, the operator."""

    AUDITS = "audits"
    CHOOSING = "choosing"
    OPERATOR = "operator"


BY = {
    BannedBy.AUDITS: "by audits",
    BannedBy.CHOOSING: "by what they chose",
    BannedBy.OPERATOR: "by the operator",
}


@dataclass(frozen=True, kw_only=True)
class Choosing:
    """The groups of a peer that it may have chosen, and that were drawn by the learner, since it was last pardoned: of
    those that it withheld and of those that it delivered how many there are, and how many were better for it than what
    was drawn beside them, or gained more by their version. `evidence` is the logarithm of that against its honesty;
    `convicts`: that was ever enough for a ban. All are reckoned anew from what each group was worth; `agrees`: the
    ledger's own sum is the same."""

    found: dict[Choice, Counter[str]]
    evidence: float
    convicts: bool
    agrees: bool


@dataclass(frozen=True, kw_only=True)
class PeerAudits:
    """What audits found of one peer.

    `audits` made of its leases, of which `failed` failed; `tokens` that were drawn again, `worst` the largest gap of
    them in nats; `evidence` the logarithm of that against its honesty. `banned`: why, "" if it is not, `banned_by` what
    and `banned_at_s` when, on the report's clock. `unseen`: rollouts of it that were trained on without an audit of
    their group.
    """

    standing: Standing
    audits: int
    failed: int
    tokens: int
    worst: float
    evidence: float
    banned: str = ""
    banned_by: BannedBy | None = None
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
    rows = db.execute("SELECT peer, passed, failed, audits, log_wealth, banned, since_ms FROM confidence").fetchall()
    by_operator = _banned_by_operator(db)
    for peer, passed, failed, heard, log_wealth, banned, since_ms in rows:
        history = History(audits=heard, log_wealth=wealth_from("confidence.log_wealth", log_wealth))
        audits, ever_failed, tokens, worst = sums.get(peer, (0, 0, 0, 0.0))
        found[PeerId(peer)] = PeerAudits(
            standing=Confidence(passed=passed, failed=failed, history=history, banned=banned).standing,
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
    found: defaultdict[Choice, Counter[str]] = defaultdict(Counter)
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


def is_same(one: History, other: History) -> bool:
    """Whether two histories are the same but for rounding."""
    close = len(one.log_wealth) == len(other.log_wealth) and all(
        math.isclose(mine, theirs, abs_tol=ROUNDING)
        for mine, theirs in zip(one.log_wealth, other.log_wealth, strict=True)
    )
    return one.audits == other.audits and close


def bans_in_words(banned: Iterable[PeerAudits]) -> str:
    """How many peers what has banned: "171 by audits, 2 by the operator"."""
    found = Counter(one.banned_by for one in banned)
    return ", ".join(f"{found[by]:,} {BY[by]}" for by in BannedBy if found[by])


def ban_in_words(name: str, audits: PeerAudits, *, judged: int, trained: int) -> str:
    """What happened to a peer that is banned: by what, and what it cost."""
    rollouts = (
        f"{trained:,} of its {counted(judged, 'rollout')} {were(trained)} trained on"
        if trained
        else f"none of its {counted(judged, 'rollout')} was trained on"
    )
    by = {
        BannedBy.AUDITS: f"its audit number {audits.audits}",
        BannedBy.CHOOSING: "what it chose",
        BannedBy.OPERATOR: "the operator",
        None: "nobody",
    }[audits.banned_by]
    return f"{name} was banned by {by}: {audits.banned}. Damage: {rollouts}."
