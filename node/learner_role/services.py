"""Build the learner's services and connect them. `node.learner_role.app` opens what they need, and runs them.

Services get the same news in the order of their construction (`node.learner_role.shared.signals`). That matters for a
ban: the peer first gets its revised receipts, then loses its leases and its connection, and then its waiting records
are dropped. So `receipt_revisions` is built before `session_service`, and `selection_service` after it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial

import trio

from learner.artifacts.checkpoint_retention import Keep
from learner.ledger.ledger import Ledger
from learner.provisioning.estimation.recording import FILE, Began
from learner.provisioning.planner.planner import Planner
from learner.provisioning.planner.review import Settings
from learner.rollouts.buffer import Buffer
from learner.rollouts.open_leases import LeaseTerms, Leasing
from learner.scheduling.capacity import LeaseCapacity
from learner.scheduling.completion_lengths import CompletionLengths
from learner.scheduling.lease_scheduler import LeaseScheduler
from learner.trust.margins import Arithmetic
from node.config.swarm_config import SwarmConfig
from node.energy.meter_selection import devices_of_trainer, find_meters
from node.energy.monitor import EnergyWatch
from node.engine.worker_engine import WorkerEngine
from node.learner_role.announce import LearnerAnnouncer
from node.learner_role.certificate_renewal import CertificateWatch
from node.learner_role.distillation.teacher_nodes import TeacherNodes
from node.learner_role.metrics.monitor import LearnerMonitor
from node.learner_role.peers.forgotten_versions import Forgotten
from node.learner_role.peers.intake import IntakeLoop
from node.learner_role.peers.introducer import Introducer
from node.learner_role.peers.join_terms import LearnerTerms
from node.learner_role.peers.proof_service import ProofService
from node.learner_role.peers.relay_credits import RelayCreditService
from node.learner_role.peers.session_service import SessionService
from node.learner_role.receipt_packer import ReceiptPacker
from node.learner_role.replayed_routing import audited_experts, replayed_routing
from node.learner_role.scheduling.lease_service import LeaseService
from node.learner_role.scheduling.peer_recorder import PeerRecorder
from node.learner_role.scheduling.prompt_writer import PromptWriter
from node.learner_role.scheduling.provisioner import Provisioner
from node.learner_role.scheduling.run_recording import RunRecorder
from node.learner_role.scheduling.run_settings import RunSettings
from node.learner_role.shared.context import LearnerContext, LearnerIdentity
from node.learner_role.shared.run_state import RunState
from node.learner_role.shared.signals import LearnerSignals
from node.learner_role.shared.time_keeper import TimeKeeper
from node.learner_role.training.base_model import hold_to_base
from node.learner_role.training.evaluation import Evaluation, EvaluationTerms
from node.learner_role.training.fixed_settings import note_fixed, note_names
from node.learner_role.training.loop import TrainingLoop
from node.learner_role.training.trainer_process import TrainerProcess, child_spec, load_request, recipe_in
from node.learner_role.trust.audit_service import AuditService
from node.learner_role.trust.auditor import AuditLoop
from node.learner_role.trust.bans import Bans
from node.learner_role.trust.engine_budget import EngineBudget
from node.learner_role.trust.operator_service import OperatorService
from node.learner_role.trust.peer_standings import PeerStandings
from node.learner_role.trust.receipt_revisions import ReceiptRevisions
from node.learner_role.trust.reputation_service import ReputationService
from node.learner_role.trust.selection_checker import SelectionLoop
from node.learner_role.trust.selection_service import SelectionService
from node.learner_role.trust.version_retention import VersionRetention
from node.network.budget_reports import FaultLog
from node.network.swarm_peer import SwarmPeer
from node.runtime.events import Clock, EventLog
from node.runtime.loop_watch import LoopWatch
from node.state.learner_state import LearnerStateDir
from node.state.operator_orders import OperatorDecisions
from node.tasks.task_suite import TaskSuite
from node.verifiers.dispatch import Verifiers
from protocol.core.ids import PolicyVersion
from protocol.versions.chunking import file_chunks
from protocol.versions.exchange import PeerAddresses
from protocol.versions.manifest import SignedManifest
from protocol.versions.staleness import Chain
from swarm.store import ChunkStore
from swarm.transfer.serving import Knowledge
from swarm.transport.interface import Transport
from swarm.work.membership import HEARTBEATS_MISSED, Membership


@dataclass(kw_only=True, eq=False)
class LearnerServices:
    """Everything that lives as long as the run: what a learner has open, and the services built on it.

    `trainer_argv` is the command of one rank of the trainer. `teacher_digest` is the teacher's if teacher nodes score
    with it, otherwise empty; `teachers` is None then. `audits`, `selection` and `operator` decide which peers are
    trusted, and are None if nothing is leased.
    """

    config: SwarmConfig
    home: LearnerStateDir
    ledger: Ledger
    store: ChunkStore
    transport: Transport
    suite: TaskSuite
    events: EventLog
    loop: LoopWatch
    trainer_argv: tuple[str, ...]
    teacher_digest: bytes = b""

    def __post_init__(self) -> None:
        self.signals = LearnerSignals()
        self.verifiers = Verifiers(suite=self.suite, section=self.config.verifiers, events=self.events)
        self._build_state()
        self._build_context()
        self._build_recorders()
        self.reputations = ReputationService(context=self.context, tells_ranks=self.config.web.show_ranks)
        self.audits = self._build_audits() if self.config.swarm_rollouts else None
        self._build_peers()
        self._build_trust()
        self._build_teachers()
        self._build_swarm()
        self._build_energy()
        self._build_training()
        self.forgotten = Forgotten(context=self.context, transport=self.transport, report=self.swarm.faults.report)

    async def leave(self) -> None:
        """Write a durable checkpoint within a minute, before the run is stopped."""
        await self.training.leave()

    def _build_state(self) -> None:
        config, learn = self.config, self.config.learn
        self.prompts = PromptWriter(
            suite=self.suite,
            write=self.verifiers.prompts,
            alone=self.verifiers.is_pooled,
            writers=self.verifiers.writers,
            signals=self.signals,
        )
        terms = LeaseTerms(
            group_size=learn.group_size,
            temperature=learn.temperature,
            max_new_tokens=learn.max_new_tokens,
            stop_ids=self.suite.stop_ids,
            deadline_s=learn.lease_timeout_s,
            routing=replayed_routing(config),
        )
        capacity = LeaseCapacity(
            window=learn.staleness,
            batch=config.swarm_rollouts,
            ahead=learn.max_batches_ahead,
            chain=Chain(bases=(0,), head=PolicyVersion(1, 0)),
            buffer=Buffer(
                window=learn.staleness,
                informative_only=config.curriculum.dynamic_sampling,
                decides=config.curriculum.decided_by,
                needs_scores=config.distill.teacher is not None,
            ),
            leasing=Leasing(terms=terms, secret=self.home.secret, new_id=partial(secrets.token_bytes, 16)),
        )
        alike = self.suite.curriculum.alike
        self.state = RunState(
            scheduler=LeaseScheduler(
                capacity=capacity,
                next_prompt=self.prompts.next_prompt,
                peer_share=config.trust.max_peer_share,
                lengths=CompletionLengths(alike=alike) if learn.leases_longest_first else None,
            ),
            kappa=learn.publish_every or 1,
            membership=Membership(timeout_s=HEARTBEATS_MISSED * config.network.heartbeat_s),
        )
        self.signals.prompts_ready.subscribe(lambda _: self.state.notify())

    def _build_context(self) -> None:
        home = self.home
        identity = LearnerIdentity(
            keypair=home.learner, authority=home.authority, certificate=home.certificate, secret=home.secret
        )
        self.certificates = CertificateWatch(
            home=home,
            certificate_days=self.config.swarm.certificate_days,
            identity=identity,
            signals=self.signals,
            now_ms=Clock.now_ms,
            events=self.events,
        )
        self.context = LearnerContext(
            identity=identity,
            state=self.state,
            ledger=self.ledger,
            store=self.store,
            events=self.events,
            signals=self.signals,
            time=TimeKeeper(self.signals, Clock.now_ms),
            now_ms=Clock.now_ms,
            signing_ms=self.certificates.signing_ms,
        )

    def _build_recorders(self) -> None:
        config, learn, events = self.config, self.config.learn, self.events
        terms = Began(
            at_s=0.0,
            swarm=config.swarm.name,
            mode="sequential" if learn.staleness == 0 else "async",
            rollouts=max(1, config.swarm_rollouts),  # 0 if the run trains only on logs
            group_size=learn.group_size,
            staleness=learn.staleness,
            kappa=learn.publish_every or 1,
            currency=config.price.currency,
        )
        self.recorder = RunRecorder(self.home.root / FILE, terms, trouble=events.trouble)
        self.monitor = LearnerMonitor(
            context=self.context,
            recorder=self.recorder,
            task_of=lambda index: self.suite.place(index)[1],
            samples=config.metrics.samples,
            advantage=recipe_in(config).advantage,
            overlong=learn.overlong_in_force,
            loop=self.loop,
        )
        settings = Settings(
            rollouts=max(1, config.swarm_rollouts),
            staleness=learn.staleness,
            kappa=learn.publish_every or None,
            activate=config.provisioning.select_peers,
            currency=config.price.currency,
            review_s=config.provisioning.review_interval_s,
        )
        self.provisioner = Provisioner(
            context=self.context,
            recorder=self.recorder,
            planner=Planner(settings),
            review_s=config.provisioning.review_interval_s,
        )

    def _build_audits(self) -> AuditService:
        trust = self.config.trust
        standings = PeerStandings(context=self.context, quarantine=self.reputations, audits=trust.audits)
        return AuditService(
            context=self.context,
            kept=VersionRetention(store=self.store),
            standings=standings,
            revisions=ReceiptRevisions(context=self.context, standings=standings),
            floor=trust.min_audit_share,
            arithmetic=Arithmetic(trust.required_compute_dtype),
            experts=audited_experts(self.config),
        )

    def _build_peers(self) -> None:
        config, context = self.config, self.context
        witness = PeerRecorder(context=context, recorder=self.recorder, max_new_tokens=config.learn.max_new_tokens)
        self.leases = LeaseService(context=context, witness=witness)
        self.relays = RelayCreditService(context=context)
        self.packer = ReceiptPacker(context=context, keep_days=config.swarm.keep_days)
        self.proofs = ProofService(context=context, reputations=self.reputations)
        self.sessions = SessionService(
            context=context,
            leases=self.leases,
            relays=self.relays,
            proofs=self.proofs,
            witness=witness,
            token=config.network.join_token,
            heartbeat_s=config.network.heartbeat_s,
            engines=config.engines,
            faults=FaultLog(events=self.events),
            introducer=Introducer(
                context=context,
                addresses=self.transport.addresses,
                origins=self.transport.origins,
                carries_bulk=config.network.relay_mbit is not None,
            ),
            own_reach=self.transport.reached,
            trust=self.audits,
        )
        self.intake = IntakeLoop(
            context=context,
            witness=witness,
            leases=self.leases,
            ask=self.verifiers.replies,
            problems=self.suite,
            trust=self.audits,
            formats=config.engines.formats,
        )

    def _build_trust(self) -> None:
        self.selection: SelectionService | None = None
        bans = None
        if (audits := self.audits) is not None:
            bans = Bans(context=self.context, audits=audits)
            looks = audits.audits and not self.suite.has_turns
            self.selection = SelectionService(context=self.context, kept=audits.kept, bans=bans, looks=looks)
        self.operator = OperatorService(
            context=self.context,
            settings=RunSettings(context=self.context, planner=self.provisioner.planner),
            orders=OperatorDecisions(self.home.root),
            bans=bans,
            forgive=None if self.selection is None else self.selection.forgive,
        )

    def _build_teachers(self) -> None:
        self.teachers: TeacherNodes | None = None
        if self.teacher_digest and self.audits is not None:
            self.teachers = TeacherNodes(
                context=self.context, config=self.config, trust=self.audits, digest=self.teacher_digest
            )

    def _build_swarm(self) -> None:
        max_turns = self.config.learn.max_turns if self.suite.has_turns else 1
        terms = LearnerTerms(
            context=self.context, config=self.config, max_turns=max_turns, teacher_digest=self.teacher_digest
        )
        knowledge = Knowledge(
            genesis=self.home.genesis,
            newest=lambda: self.state.announcement,
            peers=self._peers,
            terms=terms.answer,
        )
        self.swarm = SwarmPeer.build(self.transport, self.store, knowledge, self.sessions.faults)
        self.signals.version_adopted.subscribe(self._seed)
        self.signals.version_published.subscribe(lambda signed: self.swarm.serving.tell_gained(signed.hash))

    def _peers(self) -> list[PeerAddresses]:
        me = PeerAddresses(peer=self.transport.peer_id, addresses=self.transport.addresses())
        return [me, *self.sessions.peers()]

    def _seed(self, signed: SignedManifest) -> None:
        """Spread the chunks that most peers will request: the patch from the version before, if there is one."""
        manifest = signed.manifest
        patch = next((patch for patch in manifest.patches if patch.base == manifest.previous), None)
        self.swarm.exchange.seed(signed, file_chunks(manifest) if patch is None else patch.chunks)

    def _build_energy(self) -> None:
        began_s, config = trio.current_time(), self.config
        self.energy = EnergyWatch(
            partial(find_meters, config.energy, devices_of_trainer(config.trainer)),
            is_lent=lambda: True,
            engine_s=lambda: trio.current_time() - began_s,  # the learner is at work all the time
            events=self.events,
        )
        self.announcer = LearnerAnnouncer(
            context=self.context,
            config=config,
            home=self.home,
            serving=self.swarm.serving,
            take_carried=self.transport.take_carried,
            energy=self.energy,
            total_traffic=self.transport.total_traffic,
        )

    def _build_training(self) -> None:
        config, learn = self.config, self.config.learn
        self.trainer = TrainerProcess(context=self.context, spec=child_spec(self.trainer_argv, config))
        self.training = TrainingLoop(
            context=self.context,
            trainer=self.trainer,
            transport=self.transport,
            trust=self.audits,
            steps=learn.steps,
            weights_dtype=config.model.weights_dtype,
            keep=Keep(
                newest=learn.keep_checkpoints,
                every=learn.keep_every,
                best=config.evaluate.keep_best,
                most=learn.keep_milestones,
            ),
            load=load_request(config),
            checkpoints=self.home.checkpoints,
            exports=self.home.exports,
            ask_one=self.verifiers.ask_one,
            curriculum=self.suite,
            overlong=learn.overlong_in_force,
            open_incarnation=self._open_incarnation,
            recorder=self.recorder,
        )

    async def _open_incarnation(self, incarnation: int, base: int) -> None:
        """Record fixed settings, and check the model again, since a restarted trainer has read it again."""
        await trio.to_thread.run_sync(note_fixed, self.ledger, self.config, base)
        await trio.to_thread.run_sync(note_names, self.ledger, self.suite.own_names)
        if note := await trio.to_thread.run_sync(hold_to_base, self.ledger, self.config, base):
            self.events.trouble(note)
        await self.monitor.begin(incarnation, base)


@dataclass(frozen=True, kw_only=True)
class JudgingServices:
    """The services that use the learner's own engine. The one that uses it holds `lock`."""

    lock: trio.Lock
    audits: AuditLoop | None = None
    selection: SelectionLoop | None = None
    evaluation: Evaluation | None = None


def build_judging(services: LearnerServices, engine: WorkerEngine | None) -> JudgingServices:
    """Build the services that use `engine`; none of them if it is None."""
    context, held_out, lock = services.context, services.suite.held_out, trio.Lock()
    if engine is None:
        return JudgingServices(lock=lock)
    audits = selection = evaluation = None
    if services.audits is not None and services.selection is not None and services.audits.audits:
        budget = EngineBudget(share=services.config.trust.max_audit_compute_share)
        audits = AuditLoop(context=context, engine=engine, lock=lock, service=services.audits, budget=budget)
        selection = SelectionLoop(
            context=context,
            engine=engine,
            lock=lock,
            service=services.selection,
            agenda=services.audits.agenda,
            ask=services.verifiers.replies,
            budget=budget,
        )
    if held_out:
        evaluate, learn = services.config.evaluate, services.config.learn
        evaluation = Evaluation(
            context=context,
            engine=engine,
            prompts=held_out,
            terms=EvaluationTerms(
                every_versions=evaluate.every_versions,
                temperature=learn.temperature,
                max_new_tokens=learn.max_new_tokens,
                stop_ids=frozenset(services.suite.stop_ids),
                samples=evaluate.samples,
                ks=tuple(sorted(set(evaluate.pass_at_k))),
                decides=services.config.curriculum.decided_by,
            ),
            ask=services.verifiers.held_out_replies,
            lock=lock,
        )
    return JudgingServices(lock=lock, audits=audits, selection=selection, evaluation=evaluation)
