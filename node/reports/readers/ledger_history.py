"""A run's history, read from the learner's ledger.

Read in the transaction in which the report is read, so that both are of one moment. Sums are made by SQLite; what is
kept is bounded as `node.reports.model.history` says.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from node.reports.model.history import (
    DETAIL_CHARS,
    EVIDENCE_KEPT,
    FINEST,
    RECEIVERS_KEPT,
    Bins,
    Evidence,
    Given,
    History,
    Judged,
    PeerHistory,
    Span,
    StepLag,
    joined,
    told_of,
)
from node.reports.model.report import PeerReport
from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.work import Rule


def read_history(
    db: sqlite3.Connection, *, started_ms: int, ended_ms: int, peers: Sequence[PeerReport], has_relays: bool
) -> History:
    """Return the history of the run of `peers`; `has_relays`: whether the ledger has the tables of relay receipts."""
    told = told_of([(peer.peer, peer.blamed) for peer in peers])
    wall_s = (ended_ms - started_ms) / 1000
    spans, stays = _stays(db, started_ms, wall_s)
    together, judged = _judged(db, started_ms, Bins(wall_s=wall_s), set(told))
    evidence = _evidence(db, started_ms, set(told))
    given = _given(db) if has_relays else {}
    return History(
        spans=spans,
        stays=stays,
        peers={
            peer: PeerHistory(judged=judged[peer], evidence=evidence.get(peer, {}), given=given.get(peer, ()))
            for peer in told
        },
        judged=together,
        lags=_lags(db),
    )


def _stays(
    db: sqlite3.Connection, started_ms: int, wall_s: float
) -> tuple[dict[PeerId, tuple[Span, ...]], dict[PeerId, int]]:
    """When each peer was here, and how often it came."""
    found: defaultdict[PeerId, list[Span]] = defaultdict(list)
    for peer, began_ms, ended_ms in db.execute("SELECT peer, began_ms, ended_ms FROM presence"):
        found[PeerId(peer)].append(((began_ms - started_ms) / 1000, (ended_ms - started_ms) / 1000))
    spans = {peer: joined(stays, gap_s=wall_s / FINEST) for peer, stays in found.items()}
    return spans, {peer: len(stays) for peer, stays in found.items()}


def _judged(
    db: sqlite3.Connection, started_ms: int, bins: Bins, told: set[PeerId]
) -> tuple[tuple[Judged, ...], dict[PeerId, tuple[Judged, ...]]]:
    """What came when: of all peers, and of each of `told`."""
    together: Counter[tuple[int, bool]] = Counter()
    each: dict[PeerId, list[tuple[int, int, int]]] = {peer: [] for peer in told}
    rows = db.execute(
        "SELECT peer, CAST((received_ms - ?) / ? AS INTEGER) AS stretch, sum(rule = 'admitted'), count(*) FROM records"
        " GROUP BY peer, stretch",
        (started_ms, 1000 * bins.width_s),
    )
    for peer, stretch, admitted, total in rows:
        together[stretch, True] += admitted
        together[stretch, False] += total - admitted
        if peer in each:
            each[peer].append((stretch, admitted, total - admitted))
    whole = bins.filled((at, number, 0) if admitted else (at, 0, number) for (at, admitted), number in together.items())
    return whole, {peer: bins.filled(counts) for peer, counts in each.items()}


def _evidence(
    db: sqlite3.Connection, started_ms: int, told: set[PeerId]
) -> Mapping[PeerId, Mapping[Rule, tuple[Evidence, ...]]]:
    """The newest refused records of each peer and rule; rules that this program does not know are one."""
    found: dict[PeerId, dict[Rule, tuple[Evidence, ...]]] = {}
    rows = db.execute(
        "SELECT peer, rule, lease, idx, incarnation, version, lag, received_ms, detail FROM ("
        " SELECT peer, rule, lease, idx, incarnation, version, lag, received_ms, substr(detail, 1, ?) AS detail,"
        " row_number() OVER (PARTITION BY peer, rule ORDER BY received_ms DESC, lease, idx) AS place"
        " FROM records WHERE rule <> 'admitted') WHERE place <= ? ORDER BY received_ms DESC, lease, idx",
        (DETAIL_CHARS, EVIDENCE_KEPT),
    )
    for peer, rule, lease, index, incarnation, version, lag, received_ms, detail in rows:
        if peer not in told:
            continue
        of_peer = found.setdefault(peer, {})
        kept = of_peer.get(Rule(rule), ())
        if len(kept) < EVIDENCE_KEPT:
            one = Evidence(
                lease=LeaseId(lease), index=index, at_s=(received_ms - started_ms) / 1000, detail=detail,
                version=PolicyVersion(incarnation, version), lag=lag,
            )  # fmt: skip
            of_peer[Rule(rule)] = (*kept, one)
    return found


def _given(db: sqlite3.Connection) -> dict[PeerId, tuple[Given, ...]]:
    """By relay, who had most of it."""
    found: defaultdict[PeerId, tuple[Given, ...]] = defaultdict(tuple)
    for relay, receiver, num_bytes, versions in db.execute(
        "SELECT relay, receiver, sum(bytes) AS total, count(*) FROM relayed GROUP BY relay, receiver"
        " ORDER BY total DESC, receiver"
    ):
        if len(found[relay]) < RECEIVERS_KEPT:
            found[relay] += (Given(receiver=PeerId(receiver), num_bytes=num_bytes, versions=versions),)
    return found


def _lags(db: sqlite3.Connection) -> dict[int, StepLag]:
    rows = db.execute(
        "SELECT step, avg(trained_lag), max(trained_lag) FROM records"
        " WHERE step IS NOT NULL AND rule = 'admitted' AND trained_lag IS NOT NULL GROUP BY step"
    )
    return {step: StepLag(mean=mean, largest=largest) for step, mean, largest in rows}
