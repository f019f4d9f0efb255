"""The ledger's observations: every row on its day, once, and the same for every reader."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from learner.ledger.ledger import Ledger
from learner.ledger.reputation import PARDON, Judging, observed_days
from learner.ledger.rows import AuditRow
from learner.ledger.sqlite.database import snapshot
from learner.ledger.trust import AuditOutcome
from learner.trust.audit_history import AuditHistory
from learner.trust.observations import EXCUSED_A_DAY, MISSED_MS
from protocol.accounting.reputation import DAY_MS, WINDOW_DAYS, ObservedDay
from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.work import Rule
from tests.support.ledgers import ALPHA, BETA, GAMMA, START_MS, SWARM, Story, open_story, peer_row

V0 = PolicyVersion(1, 0)
DAY = START_MS // DAY_MS
JUDGING = Judging(blaming=frozenset({Rule.SETTINGS, Rule.AUDIT}), excused=frozenset({"goodbye"}))
DAY_S = DAY_MS / 1000


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    story = open_story(tmp_path / "ledger.sqlite")
    for peer in (ALPHA, BETA, GAMMA):
        story.join(peer_row(peer, "a peer"))
    yield story
    story.ledger.close()


def days_of(story: Story, peer: PeerId = ALPHA, *, now_ms: int | None = None) -> list[ObservedDay]:
    with snapshot(story.ledger.path) as db:
        return observed_days(db, story.now_ms if now_ms is None else now_ms, JUDGING).get(peer, [])


def audited(story: Story, lease: LeaseId, *, passed: bool) -> None:
    row = AuditRow(
        lease=lease, peer=ALPHA, at_ms=story.now_ms, tokens=1, counts=(), worst=0.0, evidence=0.0,
        passed=passed,
    )  # fmt: skip
    story.ledger.trust.audited([AuditOutcome(row=row, known=AuditHistory())])


def test_every_row_is_counted_on_its_day(story: Story) -> None:
    fine, wrong, late, stale = (story.lease(ALPHA) for _ in range(4))
    story.deliver(fine, ALPHA, Rule.ADMITTED, Rule.ADMITTED, version=V0)
    story.deliver(wrong, ALPHA, Rule.SETTINGS, Rule.SETTINGS, version=V0)
    audited(story, fine, passed=True)
    story.relay(BETA, V0, {ALPHA: 700, GAMMA: 50})
    story.here(ALPHA)
    story.now_s += DAY_S
    story.deliver(late, ALPHA, Rule.LATE, Rule.LATE, version=V0)
    story.deliver(stale, ALPHA, Rule.STALE, version=V0)
    story.ledger.work.leases_closed([story.lease(ALPHA)], "expired", story.now_ms)
    story.ledger.work.leases_closed([story.lease(ALPHA)], "recalled", story.now_ms)
    audited(story, wrong, passed=False)
    story.here(ALPHA)
    before_midnight = (DAY + 1) * DAY_MS - START_MS
    assert days_of(story) == [
        ObservedDay(
            day=DAY, present_ms=before_midnight, leases_in_time=2, groups_clean=1, groups_blamed=1, audits_passed=1,
            bytes_given=700,
        ),
        ObservedDay(
            day=DAY + 1, present_ms=DAY_MS - before_midnight, leases_in_time=1, leases_failed=2, groups_clean=2,
            audits_failed=1,
        ),
    ]  # fmt: skip
    assert [(one.bytes_given, one.bytes_had) for one in days_of(story, BETA)] == [(0, 750)]


def test_a_group_that_is_late_and_wrong_counts_once_each_way(story: Story) -> None:
    story.deliver(story.lease(ALPHA), ALPHA, Rule.LATE, Rule.SETTINGS, Rule.AUDIT, version=V0)
    [day] = days_of(story)
    assert (day.leases_in_time, day.leases_failed, day.groups_clean, day.groups_blamed) == (0, 1, 0, 1)


def test_what_others_say_of_a_lease_is_held_against_nobody(story: Story) -> None:
    story.deliver(story.lease(ALPHA), BETA, Rule.SETTINGS, version=V0)
    assert [(one.groups_clean, one.groups_blamed) for one in days_of(story)] == [(1, 0)]
    assert not any(one.groups_blamed for one in days_of(story, BETA))


def test_leases_given_up_are_excused_some_times_a_day_and_not_more(story: Story) -> None:
    for number in range(EXCUSED_A_DAY + 2):
        status = "lost" if number % 2 else "returned"
        story.ledger.work.leases_closed([story.lease(ALPHA), story.lease(ALPHA)], status, story.now_ms)
        story.now_s += 120
    [day] = days_of(story)
    assert day.leases_failed == 4


@pytest.mark.parametrize(("reason", "missing_ms"), [("goodbye", 0), ("", 0), ("the line broke", MISSED_MS)])
def test_who_vanishes_is_missing_for_a_while_and_who_says_goodbye_is_not(
    story: Story, reason: str, missing_ms: int
) -> None:
    story.now_s = 60
    story.here(ALPHA, reason=reason)
    story.now_s = 7200
    assert sum(one.missed_ms for one in days_of(story)) == missing_ms
    story.ledger.training.begin_incarnation(0, story.now_ms)
    story.join(peer_row(ALPHA, "a peer"))
    assert sum(one.missed_ms for one in days_of(story)) == 0, "time without a learner must not count as missed"


def test_what_is_out_of_the_window_is_left_out_and_nothing_after_the_day_is_known(story: Story) -> None:
    story.deliver(story.lease(ALPHA), ALPHA, Rule.ADMITTED, version=V0)
    story.here(ALPHA)
    story.now_s += WINDOW_DAYS * DAY_S
    assert [one.day for one in days_of(story)] == [DAY]
    assert days_of(story, now_ms=START_MS + (WINDOW_DAYS + 1) * DAY_MS) == []


def test_a_pardon_forgives_what_was_bad_and_keeps_what_was_good(story: Story) -> None:
    fine, wrong = story.lease(ALPHA), story.lease(ALPHA)
    story.deliver(fine, ALPHA, Rule.ADMITTED, version=V0)
    story.deliver(wrong, ALPHA, Rule.LATE, Rule.SETTINGS, version=V0)
    story.ledger.work.leases_closed([story.lease(ALPHA)], "expired", story.now_ms)
    audited(story, fine, passed=True)
    audited(story, wrong, passed=False)
    story.here(ALPHA, reason="the line broke")
    story.now_s += 3600
    story.ledger.trust.confidence_written(ALPHA, AuditHistory(), story.now_ms, decision=PARDON)
    [day] = days_of(story)
    good = ObservedDay(day=DAY, leases_in_time=1, groups_clean=1, audits_passed=1)
    assert day == good
    story.now_s += 1
    story.ledger.work.leases_closed([story.lease(ALPHA)], "expired", story.now_ms)
    [day] = days_of(story)
    assert day.leases_failed == 1


def test_a_ledger_of_an_older_program_tells_less_and_a_restart_changes_nothing(story: Story) -> None:
    story.deliver(story.lease(ALPHA), ALPHA, Rule.ADMITTED, version=V0)
    audited(story, LeaseId(bytes(15) + b"\1"), passed=True)
    story.relay(BETA, V0, {ALPHA: 700})
    told = days_of(story)
    story.ledger.close()
    story.ledger = open_ledger(story.ledger.path)
    assert days_of(story) == told
    with closing(sqlite3.connect(story.ledger.path)) as db:
        for table in ("decisions", "audits", "relayed", "recalled"):
            db.execute(f"DROP TABLE {table}")
        db.commit()
    [day] = days_of(story)
    assert day == ObservedDay(day=DAY, leases_in_time=1, groups_clean=1)


def open_ledger(path: Path) -> Ledger:
    return Ledger(path, swarm=SWARM)
