"""The learner goes on with any failure of a metrics sink, and reports it once."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from node.learner_role.metrics import sinks
from node.learner_role.metrics.board import Row, Series
from node.learner_role.metrics.sinks import NOTICE_S, QUEUE, RETRY_S, SinkQueue, feed_queues
from node.runtime.events import EventLog, Field


def row(step: int, incarnation: int = 1) -> Row:
    return Row(incarnation=incarnation, step=step, at_ms=step, values={Series("reward"): step / 100})


@dataclass(kw_only=True)
class ListSink:
    """Keeps rows in memory; fails at those steps of `fails`, once each."""

    fails: set[int] = field(default_factory=set)
    rows: list[int] = field(default_factory=list)
    begun: list[tuple[int, int]] = field(default_factory=list)
    closed: int = 0
    name: str = "list"

    def begin(self, incarnation: int, base: int) -> None:
        self.begun.append((incarnation, base))
        self.rows = [step for step in self.rows if step <= base]

    def write(self, row: Row) -> None:
        if row.step in self.fails:
            self.fails.remove(row.step)
            raise OSError(28, "No space left on device")
        self.rows.append(row.step)

    def close(self) -> None:
        self.closed += 1


@dataclass
class Stage:
    """An outlet with its sink, what was said of it, and how many rows were lost."""

    sink: ListSink
    log: list[tuple[str, dict[str, Field]]] = field(default_factory=list)
    lost: int = 0

    def __post_init__(self) -> None:
        events = EventLog()
        events.listen(lambda name, fields: self.log.append((name, fields)))
        self.outlet = SinkQueue(sink=self.sink, events=events, lost=self.count)

    def count(self, rows: int) -> None:
        self.lost += rows


@dataclass(kw_only=True)
class NoticingSink(ListSink):
    """Has something to tell, too."""

    notices: list[str] = field(default_factory=list)

    def notice(self) -> str:
        return self.notices.pop(0) if self.notices else ""


async def test_what_a_sink_notices_is_said_once_also_while_no_row_comes(autojump_clock: trio.testing.MockClock) -> None:
    sink = NoticingSink()
    stage = Stage(sink)
    async with feed_queues([stage.outlet]):
        sink.notices.append("nobody answers there")
        await trio.sleep(2 * NOTICE_S)
        assert stage.log == [("metrics_noticed", {"sink": "list", "text": "nobody answers there"})]
        await trio.sleep(10 * NOTICE_S)
        sink.notices.append("somebody does again")
    assert [fields["text"] for _, fields in stage.log] == ["nobody answers there", "somebody does again"]


async def test_rows_arrive_in_order_and_what_waits_at_the_end_as_well() -> None:
    stage = Stage(ListSink())
    async with feed_queues([stage.outlet]):
        stage.outlet.begin(1, 0)
        for step in range(1, 10):
            stage.outlet.put(row(step))
    assert stage.sink.rows == list(range(1, 10))
    assert (stage.sink.begun, stage.sink.closed, stage.lost) == ([(1, 0)], 1, 0)


async def test_a_restart_supersedes_what_was_written_of_lost_steps() -> None:
    stage = Stage(ListSink())
    async with feed_queues([stage.outlet]):
        stage.outlet.begin(1, 0)
        for step in (1, 2, 3, 4):
            stage.outlet.put(row(step))
        while stage.sink.rows != [1, 2, 3, 4]:
            await trio.testing.wait_all_tasks_blocked()
        stage.outlet.begin(2, 2)
        stage.outlet.put(row(3, 2))
    assert stage.sink.rows == [1, 2, 3]
    assert stage.sink.begun == [(1, 0), (2, 2)]


async def test_a_restart_loses_nothing_of_the_steps_that_survive() -> None:
    """They may wait still, for a sink that is slow, or that was left alone after a failure."""
    stage = Stage(ListSink())
    stage.outlet.begin(1, 0)
    for step in (1, 2, 3, 4):
        stage.outlet.put(row(step))
    stage.outlet.begin(2, 2)
    stage.outlet.put(row(3, 2))
    stage.outlet.begin(3, 3)
    await stage.outlet.finish()
    assert stage.sink.rows == [1, 2, 3]
    assert stage.sink.begun == [(1, 0), (2, 2), (3, 3)]
    assert stage.lost == 0


async def test_restarts_one_after_the_other_fill_no_queue() -> None:
    stage = Stage(ListSink())
    for incarnation in range(1, 3 * QUEUE):
        stage.outlet.begin(incarnation, 0)
    stage.outlet.put(row(1))
    assert len(stage.outlet._queue) == 2
    await stage.outlet.finish()
    assert (stage.sink.rows, stage.sink.begun) == ([1], [(3 * QUEUE - 1, 0)])


async def test_a_sink_that_fails_is_said_once_and_tried_again(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def here(work: object, **options: object) -> None:
        work()  # type: ignore[operator]

    monkeypatch.setattr(trio.to_thread, "run_sync", here)  # the mock clock would jump while a thread works
    stage = Stage(ListSink(fails={2, 3}))
    async with feed_queues([stage.outlet]):
        stage.outlet.begin(1, 0)
        for step in (1, 2, 3, 4):
            stage.outlet.put(row(step))
            await trio.sleep(1)
        await trio.sleep(3 * RETRY_S)
        assert stage.sink.rows == [1, 4]
    assert stage.lost == 2
    [(event, fields)] = stage.log
    assert event == "metrics_failed"
    assert fields["sink"] == "list"
    assert "No space left" in str(fields["reason"])
    # Begun again where it stood: what it had written is not superseded.
    assert stage.sink.begun == [(1, 0), (1, 1), (1, 1)]


async def test_a_queue_is_bounded_and_loses_the_oldest() -> None:
    stage = Stage(ListSink())
    stage.outlet.begin(1, 0)
    for step in range(QUEUE + 10):
        stage.outlet.put(row(step))
    async with feed_queues([stage.outlet]):
        pass
    assert stage.lost == 11  # the word that it begins waits there as well, and is not lost
    assert stage.sink.rows == list(range(11, QUEUE + 10))


async def test_a_sink_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "CLOSE_S", 0.05)
    release = threading.Event()

    @dataclass(kw_only=True)
    class Hanging(ListSink):
        def write(self, row: Row) -> None:
            release.wait(30)

    stages = [Stage(Hanging()), Stage(ListSink())]
    try:
        async with feed_queues([stage.outlet for stage in stages]):
            for stage in stages:
                stage.outlet.begin(1, 0)
                stage.outlet.put(row(1))
            while not stages[1].sink.rows:  # the one that hangs is in its write by now, or soon
                await trio.testing.wait_all_tasks_blocked()
        assert stages[1].sink.rows == [1]
    finally:
        release.set()


async def test_a_cancelled_learner_still_writes_what_waits() -> None:
    stage = Stage(ListSink())
    with trio.CancelScope() as scope:
        async with feed_queues([stage.outlet]):
            stage.outlet.begin(1, 0)
            stage.outlet.put(row(1))
            scope.cancel()
            await trio.sleep_forever()
    assert stage.sink.rows == [1]
    assert stage.sink.closed == 1
