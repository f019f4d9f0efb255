"""Score groups that wait for a teacher, beside training. The teacher has an engine of its own on this machine.

If teacher nodes score, this engine audits them. It then scores only while none of them is at work, and groups that no
lease can hold.

The buffer holds an admitted group until it has its scores (`learner.rollouts.buffer`), and drops groups that become
stale meanwhile. Groups that are held count as leased, so a slow teacher makes the learner lease less. Scores are a pure
function of the teacher and the tokens, so none is kept on disk: after a restart, waiting groups are scored again.

Invariants:

- Training waits for scores only if too few groups are scored for a batch.
- A request to the engine has at most SCORED_TOKENS tokens or one group, and less if memory is short.
- If the engine fails MAX_FAILURES times in a row, or returns invalid probabilities, the run ends with the reason.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from learner.rollouts.buffer import Group
from learner.rollouts.score_leases import Scored, ScoreLeases, fits_lease, generated_of
from node.config.node_config import EngineSection
from node.config.swarm_config import DistillSection, SwarmConfig
from node.engine.factory import open_verifying_engine
from node.engine.interface import (
    TEACHER,
    EngineCrashed,
    EngineError,
    InstallFailed,
    ScoringEngine,
)
from node.engine.teacher_scores import scores_of
from node.learner_role.distillation.teacher_nodes import TeacherNodes
from node.learner_role.shared.context import LearnerContext, Service
from node.runtime.errors import RunError

SCORED_TOKENS = 65_536
"""Most tokens of one request, including prompts: some seconds of work for a large teacher on a GPU, so that new groups
need not wait long."""

LOOK_S = 1.0
"""Seconds between two checks whether teacher nodes are still at work, because no event tells when they stop to ask."""

MAX_FAILURES = 5
"""Failures in a row that end the run. The engine is restarted after each, and so many are no accident."""


def teachers_engine(section: DistillSection) -> EngineSection:
    """Return the configuration of the teacher's own engine."""
    return EngineSection(
        kind="transformers",
        threads=section.threads,
        nice=10,
        device=section.device,
        compute_dtype=section.compute_dtype,
    )


@asynccontextmanager
async def open_teacher(
    config: SwarmConfig, context: LearnerContext, state: Path, nodes: TeacherNodes | None = None
) -> AsyncIterator[TeacherScorer | None]:
    """Start the teacher's engine and load the teacher; yield None if the configuration has no teacher.

    `nodes`: the teacher nodes, if any may join. Raises RunError.
    """
    if config.distill.teacher is None:
        yield None
        return
    directory = Path(config.distill.teacher)
    context.events.emit("starting", doing="loading the teacher")
    context.state.waits = "The teacher is being loaded."
    section = teachers_engine(config.distill)
    async with open_verifying_engine(section, context.events, name="teacher", state=state) as engine:
        scorer = TeacherScorer(
            context=context,
            engine=engine,
            directory=directory,
            temperature=config.learn.temperature,
            leases=ScoreLeases(buffer=context.state.capacity.buffer) if nodes is None else nodes.under_way,
            nodes=nodes,
        )
        await scorer.load()
        context.state.waits = ""
        yield scorer


@dataclass(kw_only=True, eq=False)
class TeacherScorer(Service):
    """Scores and audits with the teacher in `directory`. `temperature` is the sampling temperature."""

    engine: ScoringEngine
    directory: Path
    temperature: float
    leases: ScoreLeases
    nodes: TeacherNodes | None = None
    _failures: int = 0

    async def load(self) -> None:
        """Load the teacher into the engine. Raises RunError."""
        try:
            await self.engine.install(TEACHER, self.directory)
        except (InstallFailed, EngineCrashed) as error:
            raise RunError(
                f"[distill] teacher: {self.directory} cannot be loaded: {error}\nSet another device or a smaller "
                "format ([distill] device, compute_dtype), or use a smaller teacher. Then start again."
            ) from error

    async def run(self) -> None:
        """Score waiting groups until cancelled. Raises RunError if the teacher cannot be used."""
        while True:
            if (scored := self.leases.next_audit()) is not None:
                await self._audit(scored)
            elif groups := self._own_work():
                await self._score(groups)
            else:
                with trio.move_on_after(LOOK_S if self.nodes is not None else math.inf):
                    await self.state.wait_changed()

    def _own_work(self) -> list[Group]:
        """Return the groups to score here: those that no lease can hold, or all if no teacher node is at work."""
        waiting = self.leases.unscored(SCORED_TOKENS)
        is_served = self.nodes is not None and self.nodes.leases.is_at_work
        return [group for group in waiting if not fits_lease(group)] if is_served else waiting

    async def _audit(self, scored: Scored) -> None:
        """Score again what a teacher node scored. If the engine fails, the audit is repeated later."""
        assert self.nodes is not None, "only scores of teacher nodes wait for an audit"
        group, began = scored.work.group, trio.current_time()
        try:
            sequences = [(group.prompt, one.tokens) for one in group.completions]
            ours = await scores_of(self.engine, sequences, self.temperature)
        except EngineCrashed as error:
            self._bear(error)
            return
        except EngineError as error:
            raise self._refuse(error) from error
        self._failures = 0
        await trio.to_thread.run_sync(self.ledger.trust.engine_used, "scores", trio.current_time() - began)
        await self.nodes.audits.conclude(scored, ours)

    async def _score(self, groups: Sequence[Group]) -> None:
        began = trio.current_time()
        self.leases.hold(groups)
        try:
            found = await self._ask(groups)
        except EngineCrashed as error:
            self._bear(error)
            return
        except EngineError as error:
            raise self._refuse(error) from error
        finally:
            self.leases.let_go(groups)
        self._failures = 0
        for group, scores in zip(groups, found, strict=True):
            self.capacity.buffer.scored(group.lease, scores)
        took_s = trio.current_time() - began
        self.events.emit(
            "scores_made",
            groups=len(groups),
            tokens=sum(len(score) for scores in found for score in scores),
            seconds=round(took_s, 4),
        )
        self.state.notify(leasable=False)
        await trio.to_thread.run_sync(self.ledger.trust.engine_used, "scores", took_s)

    async def _ask(self, groups: Sequence[Group]) -> list[list[tuple[float, ...]]]:
        """Return the teacher's log probabilities of the generated tokens, by group and completion.

        Raises EngineError.
        """
        sequences = [(group.prompt, one.tokens) for group in groups for one in group.completions]
        found = iter(await scores_of(self.engine, sequences, self.temperature))
        return [[generated_of(one, next(found)) for one in group.completions] for group in groups]

    def _bear(self, error: EngineCrashed) -> None:
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            raise self._refuse(f"its process ended {self._failures} times in a row: {error}") from error

    def _refuse(self, why: object) -> RunError:
        return RunError(
            f"The teacher in {self.directory} cannot score: {str(why).rstrip('.')}.\nRepair the cause, or leave out "
            "[distill], then start again: the run continues from its newest checkpoint."
        )
