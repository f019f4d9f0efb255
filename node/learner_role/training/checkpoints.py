"""The trainer's durable states, as the node asks for them, hears of them, and gives them up again.

What always holds: one is being written at a time, while training goes on, and then none for a while; a checkpoint
stands in the ledger, with the curriculum's state of its step, only after the trainer said that it is durable, and its
directory is removed only after the ledger has forgotten it. `learner.artifacts.checkpoint_retention` says which stay,
and milestones give way where the disk has no room for the next. A version is announced without waiting for any of this:
its name holds the incarnation, and going on from an older checkpoint begins another one, so no crash makes one name
mean two sets of weights. When somebody stops the run, the newest state is made durable, if there is time.

    save (staged) ... training ... event "saved" -> ledger: checkpoint -> what is not to be kept is removed
                               ... event "save_failed" -> told; the next publication tries again
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

from learner.artifacts.checkpoint_retention import Keep, Stays, chosen
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
"""Checkpoints in a row that may fail: one is a disk that was full for a moment, more are hours of work at risk."""

REST, LONGEST_REST_S = 4.0, 60.0
"""After one that took so long to write, none is begun for REST times as long, so that disk and processors have a fifth
of their time for checkpoints at most; nor for longer than LONGEST_REST_S, which a kill costs of training."""

LAST_S = 60.0
"""How long somebody who stops the learner waits until what it trained is durable: 100 GB on a fast disk."""


class AskTrainer(Protocol):
    """One request to the trainer, for its header. Raises TrainerLost, ChildRefused, RunError."""

    def __call__(self, op: str, header: Mapping[str, object], sent: Sent = ..., /) -> Awaitable[Header]: ...


class TrainerLost(Exception):
    """The trainer is not the process that was loaded: all that it knew is gone. The message says why."""


@dataclass(kw_only=True, eq=False)
class Checkpoints(Service):
    """See the module's paragraph.

    Args:
        ask: one request to the trainer. Raises TrainerLost, ChildRefused, RunError.
        describe: makes the row of a version's checkpoint: what the curriculum and the ledger are at now.
        written: awaited until the ledger knows a training step.
        rest: see REST.
        audits: knows whose audits are not over: what was signed of them is not forgotten with a checkpoint.
        saved: the step of the newest durable state, 0 when there is none.
        snapshot_s: seconds that the trainer took for snapshots since somebody set it to 0.
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
        """What it was writing will never be whole."""
        self._lost = self._row is not None
        self._settle()

    def _under_audit(self) -> Collection[LeaseId]:
        return () if self.audits is None else self.audits.under_audit()

    async def run(self) -> None:
        """Write down what the trainer says, until cancelled. Raises RunError when the disk refuses too often."""
        while True:
            await self._heard.wait()
            self._heard = trio.Event()
            await self._conclude()

    async def save(self, version: PolicyVersion) -> None:
        """Have the trainer make its state, which is `version`'s, durable; return when it has taken a snapshot of it.

        Nothing is done while another is being written, or when it is durable already. Raises TrainerLost, RunError.
        """
        await self._conclude()
        if self._is_wanted(version):
            await self._take_snapshot(version)

    async def begin(self, version: PolicyVersion, nursery: trio.Nursery) -> None:
        """The same in `nursery`; return once the snapshot comes before whatever the trainer is asked later. Nothing is
        done soon after the one before, unless the operator wants one of these steps kept."""
        has_rested = trio.current_time() >= self._rests_until or self._is_milestone(version.version)
        if self._is_wanted(version) and has_rested:
            await nursery.start(self._save_beside, version)

    def _is_milestone(self, step: int) -> bool:
        """Whether it would be the first of `keep.every` steps."""
        every = self.keep.every
        return every > 0 and step // every > self.saved // every

    def _is_wanted(self, version: PolicyVersion) -> bool:
        return self._row is None and version.version > self.saved and not self._leaving

    async def _save_beside(self, version: PolicyVersion, task_status: trio.TaskStatus[None]) -> None:
        sent = once(task_status.started)
        if self._is_wanted(version):  # it still is: `save_last` may have come first
            with suppress(TrainerLost):  # whoever asks it next hears of it
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
        """Return when the state of `version`, the trainer's own, is durable. Raises TrainerLost, RunError."""
        while self.saved < version.version:
            if self._leaving:  # whoever stops us does it now
                await trio.sleep_forever()
            await self.save(version)
            await self._until_settled()

    def close(self) -> None:
        """Somebody stops the run: from now on `save_last` alone begins one, and none that fails ends the run."""
        self._leaving = True

    async def save_last(self, version: PolicyVersion) -> None:
        """Return when the state of `version`, the trainer's own, is durable, or was told to have failed. The one that
        is being written comes first, and nothing rests. Raises TrainerLost."""
        await self._until_settled()
        if version.version > self.saved:
            await self._take_snapshot(version)
            await self._until_settled()

    async def _until_settled(self) -> None:
        """Return when none is being written. Raises TrainerLost."""
        while self._row is not None:
            if self._lost:
                raise TrainerLost("it ended while it wrote a checkpoint")
            await self._settled.wait()

    async def forget(self) -> None:
        """Another process is the trainer now: write down what the one before had finished; the rest is lost."""
        await self._conclude()
        self._row, self._outcome, self._lost = None, None, False
        self._settle()

    def sweep(self) -> None:
        """Remove what the ledger does not know. Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        known = {row.directory for row in self.ledger.training.checkpoints()}
        for directory in self.directory.iterdir():
            if directory.name not in known:
                shutil.rmtree(directory, ignore_errors=True)

    async def _conclude(self) -> None:
        """Act on what was heard, if anything was: also when we are about to stop."""
        if self._outcome is not None and self._row is not None:
            await self.written(self._row.step)  # not below, where a ledger that fails could hold us for ever
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
        stay = chosen([one.step for one in rows], self.keep, self._scores(row), evaluating)
        self._remove([one for one in rows if one.step not in stay], under_audit)

    def _remove(self, rows: Sequence[CheckpointRow], under_audit: Collection[LeaseId]) -> None:
        if rows:
            steps = [one.step for one in rows]
            self.ledger.training.checkpoints_removed(steps, newest=self.keep.newest, under_audit=under_audit)
        for one in rows:
            shutil.rmtree(self.directory / one.directory, ignore_errors=True)

    def _scores(self, row: CheckpointRow) -> dict[int, float]:
        """What versions of the line that leads to `row` are worth, by their training step."""
        begun = [(number, base) for number, base in self.ledger.training.begun() if number <= row.incarnation]
        line = Chain(bases=bases_of(begun), head=PolicyVersion(row.incarnation, row.step))
        scores = self.ledger.training.evaluations()
        return {one.version.version: one.sampled for one in scores if line.contains(one.version)}

    def _make_room(self, under_audit: Collection[LeaseId]) -> list[CheckpointRow]:
        """Give up milestones, the least wanted first, until the disk has room for another checkpoint; return them."""
        rows = {one.step: one for one in self.ledger.training.checkpoints()}
        if not rows:
            return []
        newest = rows[max(rows)]
        needed = sum(file.stat().st_size for file in (self.directory / newest.directory).rglob("*") if file.is_file())
        stay = chosen(rows, self.keep, self._scores(newest))
        given_up = []
        for step in reversed([*stay]):
            if stay[step] is Stays.NEWEST or shutil.disk_usage(self.directory).free >= needed:
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
                f"{MAX_FAILED} checkpoints in a row could not be written to {self.directory}, so all since step "
                f"{self.saved} is at risk: {error}. Free its disk, then start again: it goes on from there."
            )
        self._settle()

    def _settle(self) -> None:
        """Wake who waits for the one that was being written."""
        self._settled.set()
        self._settled = trio.Event()
