"""Recompute the sequential test: it agrees with itself, forgets at a pardon, and names changed rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.ledger.audit_recount import replayed
from learner.ledger.rows import AuditRow
from learner.trust.audit_history import AuditHistory, after, pardoned
from learner.trust.ban_evidence import Found, count_above, log_evidence
from learner.trust.margins import TINY as MARGINS
from protocol.core.ids import LeaseId, PeerId

PEER = PeerId("a peer")
LIVES = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 20), st.booleans()), max_size=12)
"""Audits of so many tokens with so many above the first margin, each perhaps after a pardon."""


def lived(life: list[tuple[int, int, bool]]) -> tuple[list[AuditRow], list[int], AuditHistory]:
    """What a learner writes of such a life, when it was pardoned, and what it knows in the end."""
    known, rows, pardons = AuditHistory(), list[AuditRow](), list[int]()
    for number, (tokens, above, is_pardoned) in enumerate(life, 1):
        if is_pardoned or known.banned:
            pardons.append(10 * number)
            known = pardoned(known)
        counted = count_above([Found(gap=1.0 * (place < above), lead=1.0) for place in range(tokens)], MARGINS)
        known, finding = after(known, counted, MARGINS)
        rows.append(
            AuditRow(
                lease=LeaseId(number.to_bytes(16, "big")), peer=PEER, at_ms=10 * number + 5, tokens=tokens,
                counts=counted.counts, worst=0.0, evidence=log_evidence(known.history), passed=finding.passed,
            )
        )  # fmt: skip
    return rows, pardons, known


@given(LIVES)
def test_a_life_replayed_is_the_life_that_was_lived(life: list[tuple[int, int, bool]]) -> None:
    rows, pardons, known = lived(life)
    found = replayed(rows, lambda row: MARGINS, pardons)
    assert found.differences == ()
    assert found.known == known
    assert (found.convicted is not None) == bool(known.banned)
    assert len(found.anew) == len(pardons)


@given(LIVES.filter(bool), st.data())
def test_a_row_that_was_changed_is_the_first_that_differs(
    life: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    rows, pardons, _ = lived(life)
    place = data.draw(st.integers(0, len(rows) - 1))
    rows[place] = replace(rows[place], evidence=rows[place].evidence + data.draw(st.floats(1e-3, 1e3)))
    found = replayed(rows, lambda row: MARGINS, pardons)
    assert [one.number for one in found.differences] == [place + 1]


def test_a_pardon_after_the_last_audit_begins_anew_all_the_same() -> None:
    rows, _, known = lived([(16, 16, False)])
    assert known.banned
    assert replayed(rows, lambda row: MARGINS).convicted == 1
    found = replayed(rows, lambda row: MARGINS, [10**6])
    assert (found.convicted, found.anew, found.known.banned) == (None, (2,), "")


@pytest.mark.parametrize("margins", [MARGINS[:2], (*MARGINS, MARGINS[0])])
def test_counts_by_other_margins_end_it_with_a_difference(margins: tuple[object, ...]) -> None:
    rows, *_ = lived([(16, 0, False)] * 3)
    found = replayed(rows, lambda row: margins)  # type: ignore[arg-type,return-value]
    assert [one.number for one in found.differences] == [1]
    assert found.differences[0].computed == f"{len(margins)} margins"
