"""`volery why PEER --replay`: the sequential test over a peer's audits again, beside what the ledger says of it; and
what one audit counted, against what is allowed.

What always holds: the ledger is only read; a difference is told with its audit and its lease, and is no verdict.
"""

from __future__ import annotations

import math
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from learner.ledger.audit_replay import Replay, replayed
from learner.ledger.reputation import PARDON
from learner.ledger.rows import AuditRow
from learner.ledger.sqlite.column_values import counts_from, margins_from, packed_in, wealth_from
from learner.ledger.sqlite.database import has_table
from learner.trust.margins import margins_of
from learner.trust.sequential_test import TEST_ERROR, Audited, History, Margin, Measure, heard, log_evidence
from learner.trust.standing import GROUP_ERROR, SUSPECT_EVIDENCE
from node.reports.model.audits import Choosing, is_same
from node.reports.readers.audits import choosing_of
from node.runtime import formatting as words
from protocol.core.ids import LeaseId, PeerId, short

DIFFERENCES_SHOWN = 8

OF = {
    Measure.GAP: "more than {above:g} nats below the draw of its seed{lead}",
    Measure.LOGPROB: "more than {above:g} nats from the claimed log probability",
    Measure.MEAN: "more than {above:g} nats from the claimed log probabilities, on average",
}


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What a replay says, and whether that is what the ledger has."""

    lines: tuple[str, ...]
    agrees: bool


@dataclass(frozen=True, kw_only=True)
class KeptLease:
    """What is kept of a lease that failed its audit, as it was signed, and what the audit counted beyond which
    margins."""

    lease: bytes
    records: tuple[bytes, ...]
    counted: Audited
    margins: tuple[Margin, ...]


def kept_of(db: sqlite3.Connection, lease: LeaseId) -> KeptLease | None:
    """None where it was not audited, passed, or is not among the newest of its peer that are kept."""
    if not has_table(db, "evidence"):
        return None
    row = db.execute(
        "SELECT e.envelope, e.records, a.tokens, a.above, a.at_ms FROM evidence e JOIN audits a USING (lease)"
        " WHERE e.lease = ?",
        (lease,),
    ).fetchone()
    if row is None:
        return None
    envelope, records, tokens, above, at_ms = row
    return KeptLease(
        lease=envelope,
        records=tuple(packed_in("evidence.records", records, list[bytes])),
        counted=Audited(tokens=tokens, counts=counts_from("audits.above", above)),
        margins=tuple(_margins(db)(at_ms)),
    )


def beyond(margin: Margin) -> str:
    """What is counted by a margin."""
    return OF[margin.measure].format(above=margin.above, lead=f", lead {margin.leads}" if margin.is_band else "")


def allowed(margin: Margin) -> str:
    """How much of that an honest peer may have."""
    return f"{100 * margin.rate:g}% {'of audits ' if margin.measure is Measure.MEAN else ''}may be"


def counted_of(db: sqlite3.Connection, lease: LeaseId) -> Iterator[str]:
    """What the audit of a lease counted, by the margins that were in force, against what is allowed; and how much it
    says, by itself and with all audits of its peer until then. Of one that was counted by other margins nothing can be
    said."""
    rows = db.execute("SELECT tokens, above, at_ms, evidence FROM audits WHERE lease = ?", (lease,))
    for tokens, above, at_ms, evidence in rows:
        audited, margins = Audited(tokens=tokens, counts=counts_from("audits.above", above)), _margins(db)(at_ms)
        if len(audited.counts) != len(margins):
            continue
        yield "It counted, against what is allowed:"
        for margin, counted in zip(margins, audited.counts, strict=True):
            if counted.trials:
                yield f"  {beyond(margin)}: {counted.above:,} of {counted.trials:,}; {allowed(margin)}"
        alone = log_evidence(heard(History(), audited, margins))
        yield (
            f"By itself that is {max(0.0, alone):.2f} nats against its peer; a group fails from "
            f"{-math.log(GROUP_ERROR):.2f} on. {_after_it(evidence)}"
        )


def _after_it(evidence: float) -> str:
    if evidence <= 0:
        return "After it all audits of the peer together said nothing against it."
    rare = words.once_in(math.exp(min(700.0, evidence)))
    return (
        f"After it all audits of the peer together were {evidence:.2f} nats: an honest peer looks so {rare}. A suspect"
        f" has {SUSPECT_EVIDENCE:.2f}, a ban takes {-math.log(TEST_ERROR):.2f}."
    )


def replay_of(db: sqlite3.Connection, peer: PeerId) -> Replayed:
    """The audits of `peer` in the order in which they were made."""
    if not has_table(db, "audits"):
        return Replayed(lines=("Nothing to replay: this ledger is older than audits.",), agrees=True)
    found = replayed(_audits(db, peer), _margins(db), _pardons(db, peer))
    kept = db.execute("SELECT banned, audits, log_wealth FROM confidence WHERE peer = ?", (peer,)).fetchone()
    banned, heard, wealth = kept or ("", 0, "[]")
    same = is_same(found.known.history, History(audits=heard, log_wealth=wealth_from("confidence.log_wealth", wealth)))
    choosing = choosing_of(db, peer)
    lines = [*_told(found), *_judged(found, banned, choosing), *_differing(found)]
    if not same and not found.differences:
        lines.append(f"But what the ledger has of all of them together ({heard} heard) is something else.")
    strange = choosing is not None and not choosing.agrees
    if strange:
        lines.append("But what the ledger has of all that it may have chosen is something else.")
    if found.differences or not same or strange:
        lines.append(
            "Compare with a copy of the ledger: rows were changed, or an older volery judged by other margins."
        )
    return Replayed(lines=tuple(lines), agrees=same and not found.differences and not strange)


def _told(found: Replay) -> Iterator[str]:
    if not found.audits:
        yield "Replayed: no audit of it is over yet."
        return
    against = "Together nothing speaks against it."
    if found.evidence > 0:
        rare = words.once_in(math.exp(min(700.0, found.evidence)))
        against = f"Together they are {found.evidence:.2f} nats against it: an honest peer looks so {rare}."
    agree = found.audits - len(found.differences)
    yield (
        f"Replayed: {agree:,} of {found.audits:,} audits come to the verdict and the evidence that the ledger has. "
        f"{against} A suspect has {SUSPECT_EVIDENCE:.2f} nats, a ban takes {-math.log(TEST_ERROR):.2f}."
    )
    for number in found.anew:
        when = f"before audit {number:,}" if number <= found.audits else "after the last"
        yield f"The operator pardoned it {when}: the test began anew."


def _judged(found: Replay, banned: str, choosing: Choosing | None) -> Iterator[str]:
    """What all of it comes to, beside the ban that the ledger has."""
    if choosing is not None and choosing.evidence > 0:
        yield f"What it may have chosen is {choosing.evidence:.2f} nats against it."
    said = "as the ledger says" if banned else "and the ledger has no ban"
    if found.convicted is not None:
        yield f"Audit {found.convicted:,} convicts it, {said}."
    elif choosing is not None and choosing.convicts:
        yield f"The audits do not convict it: what it chose does, {said}."
    elif banned:
        yield f"The audits do not convict it: it was banned by the operator ({words.plain_name(banned, 512)})."
    elif found.audits:
        yield "The audits do not convict it."


def _differing(found: Replay) -> Iterator[str]:
    for one in found.differences[:DIFFERENCES_SHOWN]:
        yield f"Audit {one.number:,}, lease {short(one.lease)}: the ledger says {one.said}, its counts {one.computed}."
    if (more := len(found.differences) - DIFFERENCES_SHOWN) > 0:
        yield f"... and {more:,} more that differ."


def _audits(db: sqlite3.Connection, peer: PeerId) -> list[AuditRow]:
    rows = db.execute(
        "SELECT lease, at_ms, tokens, above, worst, evidence, passed, detail FROM audits WHERE peer = ? ORDER BY rowid",
        (peer,),
    )
    return [
        AuditRow(
            lease=LeaseId(lease), peer=peer, at_ms=at_ms, tokens=tokens, counts=counts_from("audits.above", above),
            worst=worst, evidence=evidence, passed=bool(passed), detail=detail,
        )
        for lease, at_ms, tokens, above, worst, evidence, passed, detail in rows
    ]  # fmt: skip


def _pardons(db: sqlite3.Connection, peer: PeerId) -> list[int]:
    if not has_table(db, "decisions"):
        return []
    rows = db.execute("SELECT at_ms FROM decisions WHERE peer = ? AND what = ? ORDER BY id", (peer, PARDON))
    return [at_ms for (at_ms,) in rows]


def _margins(db: sqlite3.Connection) -> Callable[[int], Sequence[Margin]]:
    """Which were in force when. Before they were written down, they went by the newest version's size, at two bytes a
    parameter."""
    kept = []
    if has_table(db, "margins"):
        kept = [
            (at, margins_from("margins.margins", text))
            for at, text in db.execute("SELECT * FROM margins ORDER BY since_ms")
        ]
    sizes = db.execute("SELECT published_ms, total_bytes FROM versions ORDER BY published_ms").fetchall()
    since, times = [at for at, _ in kept], [published_ms for published_ms, _ in sizes]

    def at(at_ms: int) -> Sequence[Margin]:
        if place := bisect_right(since, at_ms):
            return kept[place - 1][1]
        return margins_of(sizes[max(0, bisect_right(times, at_ms) - 1)][1] // 2 if sizes else 0)

    return at
