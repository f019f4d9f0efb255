"""Read a run's history from the learner's ledger.

It uses the same reader as the report, so that both show the same moment. `node.reports.model.history` bounds what is
kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from learner.ledger.queries.reader import LedgerReader
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
    peers_with_history,
)
from node.reports.model.report import SwarmReport
from protocol.core.ids import PeerId, PolicyVersion
from protocol.work import Rule


def read_history(ledger: LedgerReader, report: SwarmReport) -> History:
    """Return the history of the run of `report`, which has none yet."""
    told = peers_with_history([(peer.peer, peer.blamed) for peer in report.peers])
    started_ms, wall_s = report.started_ms, report.wall_s
    spans, presences = _presences(ledger, started_ms, wall_s)
    together, judged = _judged(ledger, started_ms, Bins(wall_s=wall_s), set(told))
    evidence = _evidence(ledger, started_ms, set(told))
    given = _given(ledger)
    return History(
        spans=spans,
        presences=presences,
        peers={
            peer: PeerHistory(judged=judged[peer], evidence=evidence.get(peer, {}), given=given.get(peer, ()))
            for peer in told
        },
        judged=together,
        lags={
            step: StepLag(mean=mean, largest=largest) for step, (mean, largest) in ledger.work.lags_by_step().items()
        },
    )


def _presences(
    ledger: LedgerReader, started_ms: int, wall_s: float
) -> tuple[dict[PeerId, tuple[Span, ...]], dict[PeerId, int]]:
    """Return when each peer was present, and how often it came."""
    found: defaultdict[PeerId, list[Span]] = defaultdict(list)
    for presence in ledger.peers.presences():
        found[presence.peer].append(((presence.began_ms - started_ms) / 1000, (presence.ended_ms - started_ms) / 1000))
    spans = {peer: joined(presences, gap_s=wall_s / FINEST) for peer, presences in found.items()}
    return spans, {peer: len(presences) for peer, presences in found.items()}


def _judged(
    ledger: LedgerReader, started_ms: int, bins: Bins, told: set[PeerId]
) -> tuple[tuple[Judged, ...], dict[PeerId, tuple[Judged, ...]]]:
    """Return which records came when: of all peers, and of each of `told`."""
    together: Counter[tuple[int, bool]] = Counter()
    each: dict[PeerId, list[tuple[int, int, int]]] = {peer: [] for peer in told}
    for peer, stretch, admitted, total in ledger.work.judged(started_ms, 1000 * bins.width_s):
        together[stretch, True] += admitted
        together[stretch, False] += total - admitted
        if peer in each:
            each[peer].append((stretch, admitted, total - admitted))
    whole = bins.filled((at, number, 0) if admitted else (at, 0, number) for (at, admitted), number in together.items())
    return whole, {peer: bins.filled(counts) for peer, counts in each.items()}


def _evidence(
    ledger: LedgerReader, started_ms: int, told: set[PeerId]
) -> Mapping[PeerId, Mapping[Rule, tuple[Evidence, ...]]]:
    """Return the newest rejected records of each peer and rule; rules that this program does not know count as one."""
    found: dict[PeerId, dict[Rule, tuple[Evidence, ...]]] = {}
    for row in ledger.work.newest_rejected(EVIDENCE_KEPT, DETAIL_CHARS):
        if row.peer not in told:
            continue
        of_peer = found.setdefault(row.peer, {})
        kept = of_peer.get(row.rule, ())
        if len(kept) < EVIDENCE_KEPT:
            one = Evidence(
                lease=row.lease, index=row.idx, at_s=(row.received_ms - started_ms) / 1000, detail=row.detail,
                version=PolicyVersion(row.incarnation, row.version), lag=row.lag,
            )  # fmt: skip
            of_peer[row.rule] = (*kept, one)
    return found


def _given(ledger: LedgerReader) -> dict[PeerId, tuple[Given, ...]]:
    """Return the main receivers of each relaying peer."""
    found: defaultdict[PeerId, tuple[Given, ...]] = defaultdict(tuple)
    for one in ledger.peers.relayed():
        if len(found[one.relay]) < RECEIVERS_KEPT:
            found[one.relay] += (Given(receiver=one.receiver, num_bytes=one.num_bytes, versions=one.versions),)
    return found
