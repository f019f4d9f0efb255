"""The ledger writes the results of audits: several together, all or none."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from learner.ledger.rows import AuditRow
from learner.ledger.trust import AuditOutcome
from learner.trust.audit_history import AuditHistory
from learner.trust.margins import TINY as MARGINS
from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.work import Rule
from tests.support.commits import commits
from tests.support.ledgers import ALPHA, BETA, Story, open_story, peer_row


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    story = open_story(tmp_path / "ledger.sqlite")
    for peer in (ALPHA, BETA):
        story.join(peer_row(peer, "a peer"))
    yield story
    story.ledger.close()


def outcome(story: Story, lease: LeaseId, peer: PeerId = ALPHA, *, passed: int = 1, at_ms: int = 7) -> AuditOutcome:
    row = AuditRow(
        lease=lease, peer=peer, at_ms=at_ms, tokens=28, counts=(), worst=0.0, evidence=0.0, passed=passed > 0
    )
    return AuditOutcome(row=row, known=AuditHistory(passed=passed))


def delivered(story: Story, peer: PeerId = ALPHA) -> LeaseId:
    lease = story.lease(peer)
    story.deliver(lease, peer, Rule.ADMITTED, version=PolicyVersion(1, 0))
    return lease


def test_audits_are_written_together_in_their_order(story: Story) -> None:
    trust = story.ledger.trust
    first, second, third = delivered(story), delivered(story, BETA), delivered(story)
    before = commits(story.ledger.path)
    failed = replace(
        outcome(story, third, passed=0), revised={third: (Rule.AUDIT, "off", b"revised")}, dropped={third: "audit"}
    )
    trust.audited([outcome(story, first), outcome(story, second, BETA, passed=3), failed])
    assert commits(story.ledger.path) - before == 1
    assert [row.lease for row in trust.audits(ALPHA)] == [first, third]
    assert trust.audits_of([first, second, third]) == {first: True, second: True, third: False}
    known = trust.confidence_of([ALPHA, BETA])
    assert (known[ALPHA].passed, known[BETA].passed) == (0, 3), "audits must count after the last failure of each peer"
    assert trust.untold_revisions(ALPHA, 10) == [(third, b"revised")]
    assert [trust.is_dropped(lease) for lease in (first, second, third)] == [False, False, True]
    assert trust.kept_lease(third) is not None


def test_of_audits_that_cannot_all_be_written_none_is(story: Story) -> None:
    trust = story.ledger.trust
    first, second = delivered(story), delivered(story)
    with pytest.raises(sqlite3.IntegrityError):
        trust.audited([outcome(story, first), outcome(story, second), outcome(story, first)], margins=MARGINS)
    assert trust.audits_of([first, second]) == {}
    assert trust.confidence_of([ALPHA]) == {}
    assert story.ledger.query("SELECT * FROM margins") == []


def test_margins_are_in_force_for_every_audit_that_went_by_them_and_written_once(story: Story) -> None:
    trust = story.ledger.trust
    leases = [delivered(story) for _ in range(4)]
    trust.audited(
        [outcome(story, one, at_ms=at) for one, at in zip(leases[:3], (9, 7, 8), strict=True)], margins=MARGINS
    )
    trust.audited([outcome(story, leases[3], at_ms=20)], margins=MARGINS)
    [(since_ms, text)] = story.ledger.query("SELECT since_ms, margins FROM margins")
    assert (since_ms, len(json.loads(text))) == (7, len(MARGINS))
    assert all(tuple(trust.margins()(row)) == tuple(MARGINS) for row in trust.audits(ALPHA))


def test_no_audit_writes_nothing(story: Story) -> None:
    story.ledger.trust.audited([], margins=MARGINS)
    assert story.ledger.query("SELECT * FROM margins") == []
