"""A rollout node, composed: key, store, transport, engine, and the loops that use them.

What always holds on the way out: the engine's process ends; the store keeps what it has, and the next start goes on
from there.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import trio

from node.config.common import GB
from node.config.daily_hours import parse_hours
from node.config.node_config import NodeConfig
from node.energy.meter_selection import devices_of, find_meters
from node.energy.monitor import EnergyWatch
from node.engine.factory import open_engine
from node.engine.interface import EngineError, PolicyEngine
from node.engine.selection import choose_engine, look
from node.network.budget_reports import FaultLog, tell_refusals
from node.network.first_contact import ask_terms, find_swarm, require_certified
from node.network.introductions import Neighbours
from node.network.transport import machine_name, open_transport
from node.rollout_role.availability import Availability
from node.rollout_role.line_events import line_reporter
from node.rollout_role.owner_control import Drained, Owner
from node.rollout_role.proof_client import ProofKeeper, tally_in
from node.rollout_role.receipt_revisions import Revisions
from node.rollout_role.resource_limits import in_force
from node.rollout_role.retries import Patience
from node.rollout_role.worker import GaveUp, RolloutCounts, RolloutWorker
from node.rollout_role.yield_to_programs import make_room
from node.runtime.atomic_files import write_durably
from node.runtime.errors import RunError, UsageError
from node.runtime.events import Clock, EventLog
from node.runtime.loop_watch import LoopWatch, watched_loop
from node.state.identities import ABOUT_FILE, require_node
from node.state.keys import load_or_create_key
from node.state.owner_orders import OwnerSignals
from node.state.receipt_queries import ReceiptsError
from node.state.receipt_rows import PeerTraffic
from node.state.receipts import Receipts
from node.state.rollout_state import RolloutStateDir, open_volunteer_home
from protocol.accounting.claims import MICROS, Price
from protocol.core.errors import Fault
from protocol.core.genesis import read_genesis
from protocol.core.identity import Keypair
from protocol.core.ids import ManifestHash, PeerId
from protocol.core.invite import Invite
from protocol.core.limits import PROTOCOL_VERSION
from protocol.versions import exchange
from protocol.work import (
    INSTANCE,
    INSTANCE_BYTES,
    LEASE_RECALLS,
    PROOFS,
    RECEIPT_REVISIONS,
    Heartbeat,
    Hello,
    Introduction,
)
from swarm.store import ChunkStore, StoreError
from swarm.transfer.exchange import ChunkExchange
from swarm.transfer.fetch import Fetched
from swarm.transfer.serving import Knowledge, Serving
from swarm.transport.error_groups import first_cause
from swarm.transport.interface import ListenFailed, Transport
from swarm.versions.fetcher import Obtained
from swarm.versions.follower import Arrival, VersionFollower
from swarm.work.client import KeyInUse, NotWelcome, RunFinished, WorkClient

SESSION_S = 2.0
"""How often the node's own presence is written, beside its end; what a kill loses of it at most."""

INTRODUCTIONS = 16
"""Introductions waiting to be dialled; each is the whole list anew."""


@dataclass(frozen=True, kw_only=True)
class RolloutOutcome:
    """How a node's part in a run ended, and what it did since it started."""

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
    on_ready: Callable[[RolloutStateDir, RolloutWorker], None],
    signals: OwnerSignals,
) -> RolloutOutcome:
    """Play the rollout role until the learner says that the run is over, or its owner has it drained.

    Raises UsageError or RunError; cancel to stop. `wait_s` is how long to try to reach the learner for the first time.
    """
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
                quota_bytes = round(config.store.quota_gb * GB)
                store = stack.enter_context(ChunkStore.open(home.store, invite.authority, quota_bytes=quota_bytes))
                receipts = Receipts(home.receipts)
                stack.callback(receipts.close)
                loop = stack.enter_context(watched_loop(events))
                transport = await stack.enter_async_context(open_transport(keypair.seed, config.network))
                learner, told = await find_swarm(transport, invite, wait_s)
                genesis = told.genesis
                if (terms := await ask_terms(transport, learner, told, invite)) is not None:
                    require_certified(terms, learner, invite, now_ms=Clock.now_ms())
                store.remember_genesis(genesis)
                events.emit("swarm_found", name=read_genesis(genesis)[0].name, swarm=invite.swarm.hex()[:16])
                engine = await stack.enter_async_context(
                    open_engine(
                        config.engine,
                        events,
                        name="engine",
                        limits=config.limits,
                        state=home.root,
                        testing=config.testing,
                    )
                )
                node = _Rollout(
                    invite,
                    config,
                    transport,
                    genesis,
                    store,
                    receipts,
                    engine,
                    keypair,
                    events,
                    home.root,
                    signals,
                    loop,
                )
                about = {
                    "name": config.name,
                    "engine": config.engine.kind,
                    "machine": machine_name(),
                    "per_kwh": config.energy.per_kwh,
                }
                write_durably(home.root / ABOUT_FILE, json.dumps(about).encode())
                on_ready(home, node.role)
                await node.work()
    except (RunFinished, Drained) as ended:
        return RolloutOutcome(state=home.root, reason=str(ended), counts=node.role.counts)
    except KeyInUse:
        raise UsageError(
            f"Another node that runs now has the key of this one, {home.key}, and was here first. One key is one peer. "
            f"If {home.root} was copied from another machine, remove node.key from the copy, and "
            f"receipts.sqlite and {ABOUT_FILE}, which are of the same peer: the next start makes new ones. Else "
            "end the other node."
        ) from None
    except NotWelcome as refused:
        raise UsageError(f"The learner refused this node: {refused}") from None
    except ListenFailed as error:
        raise RunError(f"{error}. End what listens there, or choose another port in [network] listen.") from error
    except (StoreError, ReceiptsError, EngineError, GaveUp) as error:
        raise RunError(str(error)) from error
    raise AssertionError("a node's loops end only by raising")


class _Rollout:
    """The parts, wired. Lives for one run."""

    def __init__(
        self,
        invite: Invite,
        config: NodeConfig,
        transport: Transport,
        genesis: bytes,
        store: ChunkStore,
        receipts: Receipts,
        engine: PolicyEngine,
        keypair: Keypair,
        events: EventLog,
        root: Path,
        signals: OwnerSignals,
        loop: LoopWatch,
    ) -> None:
        self.config, self.transport, self.events, self.store, self.invite = config, transport, events, store, invite
        self.faults = FaultLog(events=events)
        self.receipts, self.loop, self.instance = receipts, loop, secrets.token_bytes(INSTANCE_BYTES)
        self.price = Price(micros_per_hour=round(config.price.per_hour * MICROS), currency=config.price.currency)
        self.revisions = Revisions(receipts=receipts, events=events)
        self.introductions, self._introduced = trio.open_memory_channel[Introduction](INTRODUCTIONS)
        self.serving = Serving(
            transport=transport,
            store=store,
            knowledge=Knowledge(genesis=genesis, newest=lambda: self.following.newest, peers=self.known),
            report=self.report,
            trouble=self.trouble,
        )
        self.distribution = ChunkExchange(
            transport=transport,
            store=store,
            tell_gained=lambda signed: self.serving.tell_gained(signed.hash),
            report=self.report,
            serving=self.serving,
        )
        self.following = VersionFollower(
            transport=transport,
            store=store,
            authority=invite.authority,
            distribution=self.distribution,
            on_arrival=lambda arrival: self.role.arrived(arrival),
            report=self.report,
            trouble=self.trouble,
            on_failure=lambda version, reason: self.role.fetch_failed(version, reason),
        )
        self.line = WorkClient(
            transport=transport,
            authority=invite.authority,
            learner=invite.addresses,
            hello=self.hello,
            heartbeat=self.heartbeat,
            now_ms=Clock.now_ms,
            on_event=line_reporter(
                events, self.introduce, lambda recall: self.role.recalled(recall), self.revisions.heard
            ),
            report=self.report,
            on_proofs=lambda: self.proofs.news(),
        )
        self.proofs = ProofKeeper(
            line=self.line,
            receipts=receipts,
            authority=invite.authority,
            peer=keypair.peer_id,
            tally_held=partial(tally_in, store),
            events=events,
        )
        self.role = RolloutWorker(
            engine=engine,
            store=store,
            keypair=keypair,
            swarm=invite.authority.swarm,
            line=self.line,
            receipts=receipts,
            in_flight=self.in_flight,
            batch_rollouts=config.engine.batch_rollouts,
            now_ms=Clock.now_ms,
            events=events,
            shift=Availability(parse_hours(config.engine.hours)),
            patience=Patience(patience_s=config.engine.patience_s),
        )
        self.owner = Owner(
            root=root,
            signals=signals,
            role=self.role,
            limits=in_force(config),
            trouble=self.trouble,
            loop=lambda: loop.latest,
        )
        self.neighbours = Neighbours(transport=transport)
        self.energy = EnergyWatch(
            partial(find_meters, config.energy, devices_of(config.engine)),
            is_lent=lambda: self.role.shift.is_on,
            engine_s=lambda: self.role.counts.engine_s,
            events=events,
            reports=config.energy.report,
        )

    async def work(self) -> None:
        """Run all loops. Ends by RunFinished, NotWelcome, Drained, or what went wrong."""
        self.take_up_held()
        self.serving.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.distribution.run)
            nursery.start_soon(self.following.run)
            nursery.start_soon(self.meet)
            nursery.start_soon(self.role.run)
            nursery.start_soon(self.line.run)
            nursery.start_soon(self.proofs.work)
            nursery.start_soon(self.note_session)
            nursery.start_soon(self.energy.run)
            nursery.start_soon(self.revisions.work)
            nursery.start_soon(self.owner.obey)
            nursery.start_soon(self.loop.tell, self.events)
            nursery.start_soon(tell_refusals, self.transport, self.events)
            if self.config.limits.pause_for:
                nursery.start_soon(make_room, self.config.limits.pause_for, self.role.shift)

    async def note_session(self) -> None:
        """Write how long this node has been at work and what it moved, for its own report."""
        session = await trio.to_thread.run_sync(self.receipts.session_began, self.price, Clock.now_ms())
        noted: set[PeerTraffic] = set()
        try:
            while True:
                await trio.sleep(SESSION_S)
                noted = await self._note(session, noted)
        finally:
            with trio.CancelScope(shield=True):
                await self._note(session, noted)

    async def _note(self, session: int, noted: set[PeerTraffic]) -> set[PeerTraffic]:
        """Write how the session stands, by peer what is not `noted` yet; return what is."""
        heartbeat, traffic = self.heartbeat(), self.traffic()
        if traffic != noted:
            self.events.emit("traffic", bytes_up=heartbeat.bytes_up, bytes_down=heartbeat.bytes_down)
        await trio.to_thread.run_sync(
            partial(
                self.receipts.session_lasts,
                session,
                Clock.now_ms(),
                bytes_up=heartbeat.bytes_up,
                bytes_down=heartbeat.bytes_down,
                traffic=traffic - noted,
                energy=self.energy.joules,
            )
        )
        return traffic

    def take_up_held(self) -> None:
        """Begin with the newest version that is complete in the store."""
        held = [version for version in self.store.versions() if version.complete]
        if held and (signed := self.store.manifest(held[-1].hash)) is not None:
            self.following.core.held = signed.version
            self.role.arrived(Arrival(signed=signed, seconds=0.0, obtained=Obtained(fetched=Fetched(by_peer={}))))

    def hello(self) -> Hello:
        scheme = self.config.engine.scheme_in_force
        quantized = {exchange.QUANTIZED: scheme.encode()} if scheme else {}
        computed = {exchange.COMPUTE_DTYPE: self.config.engine.compute_dtype_in_force.encode()}
        return Hello(
            protocol=PROTOCOL_VERSION,
            name=self.config.name,
            token=self.invite.token,
            addresses=self.transport.addresses(),
            price=self.price,
            engine=self.config.engine.kind,
            machine=machine_name(),
            leases=sorted(self.role.holding),
            ext={
                INSTANCE: self.instance,
                LEASE_RECALLS: b"",
                PROOFS: b"",
                RECEIPT_REVISIONS: b"",
                **quantized,
                **computed,
            },
        )

    def heartbeat(self) -> Heartbeat:
        counts = self.role.counts
        return Heartbeat(
            installed=self.role.installed,
            pending=counts.pending,
            bytes_up=self.serving.served_bytes,
            bytes_down=self.distribution.fetched_bytes,
            engine_s=counts.engine_s,
            tokens_per_s=counts.tokens_per_s or 0.0,
            hours_left_s=self.role.shift.left_s,
            energy=self.energy.told(),
            troubles=self.role.patience.told,
        )

    def traffic(self) -> set[PeerTraffic]:
        """What was exchanged with each peer since the start."""
        served, fetched = self.serving.served, self.distribution.fetched_from
        return {
            PeerTraffic(
                peer=peer,
                bytes_up=served[peer].size_bytes if peer in served else 0,
                bytes_down=fetched[peer],
            )
            for peer in served.keys() | fetched.keys()
        }

    def in_flight(self) -> ManifestHash | None:
        flying = self.following.core.in_flight
        return None if flying is None else flying.manifest

    def introduce(self, introduction: Introduction) -> None:
        """Hand an introduction to `meet`; when it is behind, it has a newer list to come anyway."""
        self.neighbours.trust(PeerId(told.peer) for told in introduction.peers)
        try:
            self.introductions.send_nowait(introduction)
        except trio.WouldBlock:
            self.events.emit("introduction_dropped")

    async def meet(self) -> None:
        async for introduction in self._introduced:
            await self.neighbours.meet([(PeerId(told.peer), told.addresses) for told in introduction.peers])

    def known(self) -> list[exchange.PeerAddresses]:
        return [exchange.PeerAddresses(peer=peer) for peer in self.transport.connected_peers()]

    def trouble(self, text: str) -> None:
        self.events.emit("trouble", text=text)

    def report(self, peer: PeerId, fault: Fault, detail: str) -> None:
        self.faults.report(peer, fault, detail)
