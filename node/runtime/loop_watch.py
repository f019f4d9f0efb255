"""Watch the event loop: how long it makes peers and timers wait, and which task held it.

A trio instrument reads the clock before each task step, and when the loop begins to wait. A thread looks a few times a
second whether one step takes long, and where it is, because its frames are gone once it is over.
`node.runtime.loop_delay` computes the figures; nothing here decides.

Invariants:

- Between two steps only one clock is read. The thread's processor time is read only after READ_S, so the processor time
  of a step is reported up to READ_S too high, and never too low.
- A step that held the loop for long is an event with the name of its task and its innermost frame. A task gets at most
  one event in AGAIN_S, unless it held the loop for twice as long.
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
"""Seconds between readings of the processor time: a tenth of HELD_CPU_S, so that the error stays below it."""

HELD_CPU_S = 0.05
"""Seconds of processor time from which a step is reported. Handling a heartbeat takes a hundredth of it, and more is
noticed by peers."""

HELD_S = 1.0
"""Seconds of wall time from which a step is reported, even if it took little processor time: it waited for a disk, for
another thread that has the interpreter, or for an overloaded machine. On busy machines some tenths of a second are
usual."""

HAD_TO_WAIT = "Peers and timers had to wait"
"""How a trouble begins that tells of a busy machine."""

TROUBLE_S = 2.0
"""Seconds from which a step is also shown to people: after a few of them, peers seem to have timed out."""

WATCH_S = 0.04
"""Seconds between two looks of the thread, 25 a second. Every reported step is seen, for a thousandth of a core."""

SEEN_FROM_S = 0.01
"""Seconds below which a step is not looked at: most last microseconds."""

TELL_S = 1.0
"""Seconds between two checks for steps to report."""

SHOW_S = 5.0
"""Seconds between two updates of the figures, for `volery status` and the metrics."""

AGAIN_S = 60.0
"""Seconds between two events about a task that holds the loop again and again."""

MOST_NEWS = 32
"""Most steps that wait to be reported. The oldest of more are forgotten, because they have one cause."""

ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(str(ROOT / package) for package in ("node", "swarm", "learner", "protocol"))


@dataclass(frozen=True, kw_only=True)
class Held:
    """A step that held the loop: its task, how long, and where it was seen ("" if it was not seen in time)."""

    task: str
    wall_s: float
    cpu_s: float
    where: str

    def __str__(self) -> str:
        seen = f", seen at {self.where}" if self.where else ""
        return f"{self.task}{seen}, for {self.wall_s:.2g} s ({self.cpu_s:.2g} s of the processor)"


class LoopWatch(trio.abc.Instrument):
    """Measure the loop. `watched_loop` installs it; otherwise it measures nothing, and reports zeros.

    `latest`: the figures of at most SHOW_S ago. `num_held`: how many steps held the loop, reported or not.
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
        """Start of the step that is under way; 0 while there is none."""
        self._turn_s = now_s
        self._read_s, self._cpu_s = now_s, thread_time()
        """When the processor time was last read, and its value."""
        self._seen = (0.0, "")
        """When the step that was seen last began, and where it was."""
        self._loop_thread = get_ident()
        self._over = Event()

    # Called on the loop's thread at every step, so these are short.

    def after_io_wait(self, timeout: float) -> None:
        """Note that a turn begins."""
        self._turn_s = perf_counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Note that a step begins, and that the one before it in this turn is over."""
        now_s = perf_counter()
        if now_s - self._read_s > READ_S:
            self._read(now_s)
        self._task, self._began_s = task, now_s

    def before_io_wait(self, timeout: float) -> None:
        """Note that the turn is over, and its last step."""
        now_s = perf_counter()
        if now_s - self._read_s > READ_S:
            self._read(now_s)
        self._began_s = 0.0
        self._delay.turned(now_s - self._turn_s, now_s)

    def _read(self, now_s: float) -> None:
        """Read the thread's processor time. A step that ends now may have used all of it."""
        cpu_s = thread_time()
        if self._began_s and (wall_s := now_s - self._began_s) > READ_S:
            self._end_step(wall_s, min(wall_s, cpu_s - self._cpu_s), now_s)
        self._read_s, self._cpu_s = now_s, cpu_s

    def _end_step(self, wall_s: float, cpu_s: float, now_s: float) -> None:
        """Record a step of more than READ_S that is over."""
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

    # Called on a thread of its own

    def look(self) -> None:
        """Look where a long step is, until `close`."""
        while not self._over.wait(WATCH_S):
            began_s = self._began_s
            if began_s and perf_counter() - began_s > SEEN_FROM_S:
                frame = sys._current_frames().get(self._loop_thread)
                if frame is not None and self._began_s == began_s:
                    self._seen = (began_s, where_of(frame))
                del frame  # or the objects that it holds would live until the next look

    def close(self) -> None:
        """End `look`."""
        self._over.set()

    # Run as a task

    async def tell(self, events: EventLog, show: Callable[[LoopFigures], None] = lambda figures: None) -> None:
        """Report steps that held the loop, and show the figures now and then, until cancelled."""
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
        """Return the figures now, to a tenth of a millisecond."""
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
            events.trouble(f"{HAD_TO_WAIT}: the event loop was held by {held}.")


def spare_collections() -> None:
    """Collect garbage now, and exclude all existing objects from later collections. For a program, before its loop
    runs.

    A full collection visits every object on whichever thread is at work, most often the loop's. Half a million objects,
    which libraries and an operator's tasks bring along, took 0.2 s of the processor.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def watched_loop(events: EventLog) -> Iterator[LoopWatch]:
    """Watch the running loop while inside, and report at the end how it was."""
    watch = LoopWatch()
    thread = Thread(target=watch.look, name="loop watch", daemon=True)
    trio.lowlevel.add_instrument(watch)
    thread.start()
    try:
        yield watch
    finally:
        with suppress(KeyError):  # trio removes an instrument that has raised
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
    """Return file, line and function of the innermost frame, and of this program's innermost one if that is another."""
    told = _place(frame)
    ours: FrameType | None = frame
    while ours is not None and not ours.f_code.co_filename.startswith(OURS):
        ours = ours.f_back
    return told if ours is None or ours is frame else f"{told}, called by {_place(ours)}"


def _place(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    short = path.relative_to(ROOT) if str(path).startswith(OURS) else Path(*path.parts[-3:])
    return f"{short}:{frame.f_lineno} in {frame.f_code.co_name}"
