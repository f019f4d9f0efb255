"""Watch the learner: make metrics, alarms and samples of events and training steps.

Invariants:

- The learner never waits here for a disk or a network, and no failure of a sink affects training.
- The present state is measured even while no step is taken. The operator is told if that lasts, and at once if nodes
  cannot work.
- After a restart, the alarms have their state from before (the ledger's newest steps are read again), except for
  held-out scores and dropped batches. Every sink gets the step from which the series continue.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from learner.ledger.rows import StepRow
from learner.ledger.troubles import Unable
from learner.monitoring import fruitless_leases as fruitless
from learner.monitoring.alarms import HISTORY, AlarmMonitor, Change, observation
from learner.monitoring.fruitless_leases import Loop
from learner.monitoring.thresholds import Alarm
from learner.rollouts.buffer import UNINFORMATIVE
from learner.rollouts.overlong import Overlong
from node.learner_role.metrics.board import Board, Row
from node.learner_role.metrics.collect import follow_event, follow_loop, follow_run, follow_step, follow_time
from node.learner_role.metrics.sample_selection import kept_of
from node.learner_role.metrics.sample_store import Sample
from node.learner_role.metrics.sinks import Sink, SinkQueue, feed_queues
from node.learner_role.metrics.stall_detector import Stillness, waits_for
from node.learner_role.scheduling.run_recording import RunRecorder
from node.learner_role.shared.context import Service
from node.learner_role.shared.signals import StepTrained
from node.runtime.events import Fields
from node.runtime.loop_watch import LoopWatch
from protocol.core.genesis import open_certificate
from protocol.core.ids import PolicyVersion

LOOK_S = 5.0
"""Seconds between two measurements of the present state: at least as often as Prometheus scrapes."""

NODES_AGAIN_S = 30.0
"""Least seconds between two events about nodes that cannot work, while their number is the same."""

EVALUATED = ("greedy", "sampled", "pass_at", "greedy_of_task", "sampled_of_task", "pass_at_of_task")
"""Metrics that belong to the step of the version that was evaluated, not to the newest."""


@dataclass(kw_only=True, eq=False)
class LearnerMonitor(Service):
    """Measures the learner, and feeds the sinks.

    Args:
        recorder: the recording, whose observatory estimates durations.
        task_of: returns the task of a prompt's index.
        samples: groups to keep of every step.
        advantage: the name of the objective's advantage.
        overlong: how completions that were cut off are trained on.
        loop: watches the event loop.
        board: the newest values.
    """

    recorder: RunRecorder
    task_of: Callable[[int], str]
    samples: int = 0
    advantage: str = ""
    overlong: Overlong = field(default_factory=Overlong)
    loop: LoopWatch = field(default_factory=LoopWatch)
    board: Board = field(default_factory=Board)
    _outlets: list[SinkQueue[Row]] = field(default_factory=list)
    _keeping: SinkQueue[Sample] | None = None
    _watchman: AlarmMonitor = field(default_factory=AlarmMonitor)
    _evaluation: Mapping[str, float] = field(default_factory=dict)
    _diverged: int = 0
    _loop: Loop | None = None
    _unable: Unable = field(default_factory=Unable)
    _unable_said_s: float = -math.inf
    _still: Stillness = field(default_factory=lambda: Stillness(began_s=trio.current_time()))

    def __post_init__(self) -> None:
        self.events.listen(self._note_event)
        self.signals.step_trained.subscribe(self._note_step)
        self.signals.time_passed.subscribe(lambda row: follow_time(self.board, row.time, self.time.so_far))

    async def run(self) -> None:
        """Measure the present state every LOOK_S, until cancelled or the run is over."""
        while not self.state.finished:
            await trio.sleep(LOOK_S)
            self._measure()
            self._look_at_leases()
            self._look_at_nodes()
            now_s = trio.current_time()
            if not self.state.finished and self._still.is_news(now_s):
                still_s, step = round(self._still.seconds(now_s)), self.capacity.chain.head.version
                self.events.emit(
                    "standing_still",
                    step=step,
                    seconds=still_s,
                    text=f"No training step for {still_s} s. {waits_for(self.state, self.now_ms())}",
                )

    @asynccontextmanager
    async def feed(self, sinks: Sequence[Sink[Row]], keeper: Sink[Sample] | None = None) -> AsyncIterator[None]:
        """Feed these sinks, and `keeper` with samples, while inside."""
        self._outlets = [
            SinkQueue(sink=sink, events=self.events, lost=partial(self._count_lost, sink.name)) for sink in sinks
        ]
        if keeper is not None:
            self._keeping = SinkQueue(sink=keeper, events=self.events, lost=partial(self._count_lost, keeper.name))
        async with feed_queues(self._all):
            yield

    @property
    def _all(self) -> list[SinkQueue[Any]]:
        return [*self._outlets] if self._keeping is None else [*self._outlets, self._keeping]

    async def begin(self, incarnation: int, base: int) -> None:
        """Note that an incarnation begins at step `base`."""
        rows = await trio.to_thread.run_sync(self.ledger.training.newest_steps, HISTORY)
        self._watchman, self._evaluation, self._diverged = AlarmMonitor(), {}, 0
        for row in rows:
            self._watchman.handle(observation(alarm_row(row)))
        for alarm in Alarm:
            self.board.set("alarm", float(alarm in self._watchman.raised), rule=alarm.value)
        self.board.set("alarm", float(self._loop is not None), rule=fruitless.ALARM)
        for change in self._watchman.raised.values():  # the views have started again, and must show them
            self._emit(change)
        if self._loop is not None:
            self._say_loop(self._loop)
        for outlet in self._all:
            outlet.begin(incarnation, base)

    def _note_step(self, news: StepTrained) -> None:
        row, batch = news.row, news.batch
        follow_step(self.board, row, batch, self.task_of)
        self._still.stepped(trio.current_time())
        self._measure()
        told = {**alarm_row(row, diverged=self._diverged), **self._evaluation}
        self._evaluation, self._diverged = {}, 0
        for change in self._watchman.handle(observation(told)):
            self._say(change)
        self._put(row.incarnation, row.step)
        if self._keeping is not None and batch.groups:  # otherwise the whole batch came from logs
            # An advantage over the whole batch needs the rewards of the logs, too, which are not here.
            unknown = self.advantage in ("batch_mean", "gdpo") and "offline_sequences" in row.metrics
            advantage = "" if unknown else self.advantage
            groups = kept_of(batch, self.samples, advantage, self.task_of, self.overlong)
            self._keeping.put(Sample(incarnation=row.incarnation, step=row.step, at_ms=self.now_ms(), groups=groups))

    def _measure(self) -> None:
        follow_run(self.board, self.state, self.recorder.observatory, self._still.seconds(trio.current_time()))
        follow_loop(self.board, self.loop.latest)
        with suppress(OSError):  # the disk's own trouble is told by those that write to it
            self.board.set("disk_free_bytes", shutil.disk_usage(self.context.store.root).free)
        word = open_certificate(self.identity.certificate, self.identity.authority)
        self.board.set("certificate_seconds", (word.not_after_ms - self.now_ms()) / 1000)

    def _look_at_leases(self) -> None:
        """Raise or clear the alarm that leases bring no records. This needs no training step."""
        before, self._loop = self._loop, self.scheduler.fruitless.loop
        if (before is None) == (self._loop is None):
            return
        self.board.set("alarm", float(self._loop is not None), rule=fruitless.ALARM)
        if self._loop is not None:
            self.board.add("alarms_raised", rule=fruitless.ALARM)
        self._say_loop(self._loop)

    def _say_loop(self, loop: Loop | None) -> None:
        said = self.state.unable().text or self.state.troubles.gave_back_for
        reason = f" {said.rstrip('.')}." if said else " No node says why."
        self.events.emit(
            "alarm_cleared" if loop is None else "alarm_raised",
            alarm=fruitless.ALARM,
            step=self.capacity.chain.head.version,
            measured=0 if loop is None else loop.leases,
            usual=0,
            text="leases bring records again" if loop is None else f"{loop}{reason} {fruitless.ADVICE}",
        )

    def _look_at_nodes(self) -> None:
        """Emit an event if other nodes cannot work than before.

        If their number changed, it is emitted at once, otherwise not too often, since peers can change their reports at
        will.
        """
        before, now, now_s = self._unable, self.state.unable(), trio.current_time()
        is_as_many = (before.nodes, before.is_everyone) == (now.nodes, now.is_everyone)
        if now == before or (is_as_many and now_s - self._unable_said_s < NODES_AGAIN_S):
            return
        self._unable, self._unable_said_s = now, now_s
        if now.nodes:
            everyone = now.is_everyone
            self.events.emit("nodes_unable", text=now.text, nodes=now.nodes, of=now.of, everyone=everyone)
        elif before.nodes:
            self.events.emit("nodes_able", of=now.of)

    def _say(self, change: Change) -> None:
        name = change.alarm.value
        self.board.set("alarm", float(change.raised), rule=name)
        if change.raised:
            self.board.add("alarms_raised", rule=name)
        self._emit(change)

    def _emit(self, change: Change) -> None:
        self.events.emit(
            "alarm_raised" if change.raised else "alarm_cleared",
            alarm=change.alarm.value,
            step=change.step,
            measured=round(change.measured, 6),
            usual=round(change.usual, 6),
            text=change.said,
        )

    def _note_event(self, event: str, fields: Fields) -> None:
        follow_event(self.board, event, fields)
        match event, fields:
            case "batch_dropped", _:
                self._diverged += 1
            case "delivery_judged", {"dropped": dropped, "reward": reward} if dropped == UNINFORMATIVE:
                self._note_dropped(reward)
            case "evaluated", {"version": name, "sampled": sampled, "completions": completions}:
                self._evaluation = {"evaluation": sampled, "evaluated_on": completions}
                version = PolicyVersion(*map(int, name.split(".")))
                if self.capacity.chain.contains(version):  # otherwise a restart has cut it off meanwhile
                    self._put(self.capacity.chain.head.incarnation, version.version, EVALUATED)

    def _note_dropped(self, reward: float | None) -> None:
        """Note a group that was dropped because its rewards are equal.

        If all groups of a task are such, no step is taken that could raise an alarm.
        """
        groups = self.capacity.batch / self.capacity.leasing.terms.group_size
        batches = self.capacity.buffer.alike / groups
        for change in self._watchman.without_a_step(self.capacity.chain.head.version, batches, reward):
            self._say(change)

    def _put(self, incarnation: int, step: int, only: Sequence[str] = ()) -> None:
        row = self.board.row(incarnation=incarnation, step=step, at_ms=self.now_ms(), only=only)
        for outlet in self._outlets:
            outlet.put(row)

    def _count_lost(self, sink: str, rows: int) -> None:
        if rows:
            self.board.add("rows_lost", rows, sink=sink)


def alarm_row(row: StepRow, diverged: int = 0) -> dict[str, Any]:
    """Return a step of the ledger in the form that alarms read. `diverged`: batches that were dropped before it."""
    own = int(row.metrics.get("diverged", 0))
    return {**row.metrics, "step": row.step, "reward": row.reward, "diverged": own + diverged}
