"""The learner, composed: keys, ledger, store, transport, trainer, evaluation engine, and the loops that use them.

This is the only place where they meet. What always holds on the way out, whatever the reason: peers are told, children
end, the ledger and the store are closed; what was acknowledged is on disk, so starting again goes on from there.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from learner.artifacts.checkpoint_retention import Keep
from learner.artifacts.publisher import Publisher
from learner.ledger.ledger import Ledger
from learner.ledger.sqlite.database import DamagedValue, LedgerError
from learner.provisioning.estimation.recording import FILE, Began
from learner.provisioning.planner.planner import Planner
from learner.provisioning.planner.review import Settings
from learner.rollouts.buffer import Buffer
from learner.rollouts.leases import LeaseTerms, Leasing
from learner.trust.margins import Arithmetic
from node.config.common import GB
from node.config.swarm_config import NetworkSection, SwarmConfig
from node.energy.meter_selection import devices_of_trainer, find_meters
from node.energy.monitor import EnergyWatch
from node.engine.factory import learners_engine, open_verifying_engine
from node.engine.interface import EngineError, PolicyEngine, VerifyingEngine
from node.engine.worker_engine import WorkerEngine
from node.learner_role.announce import LearnerAnnouncer
from node.learner_role.certificate_renewal import CertificateWatch
from node.learner_role.metrics.monitor import LearnerMonitor
from node.learner_role.metrics.open_sinks import open_sinks, slug
from node.learner_role.metrics.prometheus import served
from node.learner_role.metrics.sample_store import FILE as SAMPLES
from node.learner_role.metrics.sample_store import SampleSink
from node.learner_role.peers.forgotten_versions import Forgotten
from node.learner_role.peers.intake import IntakeLoop
from node.learner_role.peers.join_terms import LearnerTerms
from node.learner_role.peers.proof_service import ProofService
from node.learner_role.peers.relay_credits import RelayCreditService
from node.learner_role.peers.session_service import SessionService
from node.learner_role.scheduling.lease_service import LeaseService
from node.learner_role.scheduling.peer_recorder import PeerRecorder
from node.learner_role.scheduling.prompt_writer import PromptDesk
from node.learner_role.scheduling.provisioner import Provisioner
from node.learner_role.scheduling.recorder import RunRecorder
from node.learner_role.scheduling.run_state import RunState
from node.learner_role.training.base_model import hold_to_base
from node.learner_role.training.evaluation import Evaluation, EvaluationTerms
from node.learner_role.training.fixed_settings import note_fixed
from node.learner_role.training.loop import TrainingLoop, TrainingTerms
from node.learner_role.training.trainer_process import TRAINER, CallTrainer, advantage_of, child_spec, load_request
from node.learner_role.trial.trial_run import trial_terms, try_out
from node.learner_role.trust.audit_service import AuditService
from node.learner_role.trust.auditor import AuditLoop
from node.learner_role.trust.engine_budget import EngineBudget
from node.learner_role.trust.reputation import ReputationService
from node.learner_role.trust.selection_checker import ChoiceLoop
from node.learner_role.trust.selection_service import SelectionService
from node.learner_role.trust.version_retention import VersionRetention
from node.network.budget_reports import FaultLog, tell_refusals
from node.network.known_members import KnownMembers
from node.network.transport import open_transport
from node.processes.child import SupervisedChild, open_child
from node.processes.event_log import child_events
from node.processes.outcomes import ChildCrashed, ChildDied, ChildEvent, ChildRestarting, ChildStarted
from node.runtime.errors import RunError
from node.runtime.events import Clock, EventLog, Fields
from node.runtime.loop_delay import LoopFigures
from node.runtime.loop_watch import LoopWatch, watched_loop
from node.state.identities import changes_since
from node.state.learner_state import LearnerStateDir, open_learner_home
from node.state.operator_orders import OperatorDecisions
from node.state.status_file import NodeStatus, StatusFile
from node.tasks.task_suite import TaskSuite
from node.verifiers.dispatch import Verifiers
from protocol.accounting.tally import tally_of
from protocol.core.errors import Fault
from protocol.core.ids import PeerId, PolicyVersion, PublicKey, short
from protocol.core.pipe import Arrays, Header
from protocol.versions.chunking import file_chunks
from protocol.versions.exchange import NotTold, PeerAddresses, TellTerms
from protocol.versions.manifest import SignedManifest
from protocol.versions.staleness import Chain
from swarm.store import ChunkStore, StoreError
from swarm.transfer.exchange import ChunkExchange
from swarm.transfer.serving import Knowledge, Serving
from swarm.transport.error_groups import first_cause
from swarm.transport.interface import ListenFailed, Transport
from swarm.work.duplicate_keys import Doubles
from swarm.work.membership import HEARTBEATS_MISSED, Membership
from swarm.work.server import INBOX, Incoming, WorkServer

LAST_PROOFS_S = 3.0
"""How long the run may wait at its end for nodes to fetch what the last version was trained on."""

GOODBYE_S = 2.0
"""How long the farewell may take to reach the peers before the connections close."""


@dataclass(frozen=True, kw_only=True)
class LearnerOutcome:
    """How a finished run ended."""

    steps: int
    greedy: float | None
    sampled: float | None


async def run_learner(
    config: SwarmConfig,
    schooling: TaskSuite,
    events: EventLog,
    on_ready: Callable[[str, RunState], None],
    *,
    trainer: Sequence[str] = TRAINER,
    trial: bool = True,
    transport: Callable[[bytes, NetworkSection], AbstractAsyncContextManager[Transport]] = open_transport,
) -> LearnerOutcome:
    """Run the learner role until its last training step, and return how it went.

    `on_ready` is told the invite once peers can join, after the trial. `trainer` is the command of a process that holds
    the conversation of `learner.training.server`; without `trial` it need not compute what the engine does. `transport`
    makes the presence among others, of the learner's key. Raises UsageError or RunError; cancel to stop early.
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
                board = StatusFile(home.root)
                board.show(NodeStatus(doing="at work", limits={}))
                stack.callback(board.clear)
                events.listen(partial(_show_nodes, board))
                ledger = Ledger(home.ledger, swarm=home.authority.swarm)
                stack.callback(ledger.close)
                for text in changes_since(ledger, home.learner, home.secret):
                    events.emit("trouble", text=text)
                quota_gb = config.store.quota_gb
                quota_bytes = None if quota_gb is None else round(quota_gb * GB)
                store = stack.enter_context(ChunkStore.open(home.store, home.authority, quota_bytes=quota_bytes))
                store.remember_genesis(home.genesis)
                presence = await stack.enter_async_context(transport(home.learner.seed, config.network))
                learner = _Learner(
                    config, home, ledger, store, presence, schooling, events, trainer, trial, loop, board
                )
                stack.callback(learner.close)
                await stack.enter_async_context(learner.watched())
                return await learner.work(on_ready)
    except ListenFailed as error:
        raise RunError(f"{error}. End what listens there, or choose another port in [network] listen.") from error
    except DamagedValue as error:
        raise RunError(f"{home.ledger}: {error}") from error
    except (LedgerError, StoreError, EngineError) as error:
        raise RunError(str(error)) from error
    except ChildCrashed as crash:
        raise RunError(f"The trainer cannot run: {crash}") from crash


def _show_nodes(board: StatusFile, event: str, fields: Fields) -> None:
    """Let `volery status` say when nodes cannot work, since a learner without any only seems to be at work, and when
    the ledger is an older copy."""
    match event, fields:
        case "nodes_unable", {"everyone": everyone, "text": text}:
            board.amend(doing=f"{'nobody can work' if everyone else 'at work'}: {text}")
        case "nodes_able", _:
            board.amend(doing="at work")
        case "ledger_restored" | "certificate_ends", {"text": text}:
            board.notice(event, text)
        case "certificate_renewed", _:
            board.notice("certificate_ends", "")


class _Learner:
    """The parts, wired. Lives for one run."""

    def __init__(
        self,
        config: SwarmConfig,
        home: LearnerStateDir,
        ledger: Ledger,
        store: ChunkStore,
        transport: Transport,
        schooling: TaskSuite,
        events: EventLog,
        trainer: Sequence[str],
        trial: bool,
        loop: LoopWatch,
        board: StatusFile,
    ) -> None:
        learn = config.learn
        self.trainer_argv, self.trial = tuple(trainer), trial
        self.config, self.home, self.ledger, self.transport, self.events = config, home, ledger, transport, events
        self.store, self.schooling, self.loop, self.noticeboard = store, schooling, loop, board
        self.faults = FaultLog(events=events)
        for name, note in schooling.notes:
            events.emit("task_opened", task=name, note=note)
        schooling.report_trouble = lambda text: events.emit("trouble", text=text)
        self.verifiers = Verifiers(schooling=schooling, section=config.verifiers, events=events)
        self.prompts = PromptDesk(
            schooling=schooling,
            write=self.verifiers.prompts,
            alone=self.verifiers.is_pooled,
            writers=self.verifiers.writers,
            ready=lambda: self.run.notify(),
        )
        self.training: TrainingLoop | None = None
        self.judging_engine = trio.Lock()
        self.engine_time = EngineBudget(share=config.trust.max_audit_compute_share)
        self.evaluation: Evaluation | None = None
        batch = config.swarm_rollouts
        self.run = RunState(
            window=learn.staleness,
            batch=batch,
            ahead=learn.max_batches_ahead,
            chain=Chain(bases=(0,), head=PolicyVersion(1, 0)),
            buffer=Buffer(window=learn.staleness, informative_only=config.curriculum.dynamic_sampling),
            leasing=Leasing(
                terms=LeaseTerms(
                    group_size=learn.group_size,
                    temperature=learn.temperature,
                    max_new_tokens=learn.max_new_tokens,
                    stop_ids=schooling.stop_ids,
                    deadline_s=learn.lease_timeout_s,
                ),
                secret=home.secret,
                new_id=partial(secrets.token_bytes, 16),
            ),
            next_prompt=self.prompts.next_prompt,
            peer_share=config.trust.max_peer_share,
            kappa=learn.publish_every or 1,
            membership=Membership(silence_s=HEARTBEATS_MISSED * config.network.heartbeat_s),
        )
        self.recorder = RunRecorder(
            home.root / FILE,
            run_terms(config, batch),
            trouble=lambda text: events.emit("trouble", text=text),
        )
        self.watch = LearnerMonitor(
            run=self.run,
            ledger=ledger,
            recorder=self.recorder,
            events=events,
            now_ms=Clock.now_ms,
            task_of=lambda index: schooling.place(index)[1],
            samples=config.metrics.samples,
            advantage=advantage_of(config),
            loop=loop,
        )
        witness = PeerRecorder(self.run, self.recorder, events, max_new_tokens=learn.max_new_tokens)
        self.certificates = CertificateWatch(
            home=home,
            certificate_days=config.swarm.certificate_days,
            renewed=self._certified,
            leave=lambda: self.run.leave(),
            now_ms=Clock.now_ms,
            events=events,
        )
        self.trust = self._trust() if batch else None
        self.relays = RelayCreditService(
            run=self.run,
            ledger=ledger,
            store=store,
            keypair=home.learner,
            authority=home.authority,
            certificate=home.certificate,
            now_ms=self.certificates.signing_ms,
            events=events,
        )
        self.reputations = ReputationService(
            ledger=ledger.path,
            present=self.run.present,
            keypair=home.learner,
            authority=home.authority,
            certificate=home.certificate,
            now_ms=self.certificates.signing_ms,
            events=events,
        )
        self.proofs = ProofService(ledger=ledger, authority=home.authority, reputed=self.reputations.note)
        self.leases = LeaseService(
            run=self.run,
            ledger=ledger,
            witness=witness,
            keypair=home.learner,
            swarm=home.authority.swarm,
            now_ms=Clock.now_ms,
            events=events,
        )
        self.choices: SelectionService | None = None
        if self.trust is not None:
            self.trust.used = self.relays.used
            self.trust.is_quarantined, self.trust.judged = self.reputations.is_quarantined, self.reputations.call
            self.reputations.changed = self.trust.reconsider
            self.choices = self._choices(self.trust)
            self.leases.ended = self.choices.withdrawn
            self.trust.forgiven, self.trust.delivered = self.choices.forgive, self.choices.delivered
            self.trust.banned = self.choices.drop
        self.desk = SessionService(
            run=self.run,
            ledger=ledger,
            leases=self.leases,
            relays=self.relays,
            proofs=self.proofs,
            witness=witness,
            token=config.network.join_token,
            heartbeat_s=config.network.heartbeat_s,
            engines=config.engines,
            trust=self.trust,
            peers_changed=lambda: self.steward.call(),
            now_ms=Clock.now_ms,
            events=events,
            faults=self.faults,
        )
        plan = config.provisioning
        self.steward = Provisioner(
            run=self.run,
            ledger=ledger,
            recorder=self.recorder,
            planner=Planner(
                Settings(
                    rollouts=max(1, batch),
                    staleness=learn.staleness,
                    kappa=learn.publish_every or None,
                    activate=plan.select_peers,
                    currency=config.price.currency,
                    review_s=plan.review_interval_s,
                )
            ),
            review_s=plan.review_interval_s,
            now_ms=Clock.now_ms,
            events=events,
        )
        self.intake = IntakeLoop(
            run=self.run,
            witness=witness,
            ledger=ledger,
            keypair=home.learner,
            swarm=home.authority.swarm,
            certificate=home.certificate,
            ask=self.verifiers.replies,
            observe=schooling.observe,
            expected=schooling.expected_reward,
            trust=self.trust,
            used=self.relays.used,
            ended=self.leases.ended,
            closing=self.leases.write,
            now_ms=self.certificates.signing_ms,
            events=events,
        )
        self.terms = LearnerTerms(
            config=config,
            certificate=home.certificate,
            max_turns=learn.max_turns if schooling.has_turns else 1,
            step=lambda: self.run.chain.head.version,
        )
        knowledge = Knowledge(genesis=home.genesis, newest=self._newest, peers=self._peers, terms=self._tell_terms)
        self.serving = Serving(
            transport=transport,
            store=store,
            knowledge=knowledge,
            report=self._report,
            trouble=lambda text: events.emit("trouble", text=text),
        )
        self.distribution = ChunkExchange(
            transport=transport,
            store=store,
            tell_gained=lambda signed: self.serving.tell_gained(signed.hash),
            report=self._report,
            serving=self.serving,
        )
        self.forgotten = Forgotten(
            run=self.run,
            ledger=ledger,
            authority=home.authority,
            learner=PublicKey(home.learner.public),
            transport=transport,
            newest=self._newest,
            report=self._report,
            now_ms=Clock.now_ms,
            events=events,
        )
        began_s = trio.current_time()
        self.energy = EnergyWatch(
            partial(find_meters, config.energy, devices_of_trainer(config.trainer)),
            is_lent=lambda: True,
            engine_s=lambda: trio.current_time() - began_s,  # it is at work all the time
            events=events,
        )
        self.presence = LearnerAnnouncer(
            config=config,
            home=home,
            ledger=ledger,
            served_bytes=lambda: self.serving.served_bytes,
            events=events,
            joules=lambda: self.energy.joules if config.energy.report else {},
        )
        self.nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Metrics go where the configuration has them, while inside. Raises RunError when a port cannot be had."""
        section, name, swarm = self.config.metrics, self.config.swarm.name, self.home.authority.swarm
        async with AsyncExitStack() as stack:
            if section.prometheus:
                stack.enter_context(served(section.prometheus, self.watch.board))
            sinks = open_sinks(section, self.home.root, run=f"{slug(name)}-{short(swarm)}")
            keeper = SampleSink(path=self.home.root / SAMPLES) if section.samples else None
            await stack.enter_async_context(self.watch.feeding(sinks, keeper))
            yield

    def close(self) -> None:
        """Write what nobody has written yet. A ledger that cannot be written to any more has ended the run already, and
        recovers what it was not told."""
        self.recorder.close()
        with suppress(LedgerError):
            self.desk.write_rest()

    async def work(self, on_ready: Callable[[str, RunState], None]) -> LearnerOutcome:
        """Be there for peers at once, since some may wait for a learner that comes back; then open the children, try
        the run out, tell `on_ready` the invite, and train to the end.
        """

        def ready() -> None:
            on_ready(self.presence.write_invite(self.transport.addresses()), self.run)

        inbox_send, inbox_receive = trio.open_memory_channel[Incoming](INBOX)
        reception = WorkServer(
            transport=self.transport,
            desk=self.desk,
            inbox=inbox_send,
            report=self._report,
            doubles=Doubles(heartbeat_s=self.config.network.heartbeat_s),
            report_copy=self.desk.copied,
        )
        self.desk.reception = reception
        members = KnownMembers(root=self.home.root, transport=self.transport, events=self.events)
        members.recall()
        self.desk.recover_leases()
        await trio.to_thread.run_sync(self.forgotten.look_here, self.store, self.home.checkpoints)
        stay = await self.presence.note()
        await trio.to_thread.run_sync(self.recorder.recall)
        async with trio.open_nursery() as nursery:
            self.serving.start()
            nursery.start_soon(self.distribution.run)
            reception.start()
            nursery.start_soon(self.intake.work, inbox_receive)
            nursery.start_soon(self.desk.watch)
            nursery.start_soon(self.forgotten.watch)
            nursery.start_soon(self.certificates.watch)
            nursery.start_soon(self.leases.serve)
            if self.config.swarm_rollouts:  # else nothing is leased, and there may be no task
                nursery.start_soon(self.prompts.work)
            nursery.start_soon(self.steward.work)
            if self.trust is not None:
                nursery.start_soon(self.trust.watch)
                nursery.start_soon(self.reputations.watch)
            nursery.start_soon(self.relays.work)
            nursery.start_soon(self.proofs.work)
            nursery.start_soon(self.presence.tell, stay)
            nursery.start_soon(members.keep)
            nursery.start_soon(tell_refusals, self.transport, self.events)
            nursery.start_soon(self.energy.run)
            nursery.start_soon(self.watch.look)
            nursery.start_soon(self.loop.tell, self.events, self._show)
            async with self._open_children() as (trainer, engine), trio.open_nursery() as beside:
                if engine is not None and self.trust is not None and self.trust.audits:
                    beside.start_soon(self._audits(engine, self.trust).work)
                    if self.choices is not None:
                        beside.start_soon(self._draws(engine, self.choices).work)
                async with trio.open_nursery() as self.nursery:
                    self.evaluation = self._evaluation(engine) if engine and self.schooling.held_out else None
                    self.training = self._training(trainer, partial(self._tried, engine, ready))
                    self.run.leave = self.training.saving.leave
                    nursery.start_soon(self.training.publishing.announce_again)
                    await self.training.work()
                    await self._say_farewell()
                beside.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
        scores = self.evaluation.latest if self.evaluation else None
        self.events.emit("finished", steps=self.run.chain.head.version)
        return LearnerOutcome(
            steps=self.run.chain.head.version,
            greedy=scores.greedy if scores else None,
            sampled=scores.sampled if scores else None,
        )

    @asynccontextmanager
    async def _open_children(self) -> AsyncIterator[tuple[SupervisedChild, WorkerEngine | None]]:
        """Verifiers, the trainer, and an engine if there is anything to evaluate on, or to audit."""
        spec = child_spec(self.trainer_argv, self.config)
        async with AsyncExitStack() as stack:
            self.run.waits = "The verifiers are opening their tasks."
            await stack.enter_async_context(self.verifiers.open())
            self.run.waits = "The trainer's process is being started."
            trainer = await stack.enter_async_context(
                open_child(spec, on_event=self._trainer_event(), on_frame=self._trainer_said)
            )
            engine = None
            if self.schooling.held_out or (self.trust is not None and self.trust.audits):
                self.run.waits = "The engine that evaluates and audits is being started."
                engine = await stack.enter_async_context(self._opened_engine())
            self.run.waits = ""
            yield trainer, engine

    def _opened_engine(self) -> AbstractAsyncContextManager[WorkerEngine]:
        return open_verifying_engine(learners_engine(self.config), self.events, name="evaluation", state=self.home.root)

    async def _tried(
        self,
        engine: WorkerEngine | None,
        ready: Callable[[], None],
        export: Path,
        loaded: Header,
        call: CallTrainer,
    ) -> None:
        """The trial, and then the invite: `ready` is told when peers may join. Raises what `try_out` does."""
        if self.trial and (terms := trial_terms(self.config, self.schooling)) is not None:
            async with AsyncExitStack() as stack:
                if engine is None:  # the run needs none
                    engine = await stack.enter_async_context(self._opened_engine())
                async with self.judging_engine:
                    passed = await try_out(engine, call, export, loaded, terms)
                    await engine.release()
            self.events.emit("trial_passed", seconds=round(passed.seconds, 2), tokens=passed.tokens, text=passed.told)
        ready()

    def _trainer_event(self) -> Callable[[ChildEvent], None]:
        log = child_events(self.events, "trainer")

        def heard(event: ChildEvent) -> None:
            log(event)
            match event:
                case ChildStarted():
                    self.run.waits = ""
                case ChildRestarting():
                    self.run.waits = "The trainer's process is being started again."
                case ChildDied() if self.training is not None:
                    self.training.saving.died()

        return heard

    def _trainer_said(self, header: Header, arrays: Arrays) -> None:
        if header["event"] == "waiting":
            text = str(header.get("text"))
            self.run.waits = f"{text[:1].upper()}{text[1:]}."
            self.events.emit("trainer_waits", text=text)
        elif self.training is not None:
            self.training.saving.heard(header, arrays)

    def _trust(self) -> AuditService:
        home = self.home
        return AuditService(
            run=self.run,
            ledger=self.ledger,
            kept=VersionRetention(store=self.store),
            keypair=home.learner,
            swarm=home.authority.swarm,
            certificate=home.certificate,
            secret=home.secret,
            floor=self.config.trust.min_audit_share,
            audits=self.config.trust.audits,
            arithmetic=Arithmetic(self.config.trust.required_compute_dtype),
            orders=OperatorDecisions(home.root),
            now_ms=self.certificates.signing_ms,
            events=self.events,
        )

    def _choices(self, trust: AuditService) -> SelectionService:
        return SelectionService(
            run=self.run,
            ledger=self.ledger,
            kept=trust.kept,
            secret=self.home.secret,
            convict=trust.convict,
            now_ms=Clock.now_ms,
            events=self.events,
            looks=trust.audits and not self.schooling.has_turns,
        )

    def _draws(self, engine: VerifyingEngine, desk: SelectionService) -> ChoiceLoop:
        return ChoiceLoop(
            engine=engine,
            lock=self.judging_engine,
            store=self.store,
            desk=desk,
            ask=self.verifiers.replies,
            time=self.engine_time,
            events=self.events,
        )

    def _audits(self, engine: VerifyingEngine, desk: AuditService) -> AuditLoop:
        return AuditLoop(
            engine=engine,
            lock=self.judging_engine,
            store=self.store,
            desk=desk,
            time=self.engine_time,
            events=self.events,
        )

    def _evaluation(self, engine: PolicyEngine) -> Evaluation:
        learn = self.config.learn
        terms = EvaluationTerms(
            every_versions=self.config.evaluate.every_versions,
            temperature=learn.temperature,
            max_new_tokens=learn.max_new_tokens,
            stop_ids=frozenset(self.schooling.stop_ids),
            samples=self.config.evaluate.samples,
            ks=tuple(sorted(set(self.config.evaluate.pass_at_k))),
        )
        return Evaluation(
            engine=engine,
            store=self.store,
            ledger=self.ledger,
            prompts=self.schooling.held_out,
            terms=terms,
            now_ms=Clock.now_ms,
            events=self.events,
            ask=self.verifiers.held_out_replies,
            lock=self.judging_engine,
        )

    def _training(
        self, trainer: SupervisedChild, tried: Callable[[Path, Header, CallTrainer], Awaitable[None]]
    ) -> TrainingLoop:
        home, learn = self.home, self.config.learn
        return TrainingLoop(
            run=self.run,
            ledger=self.ledger,
            store=self.store,
            publisher=Publisher(
                learner=home.learner, authority=home.authority, certificate=self.certificates.certificate
            ),
            trainer=trainer,
            transport=self.transport,
            trust=self.trust,
            terms=TrainingTerms(
                steps=learn.steps,
                weights_dtype=self.config.model.weights_dtype,
                keep=keep_of(self.config),
                load=load_request(self.config),
            ),
            checkpoints=home.checkpoints,
            exports=home.exports,
            environment=self.verifiers.environment,
            curriculum_state=self.schooling.state,
            restore_curriculum=self.schooling.restore,
            offline=self.schooling.offline,
            observe=self.schooling.observe,
            tried=tried,
            evaluating=lambda: self.evaluation.evaluating if self.evaluation is not None else (),
            look=self.certificates.look,
            opened=self._opened,
            stepped=self.watch.stepped,
            adopted=self._seed,
            published=self._published,
            now_ms=Clock.now_ms,
            events=self.events,
            recorder=self.recorder,
        )

    async def _opened(self, incarnation: int, base: int) -> None:
        """Look at the model again: a trainer that was started anew has read it again."""
        await trio.to_thread.run_sync(note_fixed, self.ledger, self.config, base)
        if note := await trio.to_thread.run_sync(hold_to_base, self.ledger, self.config, base):
            self.events.emit("trouble", text=note)
        await self.watch.began(incarnation, base)

    def _certified(self, certificate: bytes) -> None:
        """What anybody here signs from now on carries the renewed certificate."""
        self.relays.certificate = self.reputations.certificate = self.intake.certificate = certificate
        if self.trust is not None:
            self.trust.certificate = certificate
        self.terms = replace(self.terms, certificate=certificate)
        if self.training is not None:
            self.training.publishing.certified(certificate)

    def _tell_terms(self, token: str) -> TellTerms | NotTold:
        return self.terms.answer(token)

    async def _say_farewell(self) -> None:
        with trio.move_on_after(LAST_PROOFS_S):
            await self.proofs.wait_settled()
        self.desk.farewell("The run is finished: the learner took its last step.")
        with trio.move_on_after(GOODBYE_S):
            while self.run.present:
                await self.run.wait_changed()

    def _show(self, loop: LoopFigures) -> None:
        self.noticeboard.amend(loop=loop)

    def _newest(self) -> bytes:
        return b"" if self.training is None else self.training.newest

    def _seed(self, signed: SignedManifest) -> None:
        """Scatter what most peers will ask for: the patch from the version before, where there is one."""
        manifest = signed.manifest
        patch = next((patch for patch in manifest.patches if patch.base == manifest.previous), None)
        self.distribution.seed(signed, file_chunks(manifest) if patch is None else patch.chunks)

    async def _published(self, signed: SignedManifest) -> None:
        self.serving.tell_gained(signed.hash)
        self.desk.published(tally_of(signed.manifest) or b"")
        for task, figures in self.schooling.curriculum.standing().items():
            self.events.emit("curriculum", task=task, **figures)
        last = signed.version.version >= self.config.learn.steps
        evaluation = self.evaluation
        if evaluation is not None and self.nursery is not None and evaluation.is_due(signed.version, last=last):
            self.nursery.start_soon(evaluation.run, signed)

    def _report(self, peer: PeerId, fault: Fault, detail: str) -> None:
        self.faults.report(peer, fault, detail)

    def _peers(self) -> list[PeerAddresses]:
        me = PeerAddresses(peer=self.transport.peer_id, addresses=self.transport.addresses())
        return [me, *self.desk.peers()]


def keep_of(config: SwarmConfig) -> Keep:
    """Which checkpoints stay."""
    learn = config.learn
    return Keep(
        newest=learn.keep_checkpoints,
        every=learn.keep_every,
        best=config.evaluate.keep_best,
        most=learn.keep_milestones,
    )


def run_terms(config: SwarmConfig, batch: int) -> Began:
    """What the recording of this run begins with. `batch` is R, 0 where logs are all that is trained on."""
    learn = config.learn
    return Began(
        at_s=0.0,
        swarm=config.swarm.name,
        mode="sequential" if learn.staleness == 0 else "async",
        rollouts=max(1, batch),
        group_size=learn.group_size,
        staleness=learn.staleness,
        kappa=learn.publish_every or 1,
        currency=config.price.currency,
    )
