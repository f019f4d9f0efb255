"""Repeat the sequential test of a peer's audits from the counts that the ledger kept, and compare the results.

Pure. An operator looks at this first when a peer appeals.

Invariants:

- The same counts give the same verdicts, or the result names the first audit that differs.
- Nothing is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from learner.ledger.rows import AuditRow
from learner.trust.audit_history import AuditHistory, after, pardoned
from learner.trust.ban_evidence import MULTIPLES, History, Margin, bets_on, is_convicted, log_evidence
from protocol.core.ids import LeaseId

ROUNDING = 1e-6
"""Nats by which the logarithms of two machines may differ, after all audits of a peer's life."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An audit, by its number from 1, for which the ledger states another result than its counts give."""

    number: int
    lease: LeaseId
    said: str
    computed: str


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The result of a peer's audits. `convicted` is the number of the audit that convicts it, None if none does. `anew`
    has the audits before which the test started from zero, since the operator had pardoned the peer."""

    audits: int
    known: AuditHistory
    convicted: int | None
    anew: tuple[int, ...]
    differences: tuple[Difference, ...]

    @property
    def evidence(self) -> float:
        return log_evidence(self.known.history)


def replayed(
    rows: Sequence[AuditRow], margins_of: Callable[[AuditRow], Sequence[Margin]], pardons_ms: Sequence[int] = ()
) -> Replay:
    """Repeat the audits of one peer in their order. `margins_of` returns the margins that an audit was judged by."""
    known, convicted, anew, differences = AuditHistory(), None, list[int](), list[Difference]()
    pardons = sorted(pardons_ms)
    for number, row in enumerate(rows, 1):
        while pardons and pardons[0] <= row.at_ms:
            del pardons[0]
            known, convicted = pardoned(known), None
            anew.append(number)
        margins = margins_of(row)
        if (unheard := _unheard(row, margins, known.history)) is not None:
            differences.append(Difference(number=number, lease=row.lease, said=unheard[0], computed=unheard[1]))
            break
        known, finding = after(known, row.counted, margins)
        if convicted is None and is_convicted(known.history):
            convicted = number
        evidence = log_evidence(known.history)
        if finding.passed != row.passed or not math.isclose(evidence, row.evidence, abs_tol=ROUNDING):
            said, computed = _verdict_text(row.passed, row.evidence), _verdict_text(finding.passed, evidence)
            differences.append(Difference(number=number, lease=row.lease, said=said, computed=computed))
    if pardons:
        known, convicted = pardoned(known), None
        anew.append(len(rows) + 1)
    return Replay(audits=len(rows), known=known, convicted=convicted, anew=tuple(anew), differences=tuple(differences))


def _unheard(row: AuditRow, margins: Sequence[Margin], history: History) -> tuple[str, str] | None:
    """Return what the ledger states and what it should match, if this audit cannot be repeated with these margins; else
    None."""
    if len(row.counts) != len(margins):
        return f"{len(row.counts)} counts", f"{len(margins)} margins"
    before, bets = len(history.log_wealth), len(bets_on(margins)) * len(MULTIPLES)
    return None if before in (0, bets) else (f"{bets} bets", f"{before} bets in the audits before")


def _verdict_text(passed: bool, evidence: float) -> str:
    return f"{'passed' if passed else 'failed'}, evidence {evidence:.3f}"
