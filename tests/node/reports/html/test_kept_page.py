"""A kept page: what makes it anew, what is told, and when it ends. Time is trio's, and passes by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from node.config.swarm_config import LearnSection, ModelSection, SwarmConfig, SwarmSection
from node.reports import OwnReport, SwarmReport
from node.reports.html.kept_page import RESTART_S, KeptPage
from node.reports.readers import place_report
from node.reports.readers.place_report import mark_of, pause_after, read_report
from node.runtime.errors import RunError
from node.state.locate import StateLocation
from node.state.status_file import NodeStatus, StatusFile
from protocol.core.ids import PolicyVersion
from tests.support.disks import file_limit
from tests.support.ledgers import ALPHA, Story, open_story, peer_row

EVERY_S = 10.0


def config(*, steps: int) -> SwarmConfig:
    return SwarmConfig(
        swarm=SwarmSection(name="words"), model=ModelSection(directory="model"), learn=LearnSection(steps=steps)
    )


@dataclass
class Run:
    """A learner that runs, as its status file says, and the page that is kept of it."""

    directory: Path
    story: Story
    status: StatusFile
    said: list[str] = field(default_factory=list)
    reads: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self.place = StateLocation(state=self.directory / "state", is_learner=True)
        self.path = self.directory / "web" / "run.html"
        self.path.parent.mkdir()
        self.page = KeptPage(place=self.place, path=self.path, every_s=EVERY_S, tell=self.said.append, read=self.read)

    def read(self, place: StateLocation) -> SwarmReport | OwnReport:
        self.reads += 1
        return read_report(place, with_history=True)

    def go_on(self) -> None:
        self.steps += 1
        self.story.publish(PolicyVersion(1, self.steps))

    @property
    def versions(self) -> int:
        found = re.search(r"(\d+) version", self.path.read_text(encoding="utf-8"))
        return int(found[1]) if found else 0

    @property
    def loads_again(self) -> bool:
        return 'http-equiv="refresh"' in self.path.read_text(encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(place_report, "PAUSE_OF_COST", 0.0)  # what a real processor takes has no place in virtual time
    (tmp_path / "state").mkdir()
    story, status = open_story(tmp_path / "state" / "ledger.sqlite"), StatusFile(tmp_path / "state")
    story.join(peer_row(ALPHA, "alpha"))
    status.show(NodeStatus(doing="at work", limits={}))
    made = Run(tmp_path, story, status)
    made.go_on()
    yield made
    story.ledger.close()


async def looks(number: float) -> None:
    """Let the page be looked at so many times."""
    await trio.sleep(number * EVERY_S)


async def test_it_is_written_when_the_run_has_changed_and_not_otherwise(run: Run, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.page.run)
        await looks(1.5)
        assert (run.versions, run.reads, run.loads_again) == (1, 1, True)
        first = run.path.stat()
        await looks(50)
        assert run.reads == 1, "a ledger that has not changed was read"
        assert run.path.stat() == first
        run.go_on()
        await looks(1)
        assert (run.versions, run.reads) == (2, 2)
        assert run.path.stat().st_ino != first.st_ino, "a browser could read half of a page"
        nursery.cancel_scope.cancel()
    assert len(run.said) == 1
    assert [entry.name for entry in run.path.parent.iterdir()] == ["run.html"]


async def test_a_file_that_somebody_removed_is_written_again(run: Run, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.page.run)
        await looks(0.5)
        run.path.unlink()
        await looks(1)
        assert (run.versions, run.reads) == (1, 1)
        nursery.cancel_scope.cancel()


async def test_trouble_is_told_once_and_tried_again(run: Run, autojump_clock: MockClock) -> None:
    aside = run.directory / "aside"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.page.run)
        await looks(0.5)
        run.path.parent.rename(aside)
        await looks(20)
        assert len(run.said) == 2
        assert run.said[1].startswith(f"{run.path} cannot be written: No such file or directory. Check that")
        assert run.reads == 1, "a page that cannot be written was made again"
        aside.rename(run.path.parent)
        await looks(1)
        assert run.said[2:] == [f"{run.path} is up to date again."]
        run.go_on()
        with file_limit(1000):
            await looks(5)
        assert "File too large" in run.said[3]
        assert (len(run.said), run.versions) == (4, 1)
        assert [entry.name for entry in run.path.parent.iterdir()] == ["run.html"]
        await looks(1)
        assert (len(run.said), run.versions) == (5, 2)
        nursery.cancel_scope.cancel()


async def test_a_ledger_that_is_away_is_told_once(run: Run, autojump_clock: MockClock) -> None:
    aside = run.directory / "aside"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.page.run)
        await looks(0.5)
        run.place.database.rename(aside)
        await looks(5)
        assert len(run.said) == 2
        assert "there is no ledger" in run.said[1]
        assert run.versions == 1, "the page stays as it was"
        aside.rename(run.place.database)
        await looks(1)
        assert run.said[2:] == [f"{run.path} is up to date again."]
        nursery.cancel_scope.cancel()


async def test_it_ends_with_the_run_and_not_with_a_restart(run: Run, autojump_clock: MockClock) -> None:
    with trio.fail_after(2 * RESTART_S + 10 * EVERY_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.page.run)
            await looks(1.5)
            run.status.clear()
            await trio.sleep(RESTART_S - 2 * EVERY_S)
            run.status.show(NodeStatus(doing="at work again", limits={}))
            await looks(2)
            run.status.clear()
            run.go_on()
            await looks(1)
            assert (run.versions, run.loads_again) == (2, True)
    assert (run.versions, run.loads_again) == (2, False)
    assert len(run.said) == 2
    assert "has ended" in run.said[1]


async def test_a_run_that_took_its_last_step_ends_with_its_program(run: Run, autojump_clock: MockClock) -> None:
    run.page.place = replace(run.place, config=config(steps=1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.page.run)
        run.story.train(1, {})
        await looks(1.5)
        assert run.loads_again, "its program still runs"
        run.status.clear()
        await looks(1)
        assert not run.loads_again
        assert "has ended" in run.said[-1]


async def test_without_a_running_program_there_is_one_page(run: Run, autojump_clock: MockClock) -> None:
    run.status.clear()
    await run.page.run()
    assert (run.versions, run.reads, run.loads_again, len(run.said)) == (1, 1, False, 1)


async def test_a_first_page_that_cannot_be_made_is_an_error(run: Run) -> None:
    run.place.database.unlink()
    with pytest.raises(RunError, match="there is no ledger"):
        await run.page.run()
    assert run.said == []


def test_a_long_run_is_read_less_often() -> None:
    assert pause_after(0.1, EVERY_S) == EVERY_S
    assert pause_after(2.0, EVERY_S) == 80.0


def test_reading_a_ledger_is_no_change_of_it(run: Run) -> None:
    """Also when its writer has gone, and the reader itself makes and removes the log."""
    run.story.ledger.close()
    before = mark_of(run.place)
    for _ in range(2):
        run.read(run.place)
        assert mark_of(run.place) == before
