"""Write checkpoints of the trainer, record them in the ledger, and remove old ones.

`learner.artifacts.checkpoint_retention` decides which ones stay. Milestones are given up if the disk has no room for
the next checkpoint. A version is announced without waiting for any of this. Its name has the incarnation, and
continuing from an older checkpoint begins another incarnation. So no crash gives one name to two sets of weights. When
the run is stopped, the newest state is made durable if there is time.

    save (staged) ... training ... event "saved" -> ledger: checkpoint -> old checkpoints are removed
                               ... event "save_failed" -> reported; the next publication tries again

Invariants:

- One checkpoint is written at a time, while training goes on, and then none for a while.
- A checkpoint is in the ledger, with the curriculum's state of its step, only after the trainer said that it is
  durable.
- A checkpoint's directory is removed only after it is removed from the ledger.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import trio

from learner.artifacts.checkpoint_retention import Keep, KeptFor, chosen
from learner.ledger.rows import CheckpointRow
from node.learner_role.shared.context import Service
from node.learner_role.shared.signals import TrainerSpoke
from node.learner_role.training.trainer_process import Sent, once
from node.learner_role.trust.audit_service import AuditService
from node.processes.outcomes import ChildRefused
from node.runtime.errors import RunError
from protocol.core.ids import LeaseId, PolicyVersion
from protocol.core.pipe import Header
from protocol.versions.staleness import Chain, bases_of

MAX_FAILED = 3
"""Checkpoints in a row whose failure ends the run. One may fail because the disk was full for a moment. More put hours
of work at risk."""

REST, LONGEST_REST_S = 4.0, 60.0
"""Pause after a checkpoint, as a multiple of the time that it took, and its limit in seconds. With 4, checkpoints that
take up to 15 s use at most a fifth of the time of disk and processors. The limit bounds the training that a kill
loses."""

LAST_S = 60.0
"""Most seconds to wait for the last checkpoint when the learner is stopped. A fast disk writes 100 GB in that time."""


class AskTrainer(Protocol):
    """Makes one request to the trainer, and returns its header. Raises TrainerLost, ChildRefused and RunError."""

    def __call__(self, op: str, header: Mapping[str, object], sent: Sent = ..., /) -> Awaitable[Header]: ...


class TrainerLost(Exception):
    """Raised if the trainer is no longer the process that was loaded, so that its state is lost. It says why."""


@dataclass(kw_only=True, eq=False)
class Checkpoints(Service):
    """Writes and removes the checkpoints of a run.

    Args:
        directory: the directory of the checkpoints.
        keep: which checkpoints stay.
        ask: makes one request to the trainer.
        describe: makes the row of a version's checkpoint, with the states of curriculum and ledger.
        audits: knows which audits are not over. Their signed records are not removed together with a checkpoint.
        written: awaited until the ledger has a training step.
        rest: see REST.
        saved: the step of the newest durable checkpoint, 0 if there is none.
        snapshot_s: seconds that the trainer took for snapshots since this was set to 0.
    """

    directory: Path
    keep: Keep
    ask: AskTrainer
    describe: Callable[[PolicyVersion], CheckpointRow]
    audits: AuditService | None
    written: Callable[[int], Awaitable[None]]
    rest: float = REST
    saved: int = 0
    snapshot_s: float = 0.0
    _rests_until: float = -math.inf
    _row: CheckpointRow | None = None
    _began_s: float = 0.0
    _outcome: Header | None = None
    _lost: bool = False
    _failed: int = 0
    _leaving: bool = False
    _heard: trio.Event = field(default_factory=trio.Event)
    _settled: trio.Event = field(default_factory=trio.Event)
    _concluding: trio.Lock = field(default_factory=trio.Lock)

    def __post_init__(self) -> None:
        self.signals.trainer_spoke.subscribe(self._hear)
        self.signals.trainer_died.subscribe(lambda _: self._note_death())

    def _hear(self, said: TrainerSpoke) -> None:
        if said.header.get("event") in ("saved", "save_failed"):
            self._outcome = said.header
            self._heard.set()

    def _note_death(self) -> None:
        """Note that the trainer died, so that the checkpoint in progress is lost."""
        self._lost = self._row is not None
        self._settle()

    def _under_audit(self) -> Collection[LeaseId]:
        return () if self.audits is None else self.audits.under_audit()

    async def run(self) -> None:
        """Handle the trainer's results until cancelled. Raises RunError if too many checkpoints fail in a row."""
        while True:
            await self._heard.wait()
            self._heard = trio.Event()
            await self._conclude()

    async def save(self, version: PolicyVersion) -> None:
        """Let the trainer write its state, which is that of `version`. Return when it has taken a snapshot.

        Does nothing while another checkpoint is being written, or if this one is durable. Raises TrainerLost and
        RunError.
        """
        await self._conclude()
        if self._is_wanted(version):
            await self._take_snapshot(version)

    async def begin(self, version: PolicyVersion, nursery: trio.Nursery) -> None:
        """Do the same in `nursery`. Return once the snapshot comes before any later request to the trainer.

        Does nothing during the pause after a checkpoint, unless the operator wants a milestone now.
        """
        has_rested = trio.current_time() >= self._rests_until or self._is_milestone(version.version)
        if self._is_wanted(version) and has_rested:
            await nursery.start(self._save_beside, version)

    def _is_milestone(self, step: int) -> bool:
        """Return whether this step's checkpoint would be a milestone, by `keep.every`."""
        every = self.keep.every
        return every > 0 and step // every > self.saved // every

    def _is_wanted(self, version: PolicyVersion) -> bool:
        return self._row is None and version.version > self.saved and not self._leaving

    async def _save_beside(self, version: PolicyVersion, task_status: trio.TaskStatus[None]) -> None:
        sent = once(task_status.started)
        if self._is_wanted(version):  # checked again, since `save_last` may have come first
            with suppress(TrainerLost):  # the next request to the trainer raises it
                await self._take_snapshot(version, sent)
        sent()

    async def _take_snapshot(self, version: PolicyVersion, sent: Sent = lambda: None) -> None:
        row = self._row = self.describe(version)
        self._began_s = trio.current_time()
        try:
            reply = await self.ask("save", {"directory": str(self.directory / row.directory), "wait": False}, sent)
        except ChildRefused as refused:
            await self._fail(row.directory, refused.error)
        except BaseException:
            self._row = None
            self._settle()
            raise
        else:
            self.snapshot_s += float(reply.get("seconds", 0.0))

    async def complete(self, version: PolicyVersion) -> None:
        """Return when the trainer's state, which is that of `version`, is durable. Raises TrainerLost and RunError."""
        while self.saved < version.version:
            if self._leaving:  # `save_last` writes it now
                await trio.sleep_forever()
            await self.save(version)
            await self._until_settled()

    def close(self) -> None:
        """Note that the run is stopped. From now on only `save_last` begins checkpoints, and no failure is an error."""
        self._leaving = True

    async def save_last(self, version: PolicyVersion) -> None:
        """Return when the trainer's state, which is that of `version`, is durable or has failed.

        A checkpoint in progress comes first, and there is no pause. Raises TrainerLost.
        """
        await self._until_settled()
        if version.version > self.saved:
            await self._take_snapshot(version)
            await self._until_settled()

    async def _until_settled(self) -> None:
        """Return when no checkpoint is being written. Raises TrainerLost."""
        while self._row is not None:
            if self._lost:
                raise TrainerLost("it ended while it wrote a checkpoint")
            await self._settled.wait()

    async def forget(self) -> None:
        """Start with a new trainer process. Record a checkpoint that the old one had finished; the rest is lost."""
        await self._conclude()
        self._row, self._outcome, self._lost = None, None, False
        self._settle()

    def sweep(self) -> None:
        """Remove the checkpoints that the ledger does not know. Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        known = {row.directory for row in self.ledger.training.checkpoints()}
        for directory in self.directory.iterdir():
            if directory.name not in known:
                shutil.rmtree(directory, ignore_errors=True)

    async def _conclude(self) -> None:
        """Handle the trainer's result, if there is one, even if we are about to stop."""
        if self._outcome is not None and self._row is not None:
            await self.written(self._row.step)  # not inside the shield, where a failing ledger could block for ever
        with trio.CancelScope(shield=True):
            async with self._concluding:
                await self._act()

    async def _act(self) -> None:
        outcome, self._outcome = self._outcome, None
        row = self._row
        if outcome is None or row is None or Path(str(outcome.get("directory"))).name != row.directory:
            return
        if outcome["event"] == "save_failed":
            await self._fail(row.directory, str(outcome.get("error")))
            return
        await trio.to_thread.run_sync(self._write_down, row, self._under_audit(), frozenset(+self.state.evaluating))
        took_s = trio.current_time() - self._began_s
        self.saved, self._failed = row.step, 0
        self._rests_until = trio.current_time() + min(self.rest * took_s, LONGEST_REST_S)
        self.events.emit(
            "checkpoint_saved",
            directory=row.directory,
            step=row.step,
            bytes=int(outcome.get("bytes", 0)),
            seconds=round(took_s, 4),
        )
        self._row = None
        self._settle()

    def _write_down(self, row: CheckpointRow, under_audit: Collection[LeaseId], evaluating: Collection[int]) -> None:
        self.ledger.training.checkpointed(row, self.now_ms(), newest=self.keep.newest, under_audit=under_audit)
        rows = self.ledger.training.checkpoints()
        kept = chosen([one.step for one in rows], self.keep, self._scores(row), evaluating)
        self._remove([one for one in rows if one.step not in kept], under_audit)

    def _remove(self, rows: Sequence[CheckpointRow], under_audit: Collection[LeaseId]) -> None:
        if rows:
            steps = [one.step for one in rows]
            self.ledger.training.checkpoints_removed(steps, newest=self.keep.newest, under_audit=under_audit)
        for one in rows:
            shutil.rmtree(self.directory / one.directory, ignore_errors=True)

    def _scores(self, row: CheckpointRow) -> dict[int, float]:
        """Return the scores of the versions in the chain that leads to `row`, by their training step."""
        begun = [(number, base) for number, base in self.ledger.training.begun() if number <= row.incarnation]
        line = Chain(bases=bases_of(begun), head=PolicyVersion(row.incarnation, row.step))
        scores = self.ledger.training.evaluations()
        return {one.version.version: one.sampled for one in scores if line.contains(one.version)}

    def _make_room(self, under_audit: Collection[LeaseId]) -> list[CheckpointRow]:
        """Remove milestones, the least important first, until the disk has room for a checkpoint. Return them."""
        rows = {one.step: one for one in self.ledger.training.checkpoints()}
        if not rows:
            return []
        newest = rows[max(rows)]
        needed = sum(file.stat().st_size for file in (self.directory / newest.directory).rglob("*") if file.is_file())
        kept = chosen(rows, self.keep, self._scores(newest))
        given_up = []
        for step in reversed([*kept]):
            if kept[step] is KeptFor.NEWEST or shutil.disk_usage(self.directory).free >= needed:
                break
            self._remove([rows[step]], under_audit)
            given_up.append(rows[step])
        return given_up

    async def _fail(self, name: str, error: str) -> None:
        self._failed += 1
        self.events.emit("checkpoint_failed", directory=name, reason=error)
        with suppress(OSError):
            for one in await trio.to_thread.run_sync(self._make_room, self._under_audit()):
                self.events.emit("milestone_given_up", directory=one.directory, step=one.step)
        self._row = None
        if self._failed >= MAX_FAILED and not self._leaving:
            raise RunError(
                f"{MAX_FAILED} checkpoints in a row could not be written to {self.directory}, so all training since "
                f"step {self.saved} is at risk: {error}. Free its disk, then start again: the run continues from that "
                "step."
            )
        self._settle()

    def _settle(self) -> None:
        """Wake the tasks that wait for the checkpoint in progress."""
        self._settled.set()
        self._settled = trio.Event()
