"""Run the training loop: collect batches, take training steps, publish versions and write checkpoints.

For each training step, the loop waits until there are R admissible rollouts, adds logged completions, lets the trainer
take the step, and records what it consumed. Every kappa steps the trainer takes a snapshot of its state and trains on.
Meanwhile a version is made of the snapshot (`node.learner_role.training.publisher`), and the state is made durable
(`node.learner_role.training.checkpoints`).

    step -> snapshot -> the next step
            ... ledger: step
                            ... exported -> sign -> adopt into the store -> ledger: version -> announce
                            ... saved -> ledger: checkpoint

If the learner is killed between any two of these, the next start continues from the newest checkpoint in the ledger, as
the next incarnation, and removes what the ledger does not know. The curriculum then gets from the ledger what it gave
out and saw since that checkpoint, because leases and verdicts are not undone. If the learner is stopped in order
(`TrainingLoop.leave`), the newest state is made durable first, so the next start loses no step.

Invariants:

- A version's name is never given to other weights, since every start takes the next incarnation.
- Continuing after a crash, of the learner or the trainer, runs the same code as a first start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from learner.artifacts.checkpoint_retention import Keep
from learner.curriculum.offline_stream import LoggedGroup
from learner.ledger.rows import CheckpointRow, StepRow, TimeRow
from learner.provisioning.estimation.learner_time import BLOCKED, OF_STEPS, LearnerTime, TimeKind, seconds_by_kind
from learner.provisioning.estimation.recording import Passed, Stepped
from learner.rollouts.batch_arrays import batch_arrays, completed, missing, mixed, of_swarm, offline_arrays
from learner.rollouts.buffer import Batch
from learner.rollouts.environment import AskOne
from learner.rollouts.overlong import Overlong
from node.learner_role.scheduling.recovery import read_unconsumed
from node.learner_role.scheduling.run_recording import RunRecorder
from node.learner_role.shared.context import Service
from node.learner_role.shared.signals import StepTrained
from node.learner_role.shared.time_keeper import TOLD_S
from node.learner_role.training.checkpoints import LAST_S, Checkpoints, TrainerLost
from node.learner_role.training.publisher import VersionPublisher, event_figures, step_row
from node.learner_role.training.restore import load_policy, restore_newest
from node.learner_role.training.trainer_process import CallTrainer, TrainerProcess
from node.learner_role.trust.audit_service import AUDIT_REASON, AuditService, GroupDecision
from node.processes.outcomes import ChildCrashed, ChildGaveUp, ChildRefused
from node.runtime.errors import RunError
from node.tasks.task_suite import TaskSuite
from protocol.core.ids import PolicyVersion
from protocol.core.pipe import Arrays, Header
from protocol.versions.staleness import Chain, bases_of
from swarm.transport.error_groups import first_cause
from swarm.transport.interface import Transport

MAX_DIVERGED = 3
"""Batches in a row that may make the loss infinite. One may come from a broken peer, more mean a broken run."""

MAX_LOST = 5
"""Trainers that may be lost in a row without a new durable step. `RestartLimits` counts by the clock. A trainer whose
model takes minutes to load would never reach its limit, while every start publishes again."""


Trial = Callable[[Path, Header, CallTrainer], Awaitable[None]]
"""A trial, called with the directory of the exported policy, the trainer's reply to `load`, and a function that asks
the trainer. An error that it raises ends the run."""


@dataclass(kw_only=True, eq=False)
class TrainingLoop(Service):
    """The training loop of one run.

    Args:
        steps: the last training step.
        weights_dtype: the format of published versions.
        keep: which checkpoints stay.
        load: the trainer's load request.
        trust: decides which recovered groups wait for an audit; None: no group does.
        ask_one: asks a task again, to replay episodes that had begun.
        curriculum: the tasks, whose state is part of each checkpoint.
        overlong: how completions that were cut off are trained on.
        open_incarnation: awaited with (incarnation, step) when an incarnation begins at that step.
    """

    trainer: TrainerProcess
    transport: Transport
    steps: int
    weights_dtype: str
    keep: Keep
    load: Mapping[str, Any]
    trust: AuditService | None
    checkpoints: Path
    exports: Path
    ask_one: AskOne
    curriculum: TaskSuite
    overlong: Overlong
    recorder: RunRecorder
    open_incarnation: Callable[[int, int], Awaitable[None]]
    _trial: Trial | None = None
    _is_begun: bool = False
    """Whether the trainer's state is that of the chain's head, apart from a training step in progress."""
    _leaving: bool = False
    _stepping: trio.Lock = field(default_factory=trio.Lock)
    """Held while a training step is taken, from its first effect until the head advances, and while none may begin."""
    _diverged: int = 0
    _lost: int = 0
    _safe: int = 0
    _pid: int | None = None
    _writing: tuple[int, trio.Event] | None = None
    """The training step that is being written into the ledger, and an event that is set when it is."""
    _sending: Mapping[TimeKind, trio.Event] = field(default_factory=dict)
    """Snapshots that must come before the next training step. The event of each is set once that is certain."""
    _held_back: int = 0
    """The last training step whose version was due and held back."""

    def __post_init__(self) -> None:
        self._beginning = self.curriculum.state()
        self.saving = Checkpoints(
            context=self.context,
            directory=self.checkpoints,
            keep=self.keep,
            ask=self._ask,
            describe=self._describe,
            audits=self.trust,
            written=self._until_written,
        )
        self.publishing = VersionPublisher(
            context=self.context,
            transport=self.transport,
            exports=self.exports,
            weights_dtype=self.weights_dtype,
            ask=self._call,
            recorder=self.recorder,
            kept=None if self.trust is None else self.trust.kept,
            written=self._until_written,
        )

    async def run(self, trial: Trial | None = None) -> None:
        """Train until the last step is taken and its state is durable.

        `trial` is awaited once, before the first version is published. Raises UsageError if model or settings cannot be
        used, RunError if the trainer or the disk fails.
        """
        self._trial = trial
        with first_cause():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.saving.run)
                nursery.start_soon(self._keep_telling_time)
                await self._train(nursery)
                nursery.cancel_scope.cancel()
        await self._tell_time()

    async def _train(self, beside: trio.Nursery) -> None:
        """Train to the end. `beside` runs the publications."""
        run, self._is_begun = self.state, False
        while not self._is_begun or not self._is_finished:
            try:
                if self._leaving:  # `leave` does the rest
                    with self.time.during(TimeKind.CHECKPOINT):
                        await trio.sleep_forever()
                elif not self._is_begun:
                    await self.begin()
                    self._is_begun = True
                elif run.forgotten >= run.capacity.chain.head.incarnation:
                    await self._begin_above()
                elif run.capacity.chain.head.version < self.steps:
                    with self.time.during(TimeKind.LEDGER):
                        await self._step(beside)
                else:
                    await self._end(beside)
            except TrainerLost as loss:
                self._is_begun = False
                if not self._leaving:
                    self._bear(loss)
        run.finished = True
        run.notify()

    async def leave(self) -> None:
        """Make the newest state durable before the run is stopped.

        It begins no other training step, and lets the current one end. Returns when the newest state is durable and in
        the ledger, when the trainer is lost or cannot write it, or after LAST_S. If it is not durable then, an older
        checkpoint stays the newest. Returns at once if the trainer has no state of this run yet.
        """
        is_first, self._leaving = not self._leaving, True
        self.saving.close()
        self.state.notify(leasable=False)  # end the wait for a batch
        if not self._is_begun:
            return
        if is_first and (self._stepping.locked() or self.capacity.chain.head.version > self.saving.saved):
            self.events.emit("stopping", step=self.capacity.chain.head.version, durable=self.saving.saved)
        with trio.move_on_after(LAST_S), suppress(TrainerLost):
            async with self._stepping:  # a checkpoint is named by the head, so the trainer must not be ahead of it
                await self._until_written(self.capacity.chain.head.version)
                await self.saving.save_last(self.capacity.chain.head)

    @property
    def _is_finished(self) -> bool:
        """Return whether the last step is taken, and its state is published and durable."""
        head = self.capacity.chain.head
        published = self.state.published
        is_out = published is not None and published.version == head and self.publishing.is_idle
        return head.version >= self.steps and is_out and self.saving.saved >= head.version

    async def _end(self, beside: trio.Nursery) -> None:
        """After the last step: finish the publications and the last checkpoint. Raises TrainerLost and RunError."""
        while self.publishing.is_due(self.capacity.chain.head.version, last=True):
            self.publishing.require_whole()
            if self.publishing.has_room:
                self._send_out(beside)
                await self._until_sent()
            else:
                with self.time.during(TimeKind.PUBLICATION):
                    await self.state.wait_changed()
        with self.time.during(TimeKind.CHECKPOINT):
            await self.saving.complete(self.capacity.chain.head)
        with self.time.during(TimeKind.PUBLICATION):
            await self.publishing.drain()
        self.publishing.require_whole()

    def _send_due(self, beside: trio.Nursery) -> None:
        """Publish and save the state if that is due. While the operator holds versions back, save it alone."""
        step = self.capacity.chain.head.version
        if self._is_sending or not self.publishing.is_due(step, last=False):
            return
        if not self.state.live.publishes:
            if step > self._held_back:
                self._held_back = step
                self._send_out(beside, publishes=False)
        elif self.publishing.has_room:
            self._send_out(beside)
        else:
            self.publishing.put_off(step)

    def _send_out(self, beside: trio.Nursery, *, publishes: bool = True) -> None:
        """Let the trainer take snapshots before any request after `_until_sent`, for a version and a checkpoint.

        Both are made while it trains on, and while the loop waits for a batch.
        """
        self._sending = {kind: trio.Event() for kind in (TimeKind.PUBLICATION, TimeKind.CHECKPOINT)}
        beside.start_soon(self._send, self._sending, self.capacity.chain.head, beside, publishes)

    async def _send(
        self, sending: Mapping[TimeKind, trio.Event], head: PolicyVersion, beside: trio.Nursery, publishes: bool
    ) -> None:
        """Begin a publication, if it `publishes`, and a checkpoint. Raises RunError.

        If the trainer is lost, the next request says so.
        """
        try:
            if publishes:
                await self.publishing.begin(beside)
            sending[TimeKind.PUBLICATION].set()
            await self.saving.begin(head, beside)
        finally:
            for sent in sending.values():
                sent.set()

    @property
    def _is_sending(self) -> bool:
        return not all(sent.is_set() for sent in self._sending.values())

    async def _until_sent(self) -> None:
        """Return when the trainer may be asked for its next step, because the due snapshots come before it."""
        for kind, sent in self._sending.items():
            if not sent.is_set():  # waiting for an event that is set still costs a turn of the loop, 10 ms if busy
                with self.time.during(kind):
                    await sent.wait()

    async def _keep_telling_time(self) -> None:
        """Record the time that passes while no step is taken, until cancelled."""
        told = self.time.so_far
        while True:
            await trio.sleep(TOLD_S)
            if self.time.so_far is told:
                await self._tell_time()
            told = self.time.so_far

    async def _tell_time(self) -> None:
        if (row := self._passed()) is not None:
            await trio.to_thread.run_sync(self.ledger.training.time_passed, row)

    def write_time(self) -> None:
        """Record the time since the last record, when nothing else can happen. Raises LedgerError."""
        if (row := self._passed()) is not None:
            self.ledger.training.time_passed(row)

    def _passed(self) -> TimeRow | None:
        """Return the time since the last record, outside of a step, for the ledger, and add it to the recording."""
        row = self.time.take(self.capacity.chain.head.version + 1)
        if row is not None:
            self.recorder.record(Passed(at_s=self.recorder.now_s(), time=seconds_by_kind(row.time)))
        return row

    def _bear(self, loss: TrainerLost) -> None:
        """Report a lost trainer. Raises RunError if too many were lost in a row without a new durable step."""
        self._lost = self._lost + 1 if self.saving.saved <= self._safe else 1
        self._safe = self.saving.saved
        if self._lost > MAX_LOST:
            raise RunError(
                f"{self._lost} trainers in a row were lost since step {self._safe} became durable, and none came "
                f"further: {loss}\nRepair the cause, then start again: the run continues from that step."
            ) from loss
        self.events.emit("trainer_restarted", reason=str(loss).splitlines()[0])

    async def begin(self) -> None:
        """Load the policy, continue from the newest checkpoint if there is one, and publish as the next incarnation.

        If the trial fails, nothing has changed: the ledger has no new incarnation yet.
        """
        run = self.state
        run.capacity.busy = True
        self._pid = None
        await self._until_sent()
        await self._until_written(run.capacity.chain.head.version)
        await self.publishing.drain()
        self.events.emit("starting", doing="loading the model")
        reply = await load_policy(self._ask, self.load)
        self._pid = self.trainer.pid
        await self.saving.forget()
        base = await self._restore()
        await trio.to_thread.run_sync(self._sweep, self.publishing.sweep)
        if self._trial is not None:
            await self._trial(await self.publishing.export_ahead(), reply, self._call)
            self._trial = None
        async with run.judging:
            run.vocab_size, run.capacity.steps = int(reply["vocab_size"]), self.steps
            await self._open_chain(base)
            await self._recover_buffer()
        run.open(self.now_ms())
        await trio.to_thread.run_sync(self._sweep, self.saving.sweep)
        self.events.emit("starting", doing="publishing the first version")
        await self._publish_first()
        run.capacity.busy = False
        run.notify()

    async def _publish_first(self) -> None:
        """Publish and save the first version, before which no rollouts can be generated.

        Raises TrainerLost and RunError.
        """
        await self.publishing.publish()
        await self.saving.save(self.capacity.chain.head)

    async def _begin_above(self) -> None:
        """Continue under an incarnation above all that were published, because members hold versions of later ones.

        The ledger does not know those versions, and names only increase. The trainer keeps its state, and no admitted
        record is lost.
        """
        run = self.state
        run.capacity.busy = True
        await self._until_sent()
        await self.publishing.drain()
        async with run.judging:
            await self._open_chain(run.capacity.chain.head.version)
        await self._publish_first()
        run.capacity.busy = False
        run.notify()

    async def _ask(self, op: str, header: Mapping[str, object], sent: Callable[[], None] = lambda: None) -> Header:
        """Make one request, and return the reply's header. `sent` is called once it comes before all later requests.

        Raises TrainerLost, ChildRefused and RunError.
        """
        reply, _ = await self._call(op, header, sent=sent)
        return reply

    async def _call(
        self,
        op: str,
        header: Mapping[str, object],
        arrays: Arrays | None = None,
        sent: Callable[[], None] = lambda: None,
    ) -> tuple[Header, Arrays]:
        if self._leaving and self.trainer.pid != self._pid:
            raise TrainerLost("it ended while the run was being stopped")
        try:
            return await self.trainer.call(op, header, arrays, sent=sent)
        except ChildCrashed as crash:
            raise TrainerLost(str(crash)) from crash
        except ChildGaveUp as end:
            raise RunError(f"The trainer cannot continue: {end}") from end
        except ChildRefused as refused:
            if self._pid is not None and self.trainer.pid != self._pid:  # it died between two requests
                raise TrainerLost("it ended between two requests") from refused
            raise

    async def _restore(self) -> int:
        """Bring the trainer to the newest checkpoint that can be read. Return its step, 0 if there never was one."""
        rows = await trio.to_thread.run_sync(self.ledger.training.checkpoints)
        if rows:
            self.events.emit("starting", doing=f"loading the checkpoint of step {rows[0].step}")

        def pass_over(directory: Path, reason: str) -> None:
            self.events.emit("checkpoint_unusable", directory=str(directory), reason=reason)

        row = await restore_newest(self._ask, rows, self.checkpoints, pass_over)
        await self._recover_curriculum(row)
        self.saving.saved = 0 if row is None else row.step
        return self.saving.saved

    async def _recover_curriculum(self, row: CheckpointRow | None) -> None:
        """Restore the curriculum's state at the checkpoint, and replay what it gave out and saw since.

        Leases and verdicts survive when a step is lost.
        """
        leases, records = (0, 0) if row is None else (row.leases, row.records)
        async with self.state.judging:
            # Without a checkpoint, restore the state at our start: otherwise what it saw since would count twice.
            self.curriculum.restore(self._beginning if row is None else row.state)
            given, seen = await trio.to_thread.run_sync(
                self.ledger.work.since, leases, records, self.capacity.buffer.decides
            )
            self.scheduler.recover_prompts(given)
            if self.scheduler.lengths is not None:
                self.scheduler.lengths.recover(await trio.to_thread.run_sync(self.ledger.work.completion_tokens))
            for index, mean in seen:
                self.curriculum.observe(index, mean)
            _, self.state.judged = await trio.to_thread.run_sync(self.ledger.work.counts)

    def _describe(self, version: PolicyVersion) -> CheckpointRow:
        """Return the row of a version's checkpoint.

        Deliveries that are being judged are neither in the curriculum's state nor in `judged`.
        """
        return CheckpointRow(
            step=version.version,
            incarnation=version.incarnation,
            directory=str(version),
            state=self.curriculum.state(self.scheduler.unleased),
            leases=self.state.issued,
            records=self.state.judged,
        )

    async def _open_chain(self, base: int) -> None:
        """Begin the next incarnation at step `base`. The caller holds `judging`."""
        run = self.state
        incarnation = await trio.to_thread.run_sync(self.ledger.training.begin_incarnation, base, self.now_ms())
        incarnations = await trio.to_thread.run_sync(self.ledger.training.begun)
        versions = await trio.to_thread.run_sync(self.ledger.training.manifests)
        run.capacity.chain = Chain(bases=bases_of(incarnations), head=PolicyVersion(incarnation, base))
        run.capacity.collecting = base
        self.publishing.go_on(versions)
        self.events.emit("incarnation_began", incarnation=incarnation, step=base)
        self.recorder.begin(base)
        await self.open_incarnation(incarnation, base)

    async def _recover_buffer(self) -> None:
        """Recover admitted records that no surviving step was trained on. The caller holds `judging`."""
        run, swarm = self.state, self.identity.swarm
        found = await trio.to_thread.run_sync(read_unconsumed, self.ledger, self.ask_one, swarm)
        run.capacity.buffer.clear()
        if self.trust is not None:
            await self.trust.recover(found.leases)
        for group in found.groups:
            fate = GroupDecision.ACCEPT if self.trust is None else self.trust.decide(group.lease)
            if fate is GroupDecision.DROP:
                run.capacity.buffer.give_up(group.lease, AUDIT_REASON, len(group.completions))
            else:
                run.capacity.buffer.add(group, hold=fate is GroupDecision.HOLD)
        if doubled := [granted.id for granted in run.scheduler.take_up(found.episodes)]:
            await trio.to_thread.run_sync(self.ledger.work.leases_closed, doubled, "recalled", self.now_ms())
        self.events.emit("buffer_recovered", rollouts=len(run.capacity.buffer), episodes=len(run.capacity.episodes))

    def _sweep(self, sweep: Callable[[], None]) -> None:
        """Remove what a crash left: exports that were not adopted, or checkpoints that the ledger does not know."""
        try:
            sweep()
        except OSError as error:
            raise RunError(f"{error.filename} cannot be used: {error.strerror}. Check its disk and owner.") from error

    async def _step(self, beside: trio.Nursery) -> None:
        run = self.state
        waited = trio.current_time()
        if (batch := await self._collect(beside)) is None:
            return
        began_ms, began = self.now_ms(), trio.current_time()
        run.capacity.busy, run.capacity.busy_since_ms, run.capacity.collecting = (
            True,
            began_ms,
            run.capacity.chain.head.version + 1,
        )
        run.notify()  # taking the batch made room for leases
        await self._until_sent()
        async with self._stepping:
            if not self._leaving:  # otherwise the next start finds the batch in the ledger
                await self._take_step(batch, began_ms, began - waited, beside)

    async def _take_step(self, batch: Batch, began_ms: int, waited_s: float, beside: trio.Nursery) -> None:
        """Let the trainer take a step, and advance the head. Raises TrainerLost and RunError."""
        run = self.state
        logged = [] if self.curriculum.offline is None else self.curriculum.offline.draw()
        try:
            with self.time.during(TimeKind.BATCH):
                arrays = await self._arrays(batch, logged)
            reply, found = await self._trained(arrays)
        except ChildRefused as refused:
            await self._drop(batch, refused)
            return
        self._diverged = 0
        run.capacity.chain = run.capacity.chain.advance()
        row = step_row(batch, logged, run.capacity.chain.head, began_ms, waited_s, reply, self.overlong)
        await self._until_written(row.step)
        passed = self.time.take(row.step)
        self._record(batch, passed)
        if (train_s := self.recorder.observatory.train_s) is not None:
            run.scheduler.measure(train_s.value)
        run.capacity.busy = False
        run.notify()
        self._writing = row.step, trio.Event()
        beside.start_soon(self._write_down, row, batch, passed, of_swarm(found.get("apart"), arrays))

    async def _until_written(self, step: int) -> None:
        """Return when the ledger has training step `step`, or if it was not taken. One step is written at a time."""
        while self._writing is not None and self._writing[0] <= step:
            await self._writing[1].wait()

    async def _write_down(
        self, row: StepRow, batch: Batch, passed: TimeRow | None, apart: Sequence[float] | None
    ) -> None:
        """Write the step and what it consumed to the ledger, then emit its event and signal."""
        await trio.to_thread.run_sync(self.ledger.training.step_trained, row, batch.lags, batch.dropped, passed)
        assert self._writing is not None
        (_, written), self._writing = self._writing, None
        written.set()
        if self.trust is not None and apart is not None:
            self.trust.note_trained(batch, apart)
        self.events.emit(
            "step",
            step=row.step,
            reward=round(row.reward, 4),
            rollouts=row.rollouts,
            train_s=round(row.train_s, 4),
            waited_s=round(row.waited_s, 4),
            max_lag=max(batch.lags.values(), default=0),
            dropped=len(batch.dropped),
            uninformative=batch.uninformative,
            buffered=len(self.capacity.buffer),
            **_busy(self.time.so_far),
            **event_figures(row.metrics),
        )
        self.signals.step_trained.emit(StepTrained(row=row, batch=batch))
        self.state.notify(leasable=False)

    async def _trained(self, arrays: Arrays) -> tuple[Header, Arrays]:
        """Let the trainer take a step, and count the time of its parts. Raises what `_call` raises."""
        asked = trio.current_time()
        self.publishing.snapshot_s = self.saving.snapshot_s = 0.0
        with self.time.during(TimeKind.TRAINING):
            rate = self.state.live.learning_rate
            reply, found = await self._call("step", {} if rate is None else {"learning_rate": rate}, arrays)
        took_s, trained_s = trio.current_time() - asked, float(reply["seconds"])
        self.time.move(TimeKind.TRAINING, TimeKind.CHECKPOINT, float(reply.get("blocked_s", 0.0)))
        # The step had to wait for snapshots, since the trainer handles one request after the other.
        for kind, snapshot_s in (
            (TimeKind.PUBLICATION, self.publishing.snapshot_s),
            (TimeKind.CHECKPOINT, self.saving.snapshot_s),
        ):
            waited_s = min(snapshot_s, max(0.0, took_s - trained_s))
            self.time.move(TimeKind.TRAINING, kind, waited_s)
            took_s -= waited_s
        self.time.move(TimeKind.TRAINING, TimeKind.BATCH, took_s - trained_s)
        return reply, found

    def _record(self, batch: Batch, passed: TimeRow | None) -> None:
        lags: Counter[int] = Counter()
        for group in batch.groups:
            lags[batch.lags[group.lease]] += len(group.completions)
        time = LearnerTime() if passed is None else passed.time
        waited_s = time.of(TimeKind.WAITING)
        self.recorder.record(
            Stepped(
                at_s=self.recorder.now_s(),
                step=self.capacity.chain.head.version,
                waited_s=round(waited_s, 6),
                busy_s=round(time.of(*OF_STEPS) - waited_s, 6),
                publish_s=round(time.of(*BLOCKED), 6),
                rollouts=batch.rollouts,
                lags=dict(lags),
                stale=batch.stale,
                time=seconds_by_kind(time),
            )
        )

    async def _arrays(self, batch: Batch, logged: Sequence[LoggedGroup]) -> Arrays:
        """Return the trainer's arrays: the swarm's rollouts, then logged completions. Raises what `_ask` raises."""
        parts = []
        if batch.groups:
            head, routing = self.capacity.chain.head, self.capacity.leasing.terms.routing
            parts.append(await trio.to_thread.run_sync(batch_arrays, batch, head, self.overlong, routing))
        if logged:
            found = await trio.to_thread.run_sync(offline_arrays, logged)
            if (asked := missing(found)) is not None:
                _, scores = await self._call("logprobs", {}, asked)
                found = completed(found, scores["logprobs"])
            parts.append(found)
        return mixed(*parts)

    async def _collect(self, beside: trio.Nursery) -> Batch | None:
        """Wait for a batch. Return None if another incarnation must begin first, or if the run is stopped.

        It consumes groups from the buffer, and wakes when one is added. Meanwhile it publishes a due version as soon as
        there is room. Raises TrainerLost and RunError.
        """
        run = self.state
        while not self._leaving and run.forgotten < run.capacity.chain.head.incarnation:
            self.publishing.require_whole()
            self._send_due(beside)
            waiting = len(run.capacity.buffer)
            if (batch := run.capacity.buffer.take(run.capacity.batch, run.capacity.chain)) is not None:
                return batch
            if len(run.capacity.buffer) < waiting:
                run.notify()  # stale groups were dropped, which made room for leases
            with self.time.during(self._awaited):
                await run.wait_changed()
        return None

    @property
    def _awaited(self) -> TimeKind:
        """Return what a batch waits for: rollouts, or a version whose rollouts would be admissible."""
        published = self.state.published
        is_out = published is not None and published.version.version >= self.capacity.oldest
        return TimeKind.WAITING if is_out else TimeKind.PUBLICATION

    async def _drop(self, batch: Batch, refused: ChildRefused) -> None:
        """Drop a batch that makes the loss infinite. Raises RunError if too many do in a row."""
        run, self._diverged = self.state, self._diverged + 1
        if refused.kind != "diverged" or self._diverged > MAX_DIVERGED:
            raise RunError(f"The trainer refused step {run.capacity.collecting}: {refused.error}") from None
        dropped = {**dict.fromkeys(batch.lags, "diverged"), **batch.dropped}
        await trio.to_thread.run_sync(self.ledger.training.batch_dropped, run.capacity.collecting, dropped)
        self.events.emit("batch_dropped", step=run.capacity.collecting, rollouts=batch.rollouts, reason=refused.error)
        run.capacity.busy, run.capacity.collecting = False, run.capacity.chain.head.version
        run.notify()


def _busy(time: LearnerTime) -> dict[str, float]:
    """Return how busy the learner has been, for the event of a step; empty if that is not known."""
    is_known = time.blocked is not None
    shares = {
        "utilisation": time.utilisation,
        "waiting": time.share(TimeKind.WAITING) if is_known else None,
        "blocked": time.blocked,
    }
    return {name: round(share, 4) for name, share in shares.items() if share is not None}
