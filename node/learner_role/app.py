"""Compose the learner: keys, ledger, store, transport, trainer, evaluation engine, and the loops that use them.

This is the only place where they meet.

Invariants, whenever and for whatever reason the learner ends:

- Peers are told, child processes end, and the ledger and the store are closed.
- Everything that was acknowledged is on disk, so the next start continues from there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from learner.artifacts.model_digest import model_digest
from learner.ledger.ledger import Ledger
from learner.ledger.sqlite.database import DamagedValue, LedgerError
from learner.monitoring.eval_scores import Scores
from learner.provisioning.estimation.learner_time import TimeKind
from node.config.common import GB
from node.config.swarm_config import NetworkSection, SwarmConfig
from node.engine.factory import learners_engine, open_verifying_engine
from node.engine.interface import EngineError
from node.engine.worker_engine import WorkerEngine
from node.learner_role.distillation.teacher_scorer import open_teacher
from node.learner_role.metrics.open_sinks import open_sinks, slug
from node.learner_role.metrics.prometheus import serve
from node.learner_role.metrics.sample_store import FILE as SAMPLES
from node.learner_role.metrics.sample_store import SampleSink
from node.learner_role.services import LearnerServices, build_judging
from node.learner_role.shared.signals import connect_peers
from node.learner_role.training.evaluation import Evaluation
from node.learner_role.training.trainer_process import TRAINER, CallTrainer
from node.learner_role.trial.trial_run import trial_terms, try_out
from node.network.known_members import KnownMembers
from node.network.reach_words import reach_words
from node.network.transport import open_transport
from node.processes.outcomes import ChildCrashed
from node.runtime.errors import RunError
from node.runtime.events import Clock, EventLog, Fields
from node.runtime.loop_watch import watched_loop
from node.state.identities import changes_since
from node.state.learner_state import open_learner_home
from node.state.status_file import NodeStatus, StatusFile
from node.tasks.task_suite import TaskSuite
from protocol.core.ids import short
from protocol.core.pipe import Header
from protocol.versions.manifest import SignedManifest
from swarm.store import ChunkStore, StoreError
from swarm.transport.error_groups import first_cause
from swarm.transport.interface import ListenFailed, Transport
from swarm.work.duplicate_keys import Doubles
from swarm.work.server import INBOX, Incoming, WorkServer

LAST_PROOFS_S = 10.0
"""Seconds that the run may wait at its end for nodes to fetch the proofs of the last version. Nodes need a second, or
longer if their machines are busy, and can never fetch them later."""

GOODBYE_S = 2.0
"""Seconds that the farewell may take to reach the peers before the connections close."""

OVER = "The run is finished: the learner took its last step."

REACH_S = 5.0
"""Seconds between two looks at how others reach the learner."""


OnReady = Callable[[str, LearnerServices], None]
"""A function that gets the invite and the running services."""


@dataclass(frozen=True, kw_only=True)
class LearnerOutcome:
    """How a finished run ended: its last step, and its newest held-out scores."""

    steps: int
    greedy: float | None
    sampled: float | None


async def run_learner(
    config: SwarmConfig,
    suite: TaskSuite,
    events: EventLog,
    on_ready: OnReady,
    *,
    trainer: Sequence[str] = TRAINER,
    trial: bool = True,
    transport: Callable[[bytes, NetworkSection, EventLog], AbstractAsyncContextManager[Transport]] = open_transport,
) -> LearnerOutcome:
    """Run the learner until its last training step, and return how it ended.

    `on_ready` gets the invite once peers can join, after the trial. `trainer` is the command of a process that uses the
    protocol of `learner.training.server`. Without `trial`, the trainer need not compute the same as the engine.
    `transport` opens the transport of the learner's key. Raises UsageError or RunError. Cancel to stop early.
    """
    home = open_learner_home(
        Path(config.swarm.state),
        name=config.swarm.name,
        certificate_days=config.swarm.certificate_days,
        now_ms=Clock.now_ms(),
    )
    try:
        with first_cause():
            async with AsyncExitStack() as stack:
                stack.callback(home.close)
                loop = stack.enter_context(watched_loop(events))
                board = _open_board(stack, home.root, events)
                ledger = Ledger(home.ledger, swarm=home.authority.swarm)
                stack.callback(ledger.close)
                for text in changes_since(ledger, home.learner, home.secret):
                    events.trouble(text)
                quota_bytes = None if (quota_gb := config.store.quota_gb) is None else round(quota_gb * GB)
                store = stack.enter_context(ChunkStore.open(home.store, home.authority, quota_bytes=quota_bytes))
                store.remember_genesis(home.genesis)
                digest = b""
                if config.distill.nodes and config.distill.teacher is not None:
                    digest = await trio.to_thread.run_sync(model_digest, Path(config.distill.teacher))
                services = LearnerServices(
                    config=config,
                    home=home,
                    ledger=ledger,
                    store=store,
                    transport=await stack.enter_async_context(transport(home.learner.seed, config.network, events)),
                    suite=suite,
                    events=events,
                    loop=loop,
                    trainer_argv=tuple(trainer),
                    teacher_digest=digest,
                )
                learner = _Learner(services, board, on_ready, trial=trial)
                stack.callback(learner.close)
                await stack.enter_async_context(learner.feed_sinks())
                return await learner.run()
    except ListenFailed as error:
        raise RunError(f"{error}. End what listens there, or choose another port in [network] listen.") from error
    except DamagedValue as error:
        raise RunError(f"{home.ledger}: {error}") from error
    except (LedgerError, StoreError, EngineError) as error:
        raise RunError(str(error)) from error
    except ChildCrashed as crash:
        raise RunError(f"The trainer could not run: {crash}") from crash


def _open_board(stack: AsyncExitStack, root: Path, events: EventLog) -> StatusFile:
    """Open the status file, which `volery status` reads, until `stack` is closed."""
    board = StatusFile(root)
    board.show(NodeStatus(doing="at work", limits={}))
    stack.callback(board.clear)
    events.listen(partial(_show_nodes, board))
    return board


def _show_nodes(board: StatusFile, event: str, fields: Fields) -> None:
    """Show in `volery status` when nodes cannot work, when the ledger is an older copy, and when the certificate ends.

    A learner without nodes that can work would otherwise seem to be at work.
    """
    match event, fields:
        case "nodes_unable", {"everyone": everyone, "text": text}:
            board.amend(doing=f"{'no node can work' if everyone else 'at work'}: {text}")
        case "nodes_able", _:
            board.amend(doing="at work")
        case "ledger_restored" | "certificate_ends", {"text": text}:
            board.notice(event, text)
        case "certificate_renewed", _:
            board.notice("certificate_ends", "")


class _Learner:
    """Runs the services of one run."""

    def __init__(self, services: LearnerServices, board: StatusFile, on_ready: OnReady, *, trial: bool) -> None:
        self._services, self._board, self._on_ready, self._trial = services, board, on_ready, trial
        for name, note in services.suite.notes:
            services.events.emit("task_opened", task=name, note=note)
        services.suite.troubles.subscribe(services.events.trouble)

    @asynccontextmanager
    async def feed_sinks(self) -> AsyncIterator[None]:
        """Send metrics to the configured sinks while inside. Raises RunError if a port is not available."""
        config, home, monitor = self._services.config, self._services.home, self._services.monitor
        section, name, swarm = config.metrics, config.swarm.name, home.authority.swarm
        async with AsyncExitStack() as stack:
            if section.prometheus:
                stack.enter_context(serve(section.prometheus, monitor.board))
            sinks = open_sinks(section, home.root, run=f"{slug(name)}-{short(swarm)}")
            keeper = SampleSink(path=home.root / SAMPLES) if section.samples else None
            await stack.enter_async_context(monitor.feed(sinks, keeper))
            yield

    def close(self) -> None:
        """Write the rows that wait. If the ledger can no longer be written, the run has ended for that reason, and a
        restart recovers what is missing."""
        with suppress(LedgerError):
            self._services.sessions.write_rest()
            self._services.training.write_time()
            if self._services.teachers is not None:
                self._services.teachers.sessions.unwritten()()
        self._services.recorder.close()

    async def run(self) -> LearnerOutcome:
        """Accept peers, open the children, make the trial, hand out the invite, and train to the end.

        Peers are accepted at once, since some may wait for a learner that comes back.
        """
        services, sessions = self._services, self._services.sessions
        inbox_send, inbox_receive = trio.open_memory_channel[Incoming](INBOX)
        reception = WorkServer(
            transport=services.transport,
            desk=sessions,
            inbox=inbox_send,
            report=services.swarm.faults.report,
            doubles=Doubles(heartbeat_s=services.config.network.heartbeat_s),
            report_copy=sessions.note_copy,
        )
        connect_peers(services.signals, reception)
        members = KnownMembers(root=services.home.root, transport=services.transport, events=services.events)
        members.recall(sessions.recover_leases())
        await trio.to_thread.run_sync(services.forgotten.look_here, services.home.checkpoints)
        presence = await services.announcer.note()
        await trio.to_thread.run_sync(sessions.recall_reach)
        services.context.time.begin(await trio.to_thread.run_sync(services.ledger.training.time_so_far))
        await trio.to_thread.run_sync(services.recorder.recall)
        async with trio.open_nursery() as nursery:
            services.swarm.start(nursery)
            reception.start()
            nursery.start_soon(services.intake.run, inbox_receive)
            if services.teachers is not None:
                nursery.start_soon(services.teachers.run, services.transport, services.swarm.faults.report)
            self._start_loops(nursery)
            nursery.start_soon(services.announcer.run, presence)
            nursery.start_soon(members.keep)
            scores = await self._train()
            nursery.cancel_scope.cancel()
        steps = services.state.capacity.chain.head.version
        services.events.emit("finished", steps=steps)
        return LearnerOutcome(
            steps=steps, greedy=scores.greedy if scores else None, sampled=scores.sampled if scores else None
        )

    def _start_loops(self, nursery: trio.Nursery) -> None:
        """Start the loops that run from the first moment to the last."""
        services = self._services
        nursery.start_soon(services.sessions.run)
        nursery.start_soon(services.forgotten.run)
        nursery.start_soon(services.certificates.run, services.leave)
        nursery.start_soon(services.leases.run)
        if self._services.config.swarm_rollouts:  # otherwise nothing is leased, and there may be no task
            nursery.start_soon(services.prompts.run)
        nursery.start_soon(services.provisioner.run)
        nursery.start_soon(services.operator.run)
        if services.audits is not None:
            nursery.start_soon(services.reputations.run)
        nursery.start_soon(services.packer.run)
        nursery.start_soon(services.relays.run)
        nursery.start_soon(services.proofs.run)
        nursery.start_soon(services.energy.run)
        nursery.start_soon(services.monitor.run)
        nursery.start_soon(services.loop.tell, services.events, lambda loop: self._board.amend(loop=loop))
        nursery.start_soon(services.training.publishing.announce_again)
        nursery.start_soon(self._show_reach)

    async def _show_reach(self) -> None:
        """Show in `volery status` how others reach us, until cancelled."""
        while True:
            self._board.amend(reach=reach_words(self._services.transport.reached()))
            await trio.sleep(REACH_S)

    async def _train(self) -> Scores | None:
        """Open the children, train to the end, and say farewell. Returns the newest held-out scores."""
        async with (
            self._open_children() as engine,
            open_teacher(
                self._services.config, self._services.context, self._services.home.root, self._services.teachers
            ) as teacher,
            trio.open_nursery() as beside,
        ):
            judging = build_judging(self._services, engine)
            if teacher is not None:
                beside.start_soon(teacher.run)
            if judging.audits is not None:
                beside.start_soon(judging.audits.run)
            if judging.selection is not None:
                beside.start_soon(judging.selection.run)
            async with trio.open_nursery() as nursery:
                published = partial(self._note_published, judging.evaluation, nursery)
                self._services.signals.version_published.subscribe(published)
                await self._services.training.run(partial(self._try_out, engine, judging.lock))
                await self._say_farewell()
                self._services.context.time.turn(TimeKind.EVALUATION)
            self._services.context.time.turn(TimeKind.ENDING)
            beside.cancel_scope.cancel()
        return None if judging.evaluation is None else judging.evaluation.latest

    @asynccontextmanager
    async def _open_children(self) -> AsyncIterator[WorkerEngine | None]:
        """Open verifiers, the trainer, and an engine if there are held-out problems or audits. Yields the engine."""
        services, state = self._services, self._services.state
        async with AsyncExitStack() as stack:
            services.events.emit("starting", doing="opening the tasks")
            state.waits = "The verifiers are opening their tasks."
            await stack.enter_async_context(services.verifiers.open())
            services.events.emit("starting", doing="starting the trainer's process")
            state.waits = "The trainer's process is being started."
            await stack.enter_async_context(services.trainer.open())
            engine = None
            is_audited = services.audits is not None and services.audits.audits
            if services.suite.held_out or is_audited:
                services.events.emit("starting", doing="starting the engine that evaluates and audits")
                state.waits = "The engine that evaluates and audits is being started."
                engine = await stack.enter_async_context(self._open_engine())
            state.waits = ""
            yield engine

    def _open_engine(self) -> AbstractAsyncContextManager[WorkerEngine]:
        services = self._services
        return open_verifying_engine(
            learners_engine(services.config), services.events, name="evaluation", state=services.home.root
        )

    async def _try_out(
        self, engine: WorkerEngine | None, lock: trio.Lock, export: Path, loaded: Header, call: CallTrainer
    ) -> None:
        """Make the trial, then write the invite, so that peers may join. Raises what `try_out` does."""
        services = self._services
        if self._trial and (terms := trial_terms(services.config, services.suite)) is not None:
            async with AsyncExitStack() as stack:
                if engine is None:  # only the trial needs one
                    engine = await stack.enter_async_context(self._open_engine())
                services.events.emit("starting", doing="trying out engine, audit and trainer")
                async with lock:
                    passed = await try_out(engine, call, export, loaded, terms)
                    await engine.release()
            services.events.emit(
                "trial_passed", seconds=round(passed.seconds, 2), tokens=passed.tokens, text=passed.sentence
            )
        self._on_ready(self._services.announcer.write_invite(services.transport.addresses()), self._services)

    def _note_published(self, evaluation: Evaluation | None, nursery: trio.Nursery, signed: SignedManifest) -> None:
        services, version = self._services, signed.version
        for task, figures in services.suite.curriculum.standing().items():
            services.events.emit("curriculum", task=task, **figures)
        last = version.version >= services.config.learn.steps
        if evaluation is not None and evaluation.is_due(version, last=last):
            nursery.start_soon(evaluation.evaluate, signed)

    async def _say_farewell(self) -> None:
        sessions, state = self._services.sessions, self._services.state
        self._services.context.time.turn(TimeKind.ENDING)
        with trio.move_on_after(LAST_PROOFS_S):
            await self._services.proofs.wait_settled()
        sessions.farewell(OVER)
        if self._services.teachers is not None:
            self._services.teachers.sessions.farewell(OVER)
        with trio.move_on_after(GOODBYE_S):
            while state.present or state.teachers:
                await state.wait_changed()
