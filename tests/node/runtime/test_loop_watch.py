"""Name the code that holds the event loop, and no other."""

from __future__ import annotations

import subprocess
import sys
from time import thread_time

import pytest
import trio
import trio.testing

from node.runtime import loop_watch
from node.runtime.events import EventLog, Field
from node.runtime.loop_delay import LoopFigures
from node.runtime.loop_watch import AGAIN_S, HELD_CPU_S, HELD_S, READ_S, TROUBLE_S, LoopWatch, watched_loop

Log = list[tuple[str, dict[str, Field]]]


def log_of(events: EventLog) -> Log:
    log: Log = []
    events.listen(lambda name, fields: log.append((name, dict(fields))))
    return log


def named(log: Log, name: str) -> list[dict[str, Field]]:
    return [fields for event, fields in log if event == name]


async def hold(cpu_s: float, watch: LoopWatch) -> None:
    """Compute for so long without a checkpoint, and until the thread that looks has seen it."""
    began = thread_time()
    while thread_time() - began < cpu_s or watch._seen[0] != watch._began_s:
        sum(range(1000))
    await trio.lowlevel.checkpoint()


async def test_who_holds_the_loop_is_named_with_its_place_in_the_code() -> None:
    events = EventLog()
    log = log_of(events)
    with watched_loop(events) as watch:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.tell, events)
            await trio.lowlevel.checkpoint()
            nursery.start_soon(hold, 2 * HELD_CPU_S, watch)
            while not named(log, "loop_held"):
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    [held] = [event for event in named(log, "loop_held") if str(event["task"]).endswith("test_loop_watch.hold")]
    assert "node/runtime/test_loop_watch.py:" in str(held["where"])
    assert " in hold" in str(held["where"])
    assert float(held["processor_s"] or 0) >= HELD_CPU_S
    [measured] = named(log, "loop_measured")
    assert float(measured["worst_processor_s"] or 0) >= HELD_CPU_S
    assert "hold, seen at" in str(measured["culprit"])


async def test_who_is_watched_is_let_go_of() -> None:
    with watched_loop(EventLog()):
        pass
    with pytest.raises(KeyError):
        trio.lowlevel.remove_instrument(LoopWatch())
    with watched_loop(EventLog()) as watch:
        trio.lowlevel.remove_instrument(watch)  # as trio does with one that has raised


# By clocks that are set


class Clocks:
    """Wall and processor time of the loop's thread."""

    def __init__(self) -> None:
        self.wall_s, self.cpu_s = 1000.0, 50.0
        self.reads = 0

    def processor(self) -> float:
        self.reads += 1
        return self.cpu_s

    def work(self, wall_s: float, cpu_s: float) -> None:
        self.wall_s += wall_s
        self.cpu_s += cpu_s


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(loop_watch, "perf_counter", lambda: clocks.wall_s)
    monkeypatch.setattr(loop_watch, "thread_time", clocks.processor)
    return clocks


def turn(watch: LoopWatch, clocks: Clocks, *steps: tuple[float, float]) -> None:
    """A turn of the loop with these steps, (wall, processor) seconds each, after a wait of a second."""
    clocks.work(1.0, 0.0)
    watch.after_io_wait(0.0)
    for wall_s, cpu_s in steps:
        watch.before_task_step(trio.lowlevel.current_task())
        clocks.work(wall_s, cpu_s)
    watch.before_io_wait(0.0)


async def test_a_steps_processor_time_is_its_own_to_a_few_milliseconds(clocks: Clocks) -> None:
    watch = LoopWatch()
    short = (READ_S / 10, READ_S / 10)
    turn(watch, clocks, *[short] * 200, (0.06, 0.04), *[short] * 200)
    found = watch.figures()
    assert 0.04 <= found.step_cpu_s <= 0.04 + READ_S
    assert found.longest_s == pytest.approx(0.06 + 400 * READ_S / 10, abs=1e-4)
    assert watch.num_held == 0, "a turn of many steps is long, and no step of it held the loop"


async def test_short_steps_cost_one_clock(clocks: Clocks) -> None:
    watch = LoopWatch()
    turn(watch, clocks)
    before = clocks.reads
    turn(watch, clocks, *[(READ_S / 1000, READ_S / 1000)] * 900)
    assert clocks.reads - before <= 2


@pytest.mark.parametrize(
    ("wall_s", "cpu_s", "is_told"),
    [
        (HELD_CPU_S - 0.01, HELD_CPU_S - 0.01, False),
        (HELD_CPU_S + 0.01, HELD_CPU_S + 0.01, True),
        (HELD_S - 0.1, 0.0, False),  # the machine was busy with something else
        (HELD_S + 0.1, 0.0, True),  # a disk, or another thread's lock
    ],
)
async def test_what_is_told(clocks: Clocks, wall_s: float, cpu_s: float, is_told: bool) -> None:
    watch = LoopWatch()
    turn(watch, clocks, (wall_s, cpu_s))
    assert watch.num_held == is_told
    assert bool(watch.figures().culprit) == is_told


async def told(watch: LoopWatch) -> Log:
    """What it tells now."""
    events = EventLog()
    log = log_of(events)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.tell, events)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return log


async def test_one_task_is_told_of_once_a_minute_unless_it_grows_worse(clocks: Clocks) -> None:
    watch, events = LoopWatch(), EventLog()
    log = log_of(events)
    heard: dict[str, tuple[float, float]] = {}
    for wall_s, times in ((0.1, 1), (0.1, 1), (0.15, 1), (0.3, 2), (0.3, 2)):
        turn(watch, clocks, (wall_s, wall_s))
        watch._emit(watch._news.popleft(), heard, clocks.wall_s, events)
        assert len(named(log, "loop_held")) == times
    clocks.work(AGAIN_S, 0.0)
    turn(watch, clocks, (0.1, 0.1))
    watch._emit(watch._news.popleft(), heard, clocks.wall_s, events)
    assert len(named(log, "loop_held")) == 3
    assert watch.num_held == 6


async def test_only_a_step_of_seconds_is_shown_to_people(clocks: Clocks) -> None:
    watch = LoopWatch()
    turn(watch, clocks, (TROUBLE_S - 0.1, 0.5))
    assert [name for name, _ in await told(watch)] == ["loop_held"]
    turn(watch, clocks, (4 * TROUBLE_S, 0.5))
    log = await told(watch)
    assert [name for name, _ in log] == ["loop_held", "trouble"]
    assert "the event loop was held by" in str(named(log, "trouble")[0]["text"])


async def test_figures_are_shown_now_and_then(clocks: Clocks) -> None:
    watch, shown = LoopWatch(), list[LoopFigures]()
    turn(watch, clocks, (0.2, 0.2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.tell, EventLog(), shown.append)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [figures.longest_s for figures in shown] == [0.2]
    assert watch.latest == shown[0]


FREEZE = """
import gc
import node.learner_role.command
from node.runtime.loop_watch import spare_collections
before = len(gc.get_objects())
spare_collections()
print(before, gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_what_was_there_before_the_loop_is_in_no_collection() -> None:
    """In a process of its own: it would hold for all tests that follow."""
    found = subprocess.run([sys.executable, "-c", FREEZE], capture_output=True, check=True, text=True).stdout
    before, frozen, left = map(int, found.split())
    assert frozen > 0.9 * before
    assert left < 0.01 * before
