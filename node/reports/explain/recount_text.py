"""Repeat the sequential test of a peer's audits for `volery why PEER --replay`, and show what one audit counted.

Invariants:

- The ledger is only read.
- A difference between the repeated test and the ledger is shown with its audit and its lease; it is not a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from learner.ledger.audit_recount import Replay, replayed
from learner.ledger.queries.reader import LedgerReader
from learner.ledger.rows import AuditRow
from learner.trust.audit_history import GROUP_ERROR, SUSPECT_EVIDENCE, AuditHistory
from learner.trust.ban_evidence import TEST_ERROR, History, Margin, Measure, log_evidence, with_audit
from node.reports.model.audits import SelectionEvidence, is_same
from node.reports.readers.audits import selection_of
from node.runtime import formatting as words
from protocol.core.ids import PeerId, short

DIFFERENCES_SHOWN = 8

OF = {
    Measure.GAP: "more than {above:g} nats below the draw of its seed{lead}",
    Measure.LOGPROB: "more than {above:g} nats from the claimed log probability",
    Measure.MEAN: "more than {above:g} nats from the claimed log probabilities, on average",
}


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """The text of a replay, and whether it agrees with the ledger."""

    lines: tuple[str, ...]
    agrees: bool


def beyond(margin: Margin) -> str:
    """Return what is counted by a margin."""
    return OF[margin.measure].format(above=margin.above, lead=f", lead {margin.leads}" if margin.is_band else "")


def allowed(margin: Margin) -> str:
    """Return the fraction that is allowed for an honest peer."""
    return f"{100 * margin.rate:g}% {'of audits ' if margin.measure is Measure.MEAN else ''}is allowed"


def counted_of(ledger: LedgerReader, audit: AuditRow) -> Iterator[str]:
    """Yield an audit's counts by the margins of its time, compared with what is allowed. Then yield its evidence, by
    itself and with all earlier audits of its peer. Nothing is yielded if it was counted by other margins."""
    margins = ledger.trust.margins()(audit)
    if len(audit.counts) != len(margins):
        return
    yield "Its counts, compared with what is allowed:"
    for margin, counted in zip(margins, audit.counts, strict=True):
        if counted.trials:
            yield f"  {beyond(margin)}: {counted.above:,} of {counted.trials:,}; {allowed(margin)}"
    alone = log_evidence(with_audit(History(), audit.counted, margins))
    yield (
        f"By itself it is {max(0.0, alone):.2f} nats of evidence against its peer; a group fails from "
        f"{-math.log(GROUP_ERROR):.2f} on. {_after_it(audit.evidence)}"
    )


def _after_it(evidence: float) -> str:
    if evidence <= 0:
        return "After it, all audits of the peer together are no evidence against it."
    rare = words.once_in(math.exp(min(700.0, evidence)))
    return (
        f"After it, all audits of the peer together are {evidence:.2f} nats of evidence: an honest peer would look "
        f"like this {rare}. A suspect has {SUSPECT_EVIDENCE:.2f}, a ban takes {-math.log(TEST_ERROR):.2f}."
    )


def replay_of(ledger: LedgerReader, peer: PeerId) -> Replayed:
    """Repeat the test of the audits of `peer` in the order in which they were made."""
    if not ledger.trust.has_audits():
        return Replayed(lines=("Nothing to replay: this ledger is from before audits were recorded.",), agrees=True)
    found = replayed(ledger.trust.audits(peer), ledger.trust.margins(), ledger.trust.pardons_ms(peer))
    kept, _ = ledger.trust.confidence([peer]).get(peer, (AuditHistory(), 0))
    banned, same = kept.banned, is_same(found.known.history, kept.history)
    selection = selection_of(ledger, peer)
    lines = [*_told(found), *_judged(found, banned, selection), *_differing(found)]
    if not same and not found.differences:
        lines.append(f"But the ledger has another result for all of them together ({kept.history.audits} counted).")
    strange = selection is not None and not selection.agrees
    if strange:
        lines.append("But the ledger has another result for its test for selective delivery.")
    if found.differences or not same or strange:
        lines.append("Compare with a copy of the ledger: rows were changed, or an older volery used other margins.")
    return Replayed(lines=tuple(lines), agrees=same and not found.differences and not strange)


def _told(found: Replay) -> Iterator[str]:
    if not found.audits:
        yield "Replayed: no audit of it is finished yet."
        return
    against = "Together they are no evidence against it."
    if found.evidence > 0:
        rare = words.once_in(math.exp(min(700.0, found.evidence)))
        against = f"Together they are {found.evidence:.2f} nats against it: an honest peer would look like this {rare}."
    agree = found.audits - len(found.differences)
    yield (
        f"Replayed: {agree:,} of {found.audits:,} audits give the verdict and the evidence that the ledger has. "
        f"{against} A suspect has {SUSPECT_EVIDENCE:.2f} nats, a ban takes {-math.log(TEST_ERROR):.2f}."
    )
    for number in found.anew:
        when = f"before audit {number:,}" if number <= found.audits else "after the last"
        yield f"The operator pardoned it {when}: the test started again."


def _judged(found: Replay, banned: str, selection: SelectionEvidence | None) -> Iterator[str]:
    """Yield the overall result, compared with the ban in the ledger."""
    if selection is not None and selection.evidence > 0:
        yield f"The test for selective delivery has {selection.evidence:.2f} nats of evidence against it."
    said = "as the ledger says" if banned else "but the ledger has no ban"
    if found.convicted is not None:
        yield f"Audit {found.convicted:,} convicts it, {said}."
    elif selection is not None and selection.convicts:
        yield f"The audits do not convict it, but the test for selective delivery does, {said}."
    elif banned:
        yield f"The audits do not convict it: it was banned by the operator ({words.plain_name(banned, 512)})."
    elif found.audits:
        yield "The audits do not convict it."


def _differing(found: Replay) -> Iterator[str]:
    for one in found.differences[:DIFFERENCES_SHOWN]:
        yield f"Audit {one.number:,}, lease {short(one.lease)}: the ledger says {one.said}, its counts {one.computed}."
    if (more := len(found.differences) - DIFFERENCES_SHOWN) > 0:
        yield f"... and {more:,} more that differ."
