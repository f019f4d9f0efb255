"""Run a learner without torch and without a network: real ledger, store, loops and sessions, and honest peers.

The trainer is a second implementation of the conversation that `learner.training.server` has with the node. Its weights
are a hash of everything it was ever trained on, and its files are real safetensors. It can be told to crash, to refuse,
or to be found dead. The clock stands still unless a test moves it.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import trio

from learner.artifacts.checkpoint_retention import Keep
from learner.curriculum.offline_stream import Logged, LoggedGroup, OfflineStream
from learner.ledger.ledger import Ledger
from learner.provisioning.estimation.recording import FILE, Began, Recorded, read_lines
from learner.provisioning.planner.planner import Planner
from learner.provisioning.planner.review import Settings as Planning
from learner.rollouts.buffer import Batch, Buffer
from learner.rollouts.environment import Ask, AskOne, Environment, Question, Reply
from learner.rollouts.open_leases import LeaseTerms, Leasing, Prompt
from learner.rollouts.overlong import Overlong
from learner.scheduling.capacity import LeaseCapacity
from learner.scheduling.lease_scheduler import LeaseScheduler
from learner.trust.audit_history import TrustLevel
from learner.trust.audit_queue import Work
from node.engine.interface import (
    Claim,
    FinishReason,
    GeneratedSpan,
    Generation,
    GenerationRequest,
    InstalledVersion,
    InstallFailed,
    Verified,
)
from node.learner_role.metrics.monitor import LearnerMonitor
from node.learner_role.peers.intake import IntakeLoop
from node.learner_role.peers.introducer import Introducer
from node.learner_role.peers.proof_service import ProofService
from node.learner_role.peers.relay_credits import RelayCreditService
from node.learner_role.peers.session_service import SessionService
from node.learner_role.scheduling.lease_service import LeaseService
from node.learner_role.scheduling.peer_recorder import PeerRecorder
from node.learner_role.scheduling.run_recording import RunRecorder
from node.learner_role.scheduling.run_settings import RunSettings
from node.learner_role.shared.context import LearnerContext, LearnerIdentity
from node.learner_role.shared.run_state import RunState
from node.learner_role.shared.signals import LearnerSignals, TrainerSpoke
from node.learner_role.shared.time_keeper import TimeKeeper
from node.learner_role.training.checkpoints import TrainerLost
from node.learner_role.training.loop import TrainingLoop, Trial
from node.learner_role.trust.audit_service import AuditService, Conclusion
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
from node.processes.outcomes import ChildCrashed, ChildExit, ChildRefused, OnFrame
from node.runtime.events import EventLog, Field
from node.runtime.typed_signal import Signal
from node.state.operator_orders import OperatorDecisions
from protocol.accounting.claims import Price
from protocol.core.codec import pack_logprobs
from protocol.core.digest import digest_of
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId, ManifestHash, PeerId, PolicyVersion
from protocol.core.limits import PROTOCOL_VERSION
from protocol.core.pipe import Arrays, Header
from protocol.versions.staleness import Admissibility, Chain, judge
from protocol.work import (
    PARTS,
    Acknowledgement,
    Delivery,
    FromLearner,
    Handback,
    Hello,
    Lease,
    LeaseRequest,
    LeaseReturn,
    Receipt,
    Refused,
    Span,
    Started,
    open_lease,
    open_receipt,
)
from swarm.store import ChunkStore
from swarm.testing.memory_transport import MemoryNetwork, MemoryTransport
from swarm.work.membership import Membership
from swarm.work.server import INBOX, Incoming
from tests.support.environments import one_turn
from tests.support.store_fixture import safetensors_file
from tests.support.trainer_fixture import NOW_MS, PEER, SWARM, VOCABULARY, even_share, record

HANGS_S = 240.0
LOGGED = [
    LoggedGroup(
        prompt=(40 + number,),
        completions=(
            Logged(tokens=(1, 0), reward=1.0, logprobs=(-0.5, -0.75) if number % 2 else None),
            Logged(tokens=(2, 3, 0), reward=0.0),
        ),
    )
    for number in range(5)
]
TIMEOUT_S = 4.0
HEARTBEAT_S = 1.0


def told_little(environment: Environment) -> AskOne:
    """Return an `AskOne` that needs only what the policy said."""
    return lambda one: environment(one.index, one.said, one.transcript)


def ask_on_a_thread(ask_one: AskOne) -> Ask:
    """Return an `Ask` that asks an environment in this process."""

    async def ask(questions: Sequence[Question]) -> Sequence[Reply]:
        return await trio.to_thread.run_sync(lambda: [ask_one(one) for one in questions])

    return ask


class Killed(BaseException):
    """The process was killed here: nothing after this line happened."""


@dataclass(kw_only=True)
class FakeTrainer:
    """A trainer that hashes what it is trained on. Weights are 32 bytes; `script` is called before and after each
    request.

    A checkpoint that is saved in the background is durable after `requests_to_save` more requests; those whose numbers
    are in `failing`, counted from 1, never are. An export in the background is there after `requests_to_export` more,
    and `script` is called with "written". `apart`: what it reports of each sequence of a batch, if anything.
    """

    requests_to_save: int = 0
    requests_to_export: int = 0
    failing: Collection[int] = ()
    on_frame: OnFrame = lambda header, arrays: None
    died: Callable[[], None] = lambda: None
    script: Callable[[str, str], None] = lambda op, moment: None
    probe: Mapping[str, object] | None = None
    apart: Callable[[Arrays], Arrays] = lambda arrays: {}
    calls: list[str] = field(default_factory=list)
    trained: list[Arrays] = field(default_factory=list)
    rates: list[object] = field(default_factory=list)
    _pid: int = 1
    _weights: bytes | None = None
    _steps: int = 0
    _trains: bool = False
    _saving: list[tuple[int, Path, str]] = field(default_factory=list)
    _exporting: list[tuple[int, Path, Callable[[], Header]]] = field(default_factory=list)

    @property
    def pid(self) -> int | None:
        return self._pid

    def die(self) -> None:
        """End while no request is running; the next process knows nothing."""
        self._pid += 1
        self._weights = None
        self._saving.clear()
        self._exporting.clear()
        self.died()

    async def call(
        self,
        op: str,
        header: Mapping[str, object] | None = None,
        arrays: Arrays | None = None,
        sent: Callable[[], None] = lambda: None,
    ) -> tuple[Header, Arrays]:
        await trio.lowlevel.checkpoint()
        self.calls.append(op)
        try:
            self.script(op, "before")
            if op != "load" and self._weights is None:
                raise ChildRefused("bad_request", 'no model is loaded; send "load" first')
            if op in ("save", "restore"):
                self.write_all()
            if op in ("export", "restore"):
                self.export_all()
            reply = getattr(self, f"_{op}")(dict(header or {}), arrays or {})
            self.script(op, "after")
        except ChildCrashed:
            self.die()
            raise
        sent()  # the request is done now, so no later one comes before it
        self._write_due()
        scores = {"logprobs": np.full(int(arrays["mask"].sum()), -0.25, np.float32)} if arrays and not reply else {}
        return {"seconds": 0.5, **reply}, self.apart(arrays) if op == "step" and arrays else scores

    def write_all(self) -> None:
        """Make every checkpoint that is being saved durable now."""
        for _, directory, text in self._saving:
            if self.calls.count("save") in self.failing:
                self.on_frame({"event": "save_failed", "directory": str(directory), "error": "no space left"}, {})
                continue
            directory.mkdir(parents=True)
            (directory / "trainer.json").write_text(text)
            self.on_frame({"event": "saved", "directory": str(directory), "bytes": len(text)}, {})
        self._saving.clear()

    def _write_due(self) -> None:
        if any(len(self.calls) >= due for due, _, _ in self._saving):
            self.write_all()
        if any(len(self.calls) >= due for due, _, _ in self._exporting):
            self.export_all()

    def export_all(self) -> None:
        """Finish every export that is being written now."""
        exporting, self._exporting = self._exporting, []
        for _, directory, export in exporting:
            told = export()
            self.script("written", "after")
            self.on_frame({"event": "exported", "directory": str(directory), **told}, {})

    def _load(self, header: Header, arrays: Arrays) -> Header:
        self._weights, self._steps, self._trains = digest_of(b"the model's own weights"), 0, False
        return {"vocab_size": VOCABULARY}

    def _step(self, header: Header, arrays: Arrays) -> Header:
        assert self._weights is not None
        tokens, generated, sequences = (
            len(arrays["tokens"]),
            int(arrays["mask"].sum()),
            int(arrays["group_sizes"].sum()),
        )
        assert len(arrays["mask"]) == tokens == arrays["lengths"].sum()
        assert all(len(arrays[name]) == generated for name in ("behaviour_logprobs", "lags"))
        assert all(len(arrays[name]) == sequences for name in ("lengths", "rewards", "origins", "trained"))
        assert 0 <= arrays["lags"].min() <= arrays["lags"].max() <= self._steps
        assert np.isfinite(arrays["behaviour_logprobs"]).all()
        self.trained.append(arrays)
        self.rates.append(header.get("learning_rate"))
        self._weights = digest_of(self._weights + b"".join(arrays[name].tobytes() for name in sorted(arrays)))
        self._steps, self._trains = self._steps + 1, True
        return {"steps": self._steps, "loss": 0.25, "updates": 1}

    def _logprobs(self, header: Header, arrays: Arrays) -> Header:
        assert set(arrays) == {"tokens", "lengths", "mask"}
        return {}

    def _save(self, header: Header, arrays: Arrays) -> Header:
        assert self._weights is not None
        assert header["wait"] is False
        text = json.dumps({"steps": self._steps, "weights": self._weights.hex()})
        self._saving.append((len(self.calls) + self.requests_to_save, Path(str(header["directory"])), text))
        return {"steps": self._steps}

    def _restore(self, header: Header, arrays: Arrays) -> Header:
        path = Path(str(header["directory"])) / "trainer.json"
        try:
            state = json.loads(path.read_text())
        except (OSError, ValueError):
            raise ChildRefused("bad_checkpoint", f"{path} is half-written or damaged; restore an older one") from None
        self._weights, self._steps = bytes.fromhex(state["weights"]), state["steps"]
        return {"steps": self._steps}

    def tensors(self, weights: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        """Return the tensors of an export of these weights."""
        return {"embed": ("F32", (256,), bytes(1024)), "layer": ("F32", (8,), weights)}

    def _export(self, header: Header, arrays: Arrays) -> Header:
        assert self._weights is not None
        directory, tensors = Path(str(header["directory"])), self.tensors(self._weights)

        def export() -> Header:
            directory.mkdir(parents=True)
            (directory / "model.safetensors").write_bytes(safetensors_file(tensors))
            (directory / "config.json").write_text("{}")
            return {"files": ["config.json", "model.safetensors"], **({"probe": self.probe} if self.probe else {})}

        if header["wait"]:
            return export()
        requests_to_save = (
            self.requests_to_export if self._trains else 0
        )  # no other request comes before the first step
        self._exporting.append((len(self.calls) + requests_to_save, directory, export))
        return {}


def crash(reason: str = "it was told to") -> ChildCrashed:
    return ChildCrashed(ChildExit(name="trainer", returncode=None, reason=reason, stderr_tail=()))


def crash_once(op: str, moment: str, at: int = 1) -> Callable[[str, str], None]:
    """Return a script that ends the trainer's process at `moment` of its request number `at` of kind `op`."""
    left = iter(range(at - 1))

    def script(asked: str, now: str) -> None:
        if (asked, now) == (op, moment) and next(left, None) is None:
            left_again.append(True)
            if len(left_again) == 1:
                raise crash()

    left_again: list[bool] = []
    return script


def honest_tokens(seed: int) -> tuple[int, ...]:
    """Return the tokens that an honest peer's engine draws for a seed, with any version."""
    return (1 + seed % 60, 2, 0)


@dataclass(kw_only=True)
class Judge:
    """An engine that can say whether tokens are an honest peer's. `script` is called before every call; `draws` returns
    the tokens of a version for a seed.
    """

    script: Callable[[str], None] = lambda op: None
    draws: Callable[[int, PolicyVersion], tuple[int, ...]] = lambda seed, version: honest_tokens(seed)
    installed: InstalledVersion | None = None
    restarted: Signal[None] = field(default_factory=Signal)
    asked: list[Sequence[Claim]] = field(default_factory=list)

    async def install(self, version: InstalledVersion, directory: Path) -> None:
        await trio.lowlevel.checkpoint()
        self.script("install")
        if not (directory / "model.safetensors").is_file():  # it may be deleted once its directory was named
            raise InstallFailed(f"{directory} has no weights")
        self.installed = version

    async def verify(self, claims: Sequence[Claim]) -> list[Verified]:
        await trio.lowlevel.checkpoint()
        self.script("verify")
        self.asked.append(claims)
        assert self.installed is not None
        return [
            Verified(
                gaps=tuple(
                    0.0 if mine == theirs else math.inf
                    for mine, theirs in zip(
                        self.draws(claim.seed, self.installed.name)[claim.start :][: len(claim.tokens)],
                        claim.tokens,
                        strict=True,
                    )
                ),
                logprobs=(-0.5,) * len(claim.tokens),
                leads=(1.0,) * len(claim.tokens),
                sizes=(1.0,) * len(claim.tokens),
            )
            for claim in claims
        ]

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        await trio.lowlevel.checkpoint()
        self.script("generate")
        assert self.installed is not None
        return [
            Generation(
                tokens=self.draws(request.seed, self.installed.name),
                logprobs=(-0.5,) * 3,
                finish=FinishReason.STOP,
                spans=(GeneratedSpan(start=0, end=3, version=self.installed),),
                generation_s=0.0,
            )
            for request in requests
        ]

    async def rest(self) -> None:
        await trio.lowlevel.checkpoint()

    async def release(self) -> None:
        await trio.lowlevel.checkpoint()

    def wake(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that a test varies. `beside`: the next step is taken while a state is being published and saved.
    `rest`: see `node.learner_role.training.checkpoints.REST`.
    """

    steps: int = 6
    staleness: int = 1
    publish_every: int = 1
    prompts: int = 2
    group_size: int = 2
    ahead: float = 2.0
    informative_only: bool = False
    logged: int = 0
    keep_checkpoints: int = 2
    keep_every: int = 0
    keep_best: int = 0
    keep_milestones: int = 4
    token: str = ""
    quota_bytes: int | None = None
    audits: bool = False
    beside: bool = False
    rest: float = 0.0
    overlong: Overlong = field(default_factory=Overlong)


class DyingLedger(Ledger):
    """A ledger whose process is killed just before, or just after, one of its calls."""

    dies: tuple[str, str, int] = ("", "", 0)

    def __init__(self, path: Path, *, swarm: bytes) -> None:
        super().__init__(path, swarm=swarm)
        for book in ("work", "training", "peers", "trust"):
            setattr(self, book, DyingBook(self, getattr(self, book)))


@dataclass
class DyingBook:
    """One part of that ledger."""

    ledger: DyingLedger
    book: object

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.book, name)
        method, moment, left = self.ledger.dies
        if name != method:
            return found

        def dying(*args: Any, **options: Any) -> Any:
            self.ledger.dies = (method, moment, left - 1)
            if left == 1 and moment == "before":
                raise Killed
            result = found(*args, **options)
            if left == 1 and moment == "after":
                raise Killed
            return result

        return dying


@dataclass(kw_only=True)
class CountingSessions(SessionService):
    """Sessions that count their writes, and say whether one is under way: then no test may move its clock."""

    rounds: int = 0
    writing: bool = False

    async def _write(self, *, everybody: bool = False) -> None:
        self.writing = True
        await super()._write(everybody=everybody)
        self.writing = False
        self.rounds += 1


@dataclass(kw_only=True, eq=False)
class CountingAudits(AuditService):
    """Audits that count the groups that were audited, that failed, and that no audit was made of."""

    audited: int = 0
    failed: int = 0
    unaudited: int = 0

    def _follow(self, one: Conclusion, receipts: dict[LeaseId, bytes]) -> None:
        self.audited += 1
        self.failed += not one.finding.passed
        super()._follow(one, receipts)

    def _drop_unaudited(self, works: Iterable[Work]) -> None:
        self.unaudited += len(works := list(works))
        super()._drop_unaudited(works)


@dataclass(kw_only=True)
class Learner:
    """The parts of one process of a learner, wired as `node.learner_role.app` wires them."""

    settings: Settings
    root: Path
    run: RunState
    ledger: DyingLedger
    store: ChunkStore
    trainer: FakeTrainer
    transport: MemoryTransport
    recorder: RunRecorder
    sessions: CountingSessions
    intake: IntakeLoop
    training: TrainingLoop
    watch: LearnerMonitor
    inbox: trio.MemorySendChannel[Incoming]
    arriving: trio.MemoryReceiveChannel[Incoming]
    wall: Wall
    log: list[tuple[str, dict[str, Field]]]
    prompts: list[int]
    trust: CountingAudits
    audits: AuditLoop | None
    selection: SelectionLoop | None
    context: LearnerContext
    bans: Bans
    operator: OperatorService
    struck: Struck
    trial: Trial | None = None

    @property
    def capacity(self) -> LeaseCapacity:
        return self.run.capacity

    @property
    def scheduler(self) -> LeaseScheduler:
        return self.run.scheduler

    def logged(self, event: str) -> list[dict[str, Field]]:
        return [fields for name, fields in self.log if name == event]

    def recorded(self) -> list[Recorded]:
        """Return the events of the run that this process and those before it recorded."""
        path = self.root / FILE
        with path.open("rb") as file:
            return list(read_lines(file, path.name))

    def weights_of(self, manifest: ManifestHash) -> bytes:
        return (self.store.directory(manifest) / "model.safetensors").read_bytes()[-32:]

    async def train(self, *peers: FakePeer) -> None:
        """Run all loops with these peers until the last step, or until a process is killed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.intake.run, self.arriving)
            nursery.start_soon(self.sessions.run)
            nursery.start_soon(self.sessions.leases.run)
            nursery.start_soon(self.sessions.relays.run)
            nursery.start_soon(self.sessions.proofs.run)
            if self.audits is not None:
                nursery.start_soon(self.audits.run)
            nursery.start_soon(self.operator.run)
            if self.selection is not None:
                nursery.start_soon(self.selection.run)
            for peer in peers:
                nursery.start_soon(peer.work, self)
            await self.training.run(self.trial)
            await self.sessions.proofs.wait_settled()
            nursery.cancel_scope.cancel()


@dataclass(kw_only=True)
class Wall:
    """The wall clock, which threads may read, too. Only tests move it."""

    ms: int = NOW_MS

    def now_ms(self) -> int:
        return self.ms


@contextmanager
def fast_directory() -> Iterator[Path]:
    """Yield a directory in memory: no test here is about power cuts, and waiting for a disk is slow."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as directory:
        yield Path(directory)


@asynccontextmanager
async def open_learner(root: Path, settings: Settings | None = None, **parts: Any) -> AsyncIterator[Learner]:
    """Run a learner's process on the state in `root`: for the first time, or after the one before has ended."""
    chosen = settings or Settings()
    trainer = parts.get("trainer") or FakeTrainer()
    network = parts.get("network") or MemoryNetwork()
    async with watched():
        # As in the program, it is closed after the last stream: a thread may still write a grant into it.
        with closing(DyingLedger(root / "ledger.sqlite", swarm=SWARM.authority.swarm)) as ledger:
            async with network.node("learner", peer_id=SWARM.learner.peer_id) as transport:
                with ChunkStore.open(root / "store", SWARM.authority, quota_bytes=chosen.quota_bytes) as store:
                    ask_one = parts.get("ask_one") or told_little(parts.get("environment") or one_turn(even_share))
                    judge = parts.get("judge") or Judge()
                    learner = _wire(root, chosen, trainer, transport, ledger, store, ask_one, judge)
                    with closing(learner.recorder):
                        yield learner


@asynccontextmanager
async def watched() -> AsyncIterator[None]:
    """Fail a test that hangs, by real time; no test that works comes near it."""
    done = threading.Event()

    async def bark() -> None:
        if not await trio.to_thread.run_sync(done.wait, HANGS_S, abandon_on_cancel=True):
            raise AssertionError(f"the test has hung for {HANGS_S} s")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bark)
        try:
            yield
        finally:
            done.set()
        nursery.cancel_scope.cancel()


def _wire(
    root: Path,
    settings: Settings,
    trainer: FakeTrainer,
    transport: MemoryTransport,
    ledger: DyingLedger,
    store: ChunkStore,
    ask_one: AskOne,
    judge: Judge,
) -> Learner:
    log: list[tuple[str, dict[str, Field]]] = []
    events = EventLog()
    events.listen(lambda name, fields: log.append((name, fields)))
    prompts, wall = [0], Wall()
    batch = settings.prompts * settings.group_size - settings.logged
    offline = None
    if settings.logged:
        offline = OfflineStream(groups=LOGGED, rollouts=settings.logged, fingerprint="logged", seed="s")
    terms = LeaseTerms(
        group_size=settings.group_size, temperature=1.0, max_new_tokens=4, stop_ids=(0,), deadline_s=60.0
    )
    ids = count(1000 * len(ledger.training.begun()) + 1)

    def next_prompt() -> Prompt:
        prompts[0] += 1
        return Prompt(task="even", index=prompts[0], tokens=(5, 6, 7))

    capacity = LeaseCapacity(
        window=settings.staleness,
        batch=batch,
        ahead=settings.ahead,
        chain=Chain(bases=(0,), head=PolicyVersion(1, 0)),
        buffer=Buffer(window=settings.staleness, informative_only=settings.informative_only),
        leasing=Leasing(terms=terms, secret=bytes(32), new_id=lambda: next(ids).to_bytes(16, "big")),
    )
    state = RunState(
        scheduler=LeaseScheduler(capacity=capacity, next_prompt=next_prompt),
        kappa=settings.publish_every,
        membership=Membership(timeout_s=TIMEOUT_S),
    )
    send, receive = trio.open_memory_channel[Incoming](INBOX)
    began = Began(
        at_s=0,
        swarm="even",
        mode="async",
        rollouts=max(1, batch),
        group_size=settings.group_size,
        staleness=settings.staleness,
        kappa=settings.publish_every,
    )
    recorder = RunRecorder(
        root / FILE,
        began,
        trouble=lambda text: events.emit("trouble", text=text),
        clock=lambda: wall.ms / 1000,
    )
    context = context_of(ledger=ledger, store=store, state=state, events=events, now_ms=wall.now_ms)
    witness = PeerRecorder(context=context, recorder=recorder, max_new_tokens=terms.max_new_tokens)
    struck = Struck()
    standings = PeerStandings(context=context, quarantine=struck, audits=settings.audits)
    trust = CountingAudits(
        context=context,
        kept=VersionRetention(store=store),
        standings=standings,
        revisions=ReceiptRevisions(context=context, standings=standings),
        floor=1.0,
    )
    leases = LeaseService(context=context, witness=witness)
    sessions = CountingSessions(
        context=context,
        leases=leases,
        relays=RelayCreditService(context=context),
        proofs=ProofService(context=context, reputations=ReputationService(context=context)),
        witness=witness,
        token=settings.token,
        heartbeat_s=HEARTBEAT_S,
        trust=trust,
        faults=FaultLog(events=events),
        introducer=Introducer(context=context, addresses=transport.addresses, origins=transport.origins),
    )
    bans = Bans(context=context, audits=trust)
    selection = SelectionService(context=context, kept=trust.kept, bans=bans, looks=settings.audits)
    planner = Planner(Planning(rollouts=max(1, batch), staleness=settings.staleness, activate=False))
    operator = OperatorService(
        context=context,
        settings=RunSettings(context=context, planner=planner),
        orders=OperatorDecisions(root),
        bans=bans,
        forgive=selection.forgive,
    )
    curriculum = FakeCurriculum(prompts=prompts, offline=offline)
    intake = IntakeLoop(
        context=context,
        witness=witness,
        leases=leases,
        ask=ask_on_a_thread(ask_one),
        problems=curriculum,
        trust=trust,
    )
    watch = LearnerMonitor(context=context, recorder=recorder, task_of=lambda index: "even", overlong=settings.overlong)
    training = TrainingLoop(
        context=context,
        trainer=trainer,
        transport=transport,
        trust=trust,
        steps=settings.steps,
        weights_dtype="float32",
        keep=Keep(
            newest=settings.keep_checkpoints,
            every=settings.keep_every,
            best=settings.keep_best,
            most=settings.keep_milestones,
        ),
        load={"directory": "model"},
        checkpoints=root / "checkpoints",
        exports=root / "exports",
        ask_one=ask_one,
        curriculum=curriculum,
        overlong=settings.overlong,
        open_incarnation=watch.begin,
        recorder=recorder,
    )
    audits = selection_loop = None
    if settings.audits:
        lock, budget = trio.Lock(), EngineBudget(share=1.0)
        audits = AuditLoop(context=context, engine=judge, lock=lock, service=trust, budget=budget)
        selection_loop = SelectionLoop(
            context=context,
            engine=judge,
            lock=lock,
            service=selection,
            agenda=trust.agenda,
            ask=ask_on_a_thread(ask_one),
            budget=budget,
        )
    context.time.begin(ledger.training.time_so_far())
    training.saving.rest = settings.rest
    if not settings.beside:
        _take_turns(training, trainer)
    trainer.on_frame = lambda header, arrays: context.signals.trainer_spoke.emit(
        TrainerSpoke(header=header, arrays=arrays)
    )
    trainer.died = lambda: context.signals.trainer_died.emit(None)
    return Learner(
        settings=settings, root=root, run=state, ledger=ledger, store=store, trainer=trainer, transport=transport,
        recorder=recorder, sessions=sessions, intake=intake, training=training, watch=watch, inbox=send,
        arriving=receive, wall=wall, log=log, prompts=prompts, trust=trust, audits=audits, selection=selection_loop,
        context=context, bans=bans, operator=operator, struck=struck,
    )  # fmt: skip


def _take_turns(training: TrainingLoop, trainer: FakeTrainer) -> None:
    """Have each state published and durable before the next step: here a step takes no time, and both do."""
    saving, publishing = training.saving, training.publishing

    async def publish(nursery: trio.Nursery) -> None:
        try:
            await publishing.publish()
        except TrainerLost as loss:
            publishing.lost = str(loss)

    async def save(version: PolicyVersion, nursery: trio.Nursery) -> None:
        with suppress(TrainerLost):  # the next request reports it
            await saving.save(version)
        while saving._row is not None and not saving._lost and not trainer._saving:  # a patient trainer goes on
            await saving._settled.wait()

    collect = training._collect

    async def collect_then(beside: trio.Nursery) -> Batch | None:
        training._send_due(beside)
        await training._until_sent()
        return await collect(beside)

    publishing.begin, saving.begin = publish, save  # type: ignore[method-assign]
    training._collect = collect_then  # type: ignore[method-assign]


@dataclass(kw_only=True)
class FakeCurriculum:
    """Prompts in their order; a quarter of the reward is expected of each."""

    prompts: list[int]
    offline: OfflineStream | None = None

    def state(self, unleased: Sequence[int] = ()) -> dict[str, Any]:
        return {"ordinal": self.prompts[0], **({"offline": self.offline.state()} if self.offline else {})}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.prompts[0] = state["ordinal"]
        if self.offline is not None:
            self.offline.restore(state["offline"])

    def observe(self, index: int, mean: float) -> None:
        pass

    def expected_reward(self, index: int) -> float | None:
        return 0.25


@dataclass(kw_only=True)
class Struck:
    """Peers that have soft strikes."""

    peers: set[PeerId] = field(default_factory=set)

    def is_quarantined(self, peer: PeerId) -> bool:
        return peer in self.peers


def context_of(
    *, ledger: Ledger, store: ChunkStore | None = None, events: EventLog | None = None, **changes: Any
) -> LearnerContext:
    """Return the context of a service of this swarm's learner. Parts that a test leaves out are not used, or are its
    own.
    """
    now_ms = changes.pop("now_ms", lambda: NOW_MS)
    identity = LearnerIdentity(
        keypair=SWARM.learner, authority=SWARM.authority, certificate=SWARM.certificate, secret=bytes(32)
    )
    signals = changes.pop("signals", LearnerSignals())
    return LearnerContext(
        **{
            "identity": identity,
            "state": None,
            "ledger": ledger,
            "store": store,
            "events": events or EventLog(),
            "signals": signals,
            "time": TimeKeeper(signals, now_ms),
            "now_ms": now_ms,
            "signing_ms": now_ms,
        }
        | changes
    )


async def until(condition: Callable[[], bool]) -> None:
    """Wait until other tasks and threads make the condition true; `watched` ends a test that waits too long."""
    while not condition():
        await trio.to_thread.run_sync(int)


def hello(**changes: Any) -> Hello:
    return Hello(**{"protocol": PROTOCOL_VERSION, "price": Price(), "name": "a peer"} | changes)


@dataclass(kw_only=True)
class FakePeer:
    """An honest rollout node without a connection: asks for leases, waits for the version that one wants, and delivers.

    `receipts`: receipts of acknowledged deliveries, by lease. `undelivered`: records that a learner which went away has
    not acknowledged, to be delivered to the next. A lease that it does not keep it returns once it has begun. `picks`
    chooses among the versions that a lease admits, the newest unless a test sets it.
    """

    key: Keypair = PEER
    rollouts: int = 4
    draw: Callable[[int, PolicyVersion], tuple[int, ...]] = lambda seed, version: honest_tokens(seed)
    claim: float = -0.5
    keeps: Callable[[Lease], bool] = lambda lease: True
    picks: Callable[[Lease, Sequence[PolicyVersion]], PolicyVersion] = lambda lease, admitted: max(admitted)
    takes_parts: bool = False
    receipts: dict[LeaseId, Receipt] = field(default_factory=dict)
    undelivered: dict[LeaseId, list[bytes]] = field(default_factory=dict)
    refused: Refused | None = None

    @property
    def id(self) -> PeerId:
        return self.key.peer_id

    def hello(self) -> Hello:
        return hello(leases=sorted(self.undelivered), ext={PARTS: b""} if self.takes_parts else {})

    async def work(self, learner: Learner) -> None:
        """Join, deliver records left from before, then work until cancelled."""
        while learner.trust.standings.remember(self.id).standing is not TrustLevel.BANNED:
            if self.id not in learner.run.present:  # at first, and after the learner thought it gone
                welcome = await learner.sessions.welcome(self.id, self.hello())
                if isinstance(welcome, Refused):
                    self.refused = welcome
                    return
                for lease in list(self.undelivered):
                    await self.deliver(learner, lease)
            grant = await learner.sessions.grant(self.id, LeaseRequest(rollouts=self.rollouts))
            await trio.lowlevel.checkpoint()  # a peer that was thought gone is answered at once, with nothing
            for raw in grant.leases:
                await self.answer(learner, open_lease(raw, SWARM.authority.swarm, learner=SWARM.learner.peer_id))

    async def answer(self, learner: Learner, lease: Lease) -> None:
        run = learner.run
        while run.published is None or run.published.version < lease.minimum:
            await run.wait_changed()
        there = [one for one in run.capacity.manifests if lease.minimum <= one <= run.published.version]
        admissible = [
            one for one in there if judge(run.capacity.chain, [one], run.capacity.window) is Admissibility.ADMISSIBLE
        ]
        # a node works with the version that it has until it is told of another
        made_by = self.picks(lease, admissible or there)
        manifest = run.capacity.manifests[made_by]
        learner.sessions.take_start(self.id, Started(lease=lease.id, version=made_by))
        if not self.keeps(lease):
            learner.sessions.take_return(self.id, LeaseReturn(leases=[lease.id], reason="its owner needs the machine"))
            return
        made = [self.draw(seed, made_by)[lease.start :] for seed in lease.seeds]
        await self.hand_over(learner, lease, InstalledVersion(name=made_by, manifest=manifest), made)

    async def hand_over(
        self, learner: Learner, lease: Lease, version: InstalledVersion, made: Sequence[tuple[int, ...]]
    ) -> None:
        """Deliver the completions of a lease."""
        self.undelivered[LeaseId(lease.id)] = self.records_of(lease, version, made)
        await self.deliver(learner, LeaseId(lease.id))

    def records_of(self, lease: Lease, version: InstalledVersion, made: Sequence[tuple[int, ...]]) -> list[bytes]:
        return [
            record(
                lease,
                index,
                author=self.key,
                tokens=tokens,
                logprobs=pack_logprobs([self.claim] * len(tokens)),
                spans=[Span(0, len(tokens), version.name, version.manifest)],
            )
            for index, tokens in enumerate(made)
        ]

    async def deliver(self, learner: Learner, lease: LeaseId) -> Receipt:
        """Deliver, wait for the receipt, keep it."""
        delivery = Delivery(lease=lease, records=self.undelivered[lease])
        answer = await hand_in(learner, self.id, delivery)
        self.receipts[lease] = open_receipt(answer.receipt, SWARM.authority)
        del self.undelivered[lease]
        return self.receipts[lease]


async def hand_in(learner: Learner, peer: PeerId, delivery: Delivery | Handback) -> Acknowledgement:
    """Put a delivery into the inbox and wait for its answer."""
    answered, answers = trio.Event(), list[FromLearner]()

    def answer(message: FromLearner) -> None:
        answers.append(message)
        answered.set()

    await learner.inbox.send(Incoming(peer=peer, delivery=delivery, answer=answer))
    await answered.wait()
    [message] = answers
    assert isinstance(message, Acknowledgement)
    assert message.lease == delivery.lease
    return message


def damage(directory: Path) -> None:
    """Damage a checkpoint as a bad disk would."""
    (directory / "trainer.json").write_text("{")


def forget(directory: Path) -> None:
    shutil.rmtree(directory)
