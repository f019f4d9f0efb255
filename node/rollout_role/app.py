"""Compose a rollout node: key, store, transport, engine, and the loops that use them.

Invariants:

- The engine's process ends with the node.
- The store keeps its chunks, and the next start continues with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import trio

from learner.artifacts.model_digest import model_digest
from node.config.common import GB
from node.config.node_config import NodeConfig, NodeNetworkSection
from node.config.preflight import require_model
from node.engine.cheating import CheatingEngine
from node.engine.factory import open_engine
from node.engine.interface import EngineError, PolicyEngine
from node.engine.selection import choose_engine, look
from node.engine.weight_format import AUTO, in_force_with
from node.engine.worker_engine import WorkerEngine
from node.network.first_contact import ask_terms, find_swarm, require_certified
from node.network.newcomer import find_newest
from node.network.transport import machine_name, open_transport
from node.rollout_role.owner_control import Drained, NodeWorker
from node.rollout_role.services import RolloutServices
from node.rollout_role.teaching.services import TeachingServices
from node.rollout_role.teaching.teacher_engine import load
from node.rollout_role.worker import GaveUp, RolloutCounts
from node.runtime.atomic_files import write_durably
from node.runtime.errors import NotAllowed, RunError, UsageError
from node.runtime.events import Clock, EventLog
from node.runtime.loop_watch import LoopWatch, watched_loop
from node.state.about import ABOUT_FILE
from node.state.identities import require_node
from node.state.keys import load_or_create_key
from node.state.owner_orders import OwnerSignals
from node.state.receipt_queries import ReceiptsError
from node.state.receipts import Receipts
from node.state.rollout_state import RolloutStateDir, keep_invite, open_volunteer_home
from protocol.core.genesis import read_genesis
from protocol.core.identity import Keypair
from protocol.core.ids import PeerId
from protocol.core.invite import Invite
from protocol.scores import TEACHER
from protocol.versions.exchange import TellTerms
from protocol.versions.formats import STORED
from protocol.versions.manifest import SignedManifest
from swarm.store import ChunkStore, StoreError
from swarm.transport.error_groups import first_cause
from swarm.transport.interface import ListenFailed, Transport
from swarm.work.client import KeyInUse, NotWelcome, RunFinished

VERSION_WAIT_S = 600.0
"""Seconds to wait for a first version, whose size decides which format of the weights fits. A learner needs minutes to
load its model."""

LOOK_S = 2.0
"""Seconds between two requests for it."""

OpenTransport = Callable[[bytes, NodeNetworkSection, EventLog], AbstractAsyncContextManager[Transport]]
"""A function that opens the transport of a key."""


@dataclass(frozen=True, kw_only=True)
class RolloutOutcome:
    """Why a node's part in a run ended, and what the node did since its start."""

    state: Path
    reason: str
    counts: RolloutCounts


async def run_rollout(
    invite: Invite,
    config: NodeConfig,
    events: EventLog,
    *,
    state: Path | None,
    wait_s: float,
    on_ready: Callable[[RolloutStateDir, NodeWorker], None],
    signals: OwnerSignals,
    transport: OpenTransport = open_transport,
) -> RolloutOutcome:
    """Run a rollout node until the learner says that the run is over, or until its owner has drained it.

    `wait_s`: seconds to try to reach the learner for the first time. `transport` opens the transport of the node's key.
    Raises UsageError or RunError. Cancel to stop.
    """
    if config.teacher.directory:  # only the engine on transformers can score with a teacher
        config = msgspec.structs.replace(config, engine=msgspec.structs.replace(config.engine, kind="transformers"))
    choice = choose_engine(config.engine, look(config.engine))
    config = msgspec.structs.replace(config, engine=choice.section)
    home = open_volunteer_home(state, invite.authority.swarm)
    events.write_to(home.events)
    events.emit("engine_chosen", engine=choice.section.kind, why=choice.why)
    try:
        require_node(home.root)
        keypair = load_or_create_key(home.key)
    except BaseException:
        home.lock.close()
        raise
    try:
        with first_cause():
            async with AsyncExitStack() as stack:
                stack.callback(home.lock.close)
                opening = _Opening(
                    stack=stack, invite=invite, config=config, events=events, home=home, keypair=keypair,
                    wait_s=wait_s, signals=signals, transport=transport,
                )  # fmt: skip
                node = await (_open_teaching if config.teacher.directory else _open)(opening)
                _write_about(home, config)
                keep_invite(home.root, invite)
                on_ready(home, node.role)
                await node.run()
    except (RunFinished, Drained) as ended:
        return RolloutOutcome(state=home.root, reason=str(ended), counts=node.role.counts)
    except KeyInUse:
        raise UsageError(
            f"Another node that runs now has the key of this one, {home.key}, and joined first. Each peer needs its "
            f"own key. If {home.root} was copied from another machine, remove node.key, receipts.sqlite and "
            f"{ABOUT_FILE} from the copy, which belong to that peer: the next start makes new ones. Otherwise end the "
            "other node."
        ) from None
    except NotWelcome as refused:
        raise NotAllowed(f"The learner refused this node: {refused}") from None
    except ListenFailed as error:
        raise RunError(f"{error}. End what listens there, or choose another port in [network] listen.") from error
    except (StoreError, ReceiptsError, EngineError, GaveUp) as error:
        raise RunError(str(error)) from error
    raise AssertionError("a node's loops end only by raising")


@dataclass(frozen=True, kw_only=True)
class _Opening:
    """Everything that is needed to open a node. `stack` closes what is opened."""

    stack: AsyncExitStack
    invite: Invite
    config: NodeConfig
    events: EventLog
    home: RolloutStateDir
    keypair: Keypair
    wait_s: float
    signals: OwnerSignals
    transport: OpenTransport

    async def engine(self, config: NodeConfig) -> PolicyEngine:
        """Open and return the engine that `config` names."""
        self.events.emit("starting", doing="loading the engine, which takes longest the first time")
        opened = open_engine(
            config.engine,
            self.events,
            name="engine",
            limits=config.limits,
            state=self.home.root,
            testing=config.testing,
        )
        return await self.stack.enter_async_context(opened)


@dataclass(frozen=True, kw_only=True)
class _Reached:
    """The resources of every node once it has found the learner, and the learner's answers."""

    receipts: Receipts
    loop: LoopWatch
    transport: Transport
    learner: PeerId
    genesis: bytes
    terms: TellTerms | None


async def _reach(opening: _Opening) -> _Reached:
    """Open the receipts and the network, and find the learner. Raises what opening does, and UsageError."""
    stack, invite, events = opening.stack, opening.invite, opening.events
    events.emit("starting", doing="looking for the swarm")
    receipts = Receipts(opening.home.receipts)
    stack.callback(receipts.close)
    sums = await trio.to_thread.run_sync(receipts.sums)
    events.emit("receipts_opened", admitted=sums.admitted, rejected=sums.rejected)
    loop = stack.enter_context(watched_loop(events))
    transport = await stack.enter_async_context(opening.transport(opening.keypair.seed, opening.config.network, events))
    learner, told = await find_swarm(transport, invite, opening.wait_s)
    if (terms := await ask_terms(transport, learner, told, invite)) is not None:
        require_certified(terms, learner, invite, now_ms=Clock.now_ms())
    return _Reached(
        receipts=receipts, loop=loop, transport=transport, learner=learner, genesis=told.genesis, terms=terms
    )


async def _open(opening: _Opening) -> RolloutServices:
    """Open store, network and engine until `stack` is closed, and build the services. Raises what opening does."""
    invite, config, events, home = opening.invite, opening.config, opening.events, opening.home
    quota_bytes = round(config.store.quota_gb * GB)
    store = opening.stack.enter_context(ChunkStore.open(home.store, invite.authority, quota_bytes=quota_bytes))
    reached = await _reach(opening)
    genesis = reached.genesis
    if config.engine.quantization == AUTO:
        held = in_force_with(
            config, reached.terms, await _wait_newest(reached.transport, reached.learner, invite, events)
        )
        config = msgspec.structs.replace(config, engine=held.section)
        events.emit("weights_format", format=held.section.scheme_in_force or STORED, why=held.why)
    store.remember_genesis(genesis)
    events.emit("swarm_found", name=read_genesis(genesis)[0].name, swarm=invite.swarm.hex()[:16])
    engine = await opening.engine(config)
    return RolloutServices(
        invite=invite,
        config=config,
        transport=reached.transport,
        genesis=genesis,
        store=store,
        receipts=reached.receipts,
        engine=engine,
        keypair=opening.keypair,
        events=events,
        root=home.root,
        signals=opening.signals,
        loop=reached.loop,
    )


async def _open_teaching(opening: _Opening) -> TeachingServices:
    """Do the same for a teacher node. The model is compared with the learner's teacher before it is loaded."""
    invite, config, events = opening.invite, opening.config, opening.events
    directory = Path(config.teacher.directory)
    require_model(directory, "[teacher] directory")
    reached = await _reach(opening)
    wanted = b"" if reached.terms is None else reached.terms.ext.get(TEACHER, b"")
    if not wanted:
        raise UsageError(
            "This swarm accepts no scores of teacher nodes ([distill] nodes in its swarm.toml). Join without "
            "--teacher, or ask its operator."
        )
    digest = await trio.to_thread.run_sync(model_digest, directory)
    if digest != wanted:
        raise UsageError(
            f"[teacher] directory: the model in {directory} ({digest.hex()[:16]}) is not this swarm's teacher "
            f"({wanted.hex()[:16]}). config.json and the weights must be the same to the byte: ask the operator where "
            "to get them."
        )
    events.emit("swarm_found", name=read_genesis(reached.genesis)[0].name, swarm=invite.swarm.hex()[:16])
    engine = await opening.engine(config)
    assert isinstance(engine, WorkerEngine | CheatingEngine), "those on transformers can score"
    began = trio.current_time()
    await load(engine, directory)
    events.emit("teacher_loaded", seconds=round(trio.current_time() - began, 2))
    return TeachingServices(
        invite=invite,
        config=config,
        transport=reached.transport,
        receipts=reached.receipts,
        engine=engine,
        digest=digest,
        keypair=opening.keypair,
        events=events,
        root=opening.home.root,
        signals=opening.signals,
        loop=reached.loop,
    )


async def _wait_newest(
    transport: Transport, learner: PeerId, invite: Invite, events: EventLog
) -> SignedManifest | None:
    """Return the newest version, waiting for a first one; None after VERSION_WAIT_S."""
    newest = await find_newest(transport, learner, invite)
    if newest is None:
        events.emit("format_waits", seconds=VERSION_WAIT_S)
    with trio.move_on_after(VERSION_WAIT_S):
        while newest is None:
            await trio.sleep(LOOK_S)
            newest = await find_newest(transport, learner, invite)
    return newest


def _write_about(home: RolloutStateDir, config: NodeConfig) -> None:
    """Write the facts that reports show of this node."""
    about = {
        "name": config.name,
        "engine": config.engine.kind,
        "machine": machine_name(),
        "per_kwh": config.energy.per_kwh,
    }
    write_durably(home.root / ABOUT_FILE, json.dumps(about).encode())
