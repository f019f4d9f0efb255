"""The run of the page's benchmark: what it writes is a learner's, and its slope is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.live.hour_of_run import GROUP, GROUPS, LedgerWriter, LogWriter, events_at, peer_of
from benchmarks.live.page_day import HOUR_S, RENDER_S, Day
from benchmarks.page import slope, slope_error
from node.commands.page.event_tail import EventTail
from node.commands.page.feed import Feed
from node.commands.page.live_run import LiveRun, State
from node.reports import swarm_report
from node.reports.model.report import Role
from node.runtime.event_reference import LEARNER_EVENTS
from node.state.locate import StateLocation
from node.ui.live_view import ViewState
from node.web.terms import PageTerms

PEERS = [peer_of(number) for number in range(3)]


def test_the_ledger_is_a_learners(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "ledger.sqlite", 1_760_000_000_000, PEERS)
    for second in range(20):
        writer.write(second)
    writer.ledger.close()
    report = swarm_report(tmp_path / "ledger.sqlite", with_history=True)
    assert (len(report.steps), len(report.versions), len(report.rollout_peers)) == (20, 20, 3)
    assert report.admitted == 20 * GROUPS * GROUP
    assert report.wall_s == pytest.approx(20, abs=2)


def test_the_log_is_a_learners(tmp_path: Path) -> None:
    log, tail = LogWriter(tmp_path / "events.jsonl"), EventTail(path=tmp_path / "events.jsonl")
    for second in range(20):
        log.write(1000.0 + second, events_at(second, PEERS))
    logged = tail.read() or []
    assert {one.event for one in logged} <= set(LEARNER_EVENTS)
    run = LiveRun(view=ViewState(role=Role.LEARNER, batch=4, steps=100))
    run.take(logged)
    assert run.state is State.RUNNING
    assert (run.view.step, run.view.pace.step_s, run.view.newest) == (20, 1.0, "1.20")
    assert run.view.admitted == 20 * GROUPS * GROUP


def test_the_slope_is_the_growth_an_hour() -> None:
    assert slope([5.0, 7.0, 9.0]) == pytest.approx(2.0)
    assert slope([5.0, 5.1, 4.9, 5.0]) == pytest.approx(0.0, abs=0.05)


def test_the_slopes_error_is_that_of_the_values_around_the_line() -> None:
    assert slope_error([1.0, 2.0, 3.0, 4.0]) == pytest.approx(0.0, abs=1e-9)
    assert slope_error([1.0, 0.0, 0.0, 1.0]) == pytest.approx((1 / 10) ** 0.5)


async def test_a_day_changes_every_part_of_the_page_at_each_step(tmp_path: Path) -> None:
    terms = PageTerms(socket=0, kind="learner", title="x", state=str(tmp_path), token="0123456789abcdef")
    feed = Feed(terms=terms, place=StateLocation(state=tmp_path, is_learner=True))
    day = Day(feed=feed, state=tmp_path)
    day.go_on()
    assert feed.live.view.step == RENDER_S
    for _ in range(HOUR_S // RENDER_S):
        before = feed.board.revision
        day.go_on()
        assert {part.key for part in feed.board.since(before)} >= {
            "head",
            "figures",
            "plots",
            "costs",
            "story",
            "peers",
        }
    assert feed.live.view.step == HOUR_S + RENDER_S
