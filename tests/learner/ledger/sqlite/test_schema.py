"""The rule for evidence is part of a ledger's format: a peer's history goes on, and is computed again."""

from __future__ import annotations

from learner.ledger.sqlite.schema import READABLE, SCHEMA_VERSION
from learner.trust.ban_evidence import HIGHEST_RATE, LEAST_OF_A_MEAN, MOST_APART, MULTIPLES
from learner.trust.margins import BETS
from learner.trust.selection_test import STRENGTHS


def test_who_changes_how_evidence_is_reckoned_raises_the_format() -> None:
    """If this fails: the next SCHEMA_VERSION, READABLE without the one before, and the new figures here. Margins may
    change without it, since ledgers keep those that were in force."""
    reckoned = (MULTIPLES, BETS, HIGHEST_RATE, MOST_APART, LEAST_OF_A_MEAN, STRENGTHS)
    assert (SCHEMA_VERSION, reckoned) == (8, ((2.0, 5.0, 20.0, 1000.0), 40, 0.5, 1.0, 7, (0.5, 1.0, 2.0)))
    assert READABLE.isdisjoint({3, 4, 5})
