"""The feed: parts from events and reports, both boards, and what is done when something cannot be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from node.commands.page import feed as module
from node.commands.page.feed import Feed
from node.commands.page.parts.learner_head import READING
from node.config.swarm_config import LearnSection, ModelSection, SwarmConfig, SwarmSection
from node.reports.model.report import SwarmReport
from node.reports.readers import place_report
from node.runtime.events import EventLog
from node.state.locate import StateLocation
from node.web.terms import PageTerms
from tests.support.page_stories import rich_report

TOKEN = "0123456789abcdef"


def feed_of(state: Path, *, is_public: bool = False) -> Feed:
    terms = PageTerms(socket=0, kind="learner", title="a swarm", state=str(state), token=TOKEN, public=is_public)
    return Feed(terms=terms, place=StateLocation(state=state, is_learner=True))


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_PAUSE_S", 0.05)
    monkeypatch.setattr(place_report, "PAUSE_OF_COST", 0.0)
    monkeypatch.setattr(module, "LOOK_S", 0.01)


async def until_part(feed: Feed, key: str, text: str) -> None:
    with trio.fail_after(60):
        while text not in feed.board.html(key):
            await feed.board.wait_changed(feed.board.revision)


async def test_events_and_reports_become_parts(tmp_path: Path) -> None:
    rich_report(tmp_path / "ledger.sqlite")
    log, feed = EventLog(tmp_path / "events.jsonl"), feed_of(tmp_path)
    feed.catch_up()
    assert READING in feed.board.html("learned")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run)
        await until_part(feed, "peers", "live-peers")
        assert READING not in "".join(feed.board.html(key) for key in feed.board.keys)
        log.emit("step", step=5, buffered=0, reward=0.5)
        log.emit("version_published", version="1.5")
        await until_part(feed, "head", "version 1.5 is published")
        (tmp_path / "invite").write_text("volery1AAAA")
        await until_part(feed, "invite", "volery join volery1AAAA")
        nursery.cancel_scope.cancel()
    assert feed.public.keys == [], "without readers nothing is made for them"


async def test_a_ledger_that_cannot_be_read_leaves_the_parts_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    rich_report(path)
    feed = feed_of(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run)
        await until_part(feed, "peers", "live-peers")
        whole = path.read_bytes()
        for spoilt in (b"", b"x" * 4096, whole[:5000]):
            path.write_bytes(spoilt)
            reading = await trio.to_thread.run_sync(feed._read)
            assert reading.report is None
            assert "live-peers" in feed.board.html("peers")
            assert isinstance(feed.report, SwarmReport)
        nursery.cancel_scope.cancel()


async def test_a_public_board_has_its_parts_alone(tmp_path: Path) -> None:
    rich_report(tmp_path / "ledger.sqlite")
    EventLog(tmp_path / "events.jsonl").emit("trouble", text="SECRET")
    feed = feed_of(tmp_path, is_public=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run)
        await until_part(feed, "peers", "live-peers")
        nursery.cancel_scope.cancel()
    assert set(feed.public.keys) == set(feed.keys(is_public=True))
    assert "<table" in feed.public.html("peers")
    assert "SECRET" in feed.board.html("notices")
    assert "SECRET" not in "".join(map(feed.public.html, feed.public.keys))


async def test_the_same_report_again_wakes_nobody(tmp_path: Path) -> None:
    rich_report(tmp_path / "ledger.sqlite")
    feed = feed_of(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run)
        await until_part(feed, "peers", "live-peers")
        revision = feed.board.revision
        before = {key: feed.board.html(key) for key in feed.board.keys}
        for _ in range(3):
            parts = (await trio.to_thread.run_sync(feed._read)).parts
            assert {key: part.text for key, part in parts[0].items()}.items() <= before.items()
        assert feed.board.revision == revision
        nursery.cancel_scope.cancel()


def test_the_end_is_shown(tmp_path: Path) -> None:
    feed = feed_of(tmp_path)
    feed.end()
    assert ">stopped<" in feed.board.html("head")


async def test_the_report_has_the_window_that_the_operator_set(tmp_path: Path) -> None:
    rich_report(tmp_path / "ledger.sqlite")
    config = SwarmConfig(
        swarm=SwarmSection(name="a swarm"),
        model=ModelSection(directory="model"),
        learn=LearnSection(steps=9, staleness=3),
    )
    feed = feed_of(tmp_path)
    feed = Feed(terms=feed.terms, place=replace(feed.place, config=config))
    for window, asked in ((3, None), (5, 5)):
        if asked:
            EventLog(tmp_path / "events.jsonl").emit("setting_changed", key="staleness", value=asked, by="a test")
            feed.catch_up()
        report = (await trio.to_thread.run_sync(feed._read)).report
        assert isinstance(report, SwarmReport)
        assert report.staleness == window
