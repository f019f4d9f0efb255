"""The event loop, watched always: how long it makes peers and timers wait, and who held it.

A trio instrument looks at the clock before each task step, and when the loop goes to wait. A thread looks a few times a
second whether one step lasts, and where it is: when the step is over, its frames are gone. Nothing here decides; the
figures are `node.runtime.loop_delay`'s.

Invariants:
- Between two steps one clock is read; the thread's processor time is read only once READ_S have passed. So processor
  time of a step is told up to READ_S too high, and never too low.
- What was held for long is an event with the name of the task and its innermost frame, of one task at most once in
  AGAIN_S unless it was held for twice as long.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Thread, get_ident
from time import perf_counter, thread_time
from types import FrameType

import trio

from node.runtime.events import EventLog
from node.runtime.loop_delay import LoopDelay, LoopFigures

READ_S = 0.005
"""A tenth of HELD_CPU_S, so that what is told too high stays below it."""

HELD_CPU_S = 0.05
"""Processor time of a step that is told: a heartbeat's handling takes a hundredth of it, and a peer notices more."""

HELD_S = 1.0
"""Wall time of a step that is told whatever it took of the processor: it waited for a disk, for another thread that has
the interpreter, or for a machine that is overloaded. On busy machines some tenths of a second are usual."""

TROUBLE_S = 2.0
"""A step that is shown to people as well: a few of them, and peers are taken for silent."""

WATCH_S = 0.04
"""Between two looks of the thread, 25 a second: a step that is told is seen, at a thousandth of a core."""

SEEN_FROM_S = 0.01
"""Steps that are younger are not looked at: most last microseconds."""

TELL_S = 1.0
"""Between two looks at what there is to tell."""

SHOW_S = 5.0
"""Between two showings of the figures, for `volery status` and the metrics."""

AGAIN_S = 60.0
"""One task that holds the loop each time is told of once a minute."""

MOST_NEWS = 32
"""Steps that wait to be told; of more the oldest are forgotten, since they come from one cause."""

ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(str(ROOT / package) for package in ("node", "swarm", "learner", "protocol"))


@dataclass(frozen=True, kw_only=True)
class Held:
    """A step that held the loop: of which task, for how long, and where it was seen ("" if nobody looked in time)."""

    task: str
    wall_s: float
    cpu_s: float
    where: str

    def __str__(self) -> str:
        seen = f", seen at {self.where}" if self.where else ""
        return f"{self.task}{seen}, for {self.wall_s:.2g} s ({self.cpu_s:.2g} s of the processor)"


class LoopWatch(trio.abc.Instrument):
    """See the module's paragraph. Installed by `watched_loop`; without that it measures nothing, and says zeros.

    `latest` are the figures of at most SHOW_S ago, `num_held` how many steps were told or would have been.
    """

    def __init__(self) -> None:
        now_s = perf_counter()
        self.latest = LoopFigures()
        self.num_held = 0
        self._delay = LoopDelay(began_s=now_s)
        self._news: deque[Held] = deque(maxlen=MOST_NEWS)
        self._worst: Held | None = None
        self._task: trio.lowlevel.Task | None = None
        self._began_s = 0.0
        """Of the step that is under way; 0 while there is none."""
        self._turn_s = now_s
        self._read_s, self._cpu_s = now_s, thread_time()
        """When the processor time was read last, and what it was."""
        self._seen = (0.0, "")
        """When the step began that was seen last, and where it was."""
        self._loop_thread = get_ident()
        self._over = Event()

    # On the loop's thread, at every step: these are short.

    def after_io_wait(self, timeout: float) -> None:
        """A turn begins."""
        self._turn_s = perf_counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A step begins, and the one before it, if this turn had one, is over."""
        now_s = perf_counter()
        if now_s - self._read_s > READ_S:
            self._read(now_s)
        self._task, self._began_s = task, now_s

    def before_io_wait(self, timeout: float) -> None:
        """The turn is over, and its last step."""
        now_s = perf_counter()
        if now_s - self._read_s > READ_S:
            self._read(now_s)
        self._began_s = 0.0
        self._delay.turned(now_s - self._turn_s, now_s)

    def _read(self, now_s: float) -> None:
        """Read what the thread has had of the processor; a step that ends now may have had all of it."""
        cpu_s = thread_time()
        if self._began_s and (wall_s := now_s - self._began_s) > READ_S:
            self._end_step(wall_s, min(wall_s, cpu_s - self._cpu_s), now_s)
        self._read_s, self._cpu_s = now_s, cpu_s

    def _end_step(self, wall_s: float, cpu_s: float, now_s: float) -> None:
        """A step of more than READ_S is over."""
        self._delay.stepped(cpu_s, now_s)
        if cpu_s < HELD_CPU_S and wall_s < HELD_S:
            return
        began_s, where = self._seen
        held = Held(
            task="" if self._task is None else self._task.name,
            wall_s=wall_s,
            cpu_s=cpu_s,
            where=where if began_s == self._began_s else "",
        )
        self.num_held += 1
        self._news.append(held)
        if self._worst is None or wall_s > self._worst.wall_s:
            self._worst = held

    # On a thread of its own

    def look(self) -> None:
        """Look where a step is that lasts, until `close`."""
        while not self._over.wait(WATCH_S):
            began_s = self._began_s
            if began_s and perf_counter() - began_s > SEEN_FROM_S:
                frame = sys._current_frames().get(self._loop_thread)
                if frame is not None and self._began_s == began_s:
                    self._seen = (began_s, where_of(frame))
                del frame  # or what it holds would live until the next look

    def close(self) -> None:
        """Nobody looks any more."""
        self._over.set()

    # As a task

    async def tell(self, events: EventLog, show: Callable[[LoopFigures], None] = lambda figures: None) -> None:
        """Tell of what was held, and show the figures now and then, until cancelled."""
        told: dict[str, tuple[float, float]] = {}
        shown_s = -SHOW_S
        while True:
            now_s = perf_counter()
            while self._news:
                self._emit(self._news.popleft(), told, now_s, events)
            if now_s - shown_s >= SHOW_S:
                shown_s = now_s
                show(self.figures())
            await trio.sleep(TELL_S)

    def figures(self) -> LoopFigures:
        """The figures as they are now, to the tenth of a millisecond."""
        found = self._delay.figures(perf_counter(), "" if self._worst is None else str(self._worst))
        seconds = {name: round(value, 4) for name, value in asdict(found).items() if name != "culprit"}
        self.latest = replace(found, **seconds)
        return self.latest

    def _emit(self, held: Held, told: dict[str, tuple[float, float]], now_s: float, events: EventLog) -> None:
        at_s, most_s = told.get(held.task, (-AGAIN_S, 0.0))
        if now_s - at_s < AGAIN_S and held.wall_s < 2 * most_s:
            return
        told[held.task] = (now_s, held.wall_s)
        events.emit(
            "loop_held",
            task=held.task,
            where=held.where,
            seconds=round(held.wall_s, 4),
            processor_s=round(held.cpu_s, 4),
        )
        if held.wall_s >= TROUBLE_S:
            events.trouble(f"Peers and timers had to wait: the event loop was held by {held}.")


def spare_collections() -> None:
    """Collect garbage now, and leave all that there is out of later collections. For a program, before its loop runs.

    A full collection looks at every object on whichever thread is at work, most often the loop's: half a million of
    them, which libraries and an operator's tasks bring along, took 0.2 s of the processor.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def watched_loop(events: EventLog) -> Iterator[LoopWatch]:
    """Watch the loop that runs now, while inside; say at the end how it was."""
    watch = LoopWatch()
    thread = Thread(target=watch.look, name="loop watch", daemon=True)
    trio.lowlevel.add_instrument(watch)
    thread.start()
    try:
        yield watch
    finally:
        with suppress(KeyError):  # trio takes one off that has raised
            trio.lowlevel.remove_instrument(watch)
        watch.close()
        found = watch.figures()
        events.emit(
            "loop_measured",
            p99_s=found.p99_s,
            worst_s=found.worst_s,
            worst_processor_s=found.worst_cpu_s,
            held=watch.num_held,
            culprit=found.culprit,
        )


def where_of(frame: FrameType) -> str:
    """The innermost frame, and the innermost one of this program if that is another: file, line and function."""
    told = _place(frame)
    ours: FrameType | None = frame
    while ours is not None and not ours.f_code.co_filename.startswith(OURS):
        ours = ours.f_back
    return told if ours is None or ours is frame else f"{told}, called by {_place(ours)}"


def _place(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    short = path.relative_to(ROOT) if str(path).startswith(OURS) else Path(*path.parts[-3:])
    return f"{short}:{frame.f_lineno} in {frame.f_code.co_name}"
