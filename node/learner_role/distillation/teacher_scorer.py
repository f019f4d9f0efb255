"""Score groups that wait for a teacher, beside training. The teacher has an engine of its own on this machine.

Where teacher nodes score, this engine audits them. It scores itself only while none of them is at work, and what cannot
be sent to them.

The buffer holds an admitted group until its scores are there (`learner.rollouts.buffer`), and drops what grows too old
meanwhile. Groups that are held count as leased, so a slow teacher makes the learner lease less.
Scores are a pure function of the teacher and the tokens, so none is kept on disk: after a restart what waits is scored
again.

Invariants:
- training waits for a score only where too few groups are scored for a batch;
- the engine is asked about SCORED_TOKENS tokens at once, or one group, and less where memory is short;
- where it fails again and again, or says what is no probability, the run ends with the reason.
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
"""Tokens of one request, prompts counted: some seconds of a large teacher on a graphics card, so that fresh groups
need not wait long behind it."""

LOOK_S = 1.0
"""How often to see whether teacher nodes are still at work: nobody tells when they stop to ask."""

MAX_FAILURES = 5
"""In a row, after each of which the engine's process was started again: more are no accident."""


def teachers_engine(section: DistillSection) -> EngineSection:
    """The engine that a teacher has for itself."""
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
    """Start the teacher's engine and load it; None where the configuration names no teacher. `nodes`: who scores beside
    it. Raises RunError."""
    if config.distill.teacher is None:
        yield None
        return
    directory = Path(config.distill.teacher)
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
    """See the module's paragraph. `directory` holds the teacher; `temperature` is that of the sampling."""

    engine: ScoringEngine
    directory: Path
    temperature: float
    leases: ScoreLeases
    nodes: TeacherNodes | None = None
    _failures: int = 0

    async def load(self) -> None:
        """Have the engine load the teacher. Raises RunError."""
        try:
            await self.engine.install(TEACHER, self.directory)
        except (InstallFailed, EngineCrashed) as error:
            raise RunError(
                f"[distill] teacher: {self.directory} cannot be loaded: {error}\nGive it another device or less "
                "([distill] device, compute_dtype), or take a smaller teacher; then start again."
            ) from error

    async def run(self) -> None:
        """Score what waits for it, until cancelled. Raises RunError when the teacher cannot be used."""
        while True:
            if (scored := self.leases.next_audit()) is not None:
                await self._audit(scored)
            elif groups := self._own_work():
                await self._score(groups)
            else:
                with trio.move_on_after(LOOK_S if self.nodes is not None else math.inf):
                    await self.state.wait_changed()

    def _own_work(self) -> list[Group]:
        """What nobody else scores: all that waits while no teacher node is at work, and what no lease can hold."""
        waiting = self.leases.unscored(SCORED_TOKENS)
        is_served = self.nodes is not None and self.nodes.leases.is_at_work
        return [group for group in waiting if not fits_lease(group)] if is_served else waiting

    async def _audit(self, scored: Scored) -> None:
        """Score again what a teacher node scored; where the engine fails, it is asked again."""
        assert self.nodes is not None, "only who leases to teachers has scores that wait for an audit"
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
        """The teacher's log probabilities of the generated tokens of each completion of each group. Raises
        EngineError."""
        sequences = [(group.prompt, one.tokens) for group in groups for one in group.completions]
        found = iter(await scores_of(self.engine, sequences, self.temperature))
        return [[generated_of(one, next(found)) for one in group.completions] for group in groups]

    def _bear(self, error: EngineCrashed) -> None:
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            raise self._refuse(f"its process ended {self._failures} times in a row: {error}") from error

    def _refuse(self, why: object) -> RunError:
        return RunError(
            f"The teacher in {self.directory} cannot score: {str(why).rstrip('.')}.\nMend the cause, or leave "
            "[distill] out; then start again: it goes on from there."
        )
