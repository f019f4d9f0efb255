"""Build a rollout node's services and connect them. `node.rollout_role.app` opens what they need."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from node.config.common import GB
from node.config.daily_hours import parse_hours
from node.config.engine_requirements import TELL_EXPERTS
from node.config.live_limits import DOWNLOAD, HOURS, QUOTA, UPLOAD
from node.config.node_config import NodeConfig
from node.energy.meter_selection import devices_of, find_meters
from node.energy.monitor import EnergyWatch
from node.engine.interface import PolicyEngine
from node.network.budget_reports import FaultLog
from node.network.introductions import Neighbours
from node.network.reach_words import reach_words
from node.network.swarm_peer import SwarmPeer
from node.network.transport import bits_per_s, machine_name
from node.rollout_role.availability import Availability
from node.rollout_role.owner_control import NodeWorker, Owner
from node.rollout_role.proof_client import ProofKeeper, tally_in
from node.rollout_role.receipt_revisions import Revisions
from node.rollout_role.resource_limits import RunningLimits, Setter
from node.rollout_role.retry_policy import RetryPolicy
from node.rollout_role.session_events import session_event_handler
from node.rollout_role.session_records import SessionRecords
from node.rollout_role.worker import RolloutWorker
from node.rollout_role.yield_to_programs import make_room
from node.runtime.events import Clock, EventLog
from node.runtime.loop_watch import LoopWatch
from node.runtime.typed_signal import Signal
from node.state.owner_orders import OwnerSignals
from node.state.receipts import Receipts
from protocol.accounting.claims import MICROS, Price
from protocol.core.codec import encode
from protocol.core.identity import Keypair
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.core.invite import Invite
from protocol.core.limits import PROTOCOL_VERSION
from protocol.reach import REACH
from protocol.versions import exchange
from protocol.versions.formats import STORED, format_extension
from protocol.work import (
    EXPERTS,
    INSTANCE,
    INSTANCE_BYTES,
    LEASE_RECALLS,
    PARTS,
    PROOFS,
    RECEIPT_REVISIONS,
    WINDOW,
    Heartbeat,
    Hello,
    LeaseRecall,
)
from swarm.store import ChunkStore, StoreError
from swarm.transfer.fetch import Fetched
from swarm.transfer.serving import Knowledge
from swarm.transport.interface import Transport
from swarm.versions.fetcher import Obtained
from swarm.versions.follower import Arrival, VersionFollower
from swarm.work.client import WorkClient


async def set_hours(role: NodeWorker, config: NodeConfig) -> None:
    """Lend the machine in other hours from now on. The learner plans with their end, so it hears of it at once."""
    role.shift.change(parse_hours(config.engine.hours))
    role.work_client.heartbeat_now()


async def set_rates(transport: Transport, config: NodeConfig) -> None:
    """Cap what all connections together send and receive."""
    upload, download = map(bits_per_s, (config.network.upload_mbit, config.network.download_mbit))
    transport.limit_rates(upload_bits_per_s=upload, download_bits_per_s=download)


async def set_quota(store: ChunkStore, events: EventLog, config: NodeConfig) -> None:
    """Bound the disk for versions, and evict those beyond it."""
    try:
        await trio.to_thread.run_sync(store.limit, round(config.store.quota_gb * GB))
    except (StoreError, OSError) as error:
        events.trouble(f"The quota holds, but old versions beyond it could not be removed: {error}")


@dataclass(kw_only=True, eq=False)
class NodeServices:
    """The resources of every node, and the services for its owner and its machine."""

    invite: Invite
    config: NodeConfig
    transport: Transport
    receipts: Receipts
    keypair: Keypair
    events: EventLog
    root: Path
    signals: OwnerSignals
    loop: LoopWatch

    @property
    def price(self) -> Price:
        """Return the owner's price."""
        price = self.config.price
        return Price(micros_per_hour=round(price.per_hour * MICROS), currency=price.currency)

    def build_owner(
        self, role: NodeWorker, carried: Callable[[], int], setters: Mapping[str, Setter] | None = None
    ) -> Owner:
        """Build the service for the owner's orders.

        `carried` returns the bytes that circuits through here carried. `setters`: of limits that not all nodes have.
        """
        rates = partial(set_rates, self.transport)
        common: dict[str, Setter] = {HOURS: partial(set_hours, role), UPLOAD: rates, DOWNLOAD: rates}
        return Owner(
            root=self.root,
            signals=self.signals,
            role=role,
            limits=RunningLimits(config=self.config, setters={**common, **(setters or {})}, events=self.events),
            trouble=self.events.trouble,
            loop=lambda: self.loop.latest,
            reach=lambda: reach_words(self.transport.reached(), carried()),
        )

    def build_energy(self, role: NodeWorker) -> EnergyWatch:
        """Build the service that measures the energy which the machine uses while it is lent."""
        return EnergyWatch(
            partial(find_meters, self.config.energy, devices_of(self.config.engine)),
            is_lent=lambda: role.shift.is_lent,
            engine_s=lambda: role.counts.engine_s,
            events=self.events,
            reports=self.config.energy.report,
        )

    def watch_machine(self, nursery: trio.Nursery, role: NodeWorker) -> None:
        """Report delays of the event loop, and pause for the owner's programs, until cancelled."""
        nursery.start_soon(self.loop.tell, self.events)
        if self.config.limits.pause_for:
            nursery.start_soon(make_room, self.config.limits.pause_for, role.shift)


@dataclass(kw_only=True, eq=False)
class RolloutServices(NodeServices):
    """The resources of a node that generates, and the services built on them. Lives for one run.

    News of the learner's connection and of the version follower go by signals, since the worker needs both.
    """

    genesis: bytes
    store: ChunkStore
    engine: PolicyEngine

    def __post_init__(self) -> None:
        events = self.events
        self._reach_told = b""
        self.instance = secrets.token_bytes(INSTANCE_BYTES)
        self.neighbours = Neighbours(transport=self.transport, events=events)
        self.arrivals, self.recalls = Signal[Arrival](), Signal[LeaseRecall]()
        self.fetch_failures, self.proof_news = Signal[tuple[PolicyVersion, str]](), Signal[None]()
        self.revisions = Revisions(receipts=self.receipts, events=events)
        knowledge = Knowledge(genesis=self.genesis, newest=lambda: self.following.newest, peers=self.peers)
        self.swarm = SwarmPeer.build(self.transport, self.store, knowledge, FaultLog(events=events))
        self.following = self._build_following()
        self.work_client = self._build_work_client()
        self.proofs = ProofKeeper(
            work_client=self.work_client,
            receipts=self.receipts,
            authority=self.invite.authority,
            peer=self.keypair.peer_id,
            tally_held=partial(tally_in, self.store),
            events=events,
        )
        self.role = self._build_role()
        self.owner = self.build_owner(
            self.role,
            carried=lambda: self.session.bytes_carried,
            setters={QUOTA: partial(set_quota, self.store, self.events)},
        )
        self.energy = self.build_energy(self.role)
        self.session = SessionRecords(
            receipts=self.receipts, price=self.price, transport=self.transport, swarm=self.swarm, energy=self.energy,
            events=events,
        )  # fmt: skip

    def _build_following(self) -> VersionFollower:
        return VersionFollower(
            transport=self.transport,
            store=self.store,
            authority=self.invite.authority,
            distribution=self.swarm.exchange,
            on_arrival=self.arrivals.emit,
            report=self.swarm.faults.report,
            trouble=self.events.trouble,
            on_failure=lambda version, reason: self.fetch_failures.emit((version, reason)),
        )

    def _build_work_client(self) -> WorkClient:
        return WorkClient(
            transport=self.transport,
            authority=self.invite.authority,
            learner=self.invite.addresses,
            hello=self.hello,
            heartbeat=self.heartbeat,
            now_ms=Clock.now_ms,
            on_event=session_event_handler(self.events, self.neighbours.hear, self.recalls.emit, self.revisions.keep),
            report=self.swarm.faults.report,
            on_proofs=lambda: self.proof_news.emit(None),
        )

    def _build_role(self) -> RolloutWorker:
        engine = self.config.engine
        role = RolloutWorker(
            engine=self.engine,
            store=self.store,
            keypair=self.keypair,
            swarm=self.invite.authority.swarm,
            work_client=self.work_client,
            receipts=self.receipts,
            in_flight=self.in_flight,
            batch_rollouts=engine.batch_rollouts,
            now_ms=Clock.now_ms,
            events=self.events,
            form=engine.scheme_in_force or STORED,
            shift=Availability(parse_hours(engine.hours)),
            retry_policy=RetryPolicy(give_up_s=engine.patience_s),
        )
        self.arrivals.subscribe(role.arrive)
        self.fetch_failures.subscribe(lambda news: role.note_fetch_failure(*news))
        self.recalls.subscribe(role.recall)
        self.proof_news.subscribe(lambda _: self.proofs.look())
        return role

    async def run(self) -> None:
        """Run all loops. Ends with RunFinished, NotWelcome, Drained, or another error."""
        self.take_up_held()
        async with trio.open_nursery() as nursery:
            self.swarm.start(nursery)
            nursery.start_soon(self.following.run)
            nursery.start_soon(self.neighbours.run)
            nursery.start_soon(self.role.run)
            nursery.start_soon(self.work_client.run)
            nursery.start_soon(self.proofs.run)
            nursery.start_soon(self.session.run)
            nursery.start_soon(self.energy.run)
            nursery.start_soon(self.revisions.run)
            nursery.start_soon(self.owner.run)
            self.watch_machine(nursery, self.role)

    def take_up_held(self) -> None:
        """Start with the newest version that is complete in the store."""
        held = [version for version in self.store.versions() if version.complete]
        if held and (signed := self.store.manifest(held[-1].hash)) is not None:
            self.following.core.held = signed.version
            self.role.arrive(Arrival(signed=signed, seconds=0.0, obtained=Obtained(fetched=Fetched(by_peer={}))))

    def hello(self) -> Hello:
        held = format_extension(self.config.engine.scheme_in_force or STORED)
        computed = {exchange.COMPUTE_DTYPE: self.config.engine.compute_dtype_in_force.encode()}
        experts = {EXPERTS: b""} if self.config.engine.kind in TELL_EXPERTS else {}
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
                PARTS: b"",
                PROOFS: b"",
                RECEIPT_REVISIONS: b"",
                WINDOW: b"",
                **held,
                **computed,
                **experts,
                **self._reach(anew=True),
            },
        )

    def heartbeat(self) -> Heartbeat:
        counts = self.role.counts
        return Heartbeat(
            installed=self.role.installed,
            pending=counts.pending,
            bytes_up=self.swarm.serving.served_bytes,
            bytes_down=self.swarm.exchange.fetched_bytes,
            engine_s=counts.engine_s,
            tokens_per_s=counts.tokens_per_s or 0.0,
            hours_left_s=self.role.shift.left_s,
            energy=self.energy.reported(),
            troubles=self.role.retry_policy.troubles,
            ext=self._reach(anew=False),
        )

    def _reach(self, *, anew: bool) -> dict[str, bytes]:
        """Return the extension that says how others reach us.

        It is empty if the learner knows already, unless `anew` is set.
        """
        reached = self.transport.reached()
        reach = encode(reached)
        if reach == self._reach_told and not anew:
            return {}
        if reach != self._reach_told:
            said = reach_words(reached)
            self.events.emit("reach_told", kind=reached.kind.value, why=reached.why, text=said)
        self._reach_told = reach
        return {REACH: reach}

    def in_flight(self) -> ManifestHash | None:
        flying = self.following.core.in_flight
        return None if flying is None else flying.manifest

    def peers(self) -> list[exchange.PeerAddresses]:
        return [exchange.PeerAddresses(peer=peer) for peer in self.transport.connected_peers()]
