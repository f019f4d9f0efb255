"""A teacher node's services, built. `node.rollout_role.app` opens what they stand on."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from node.config.daily_hours import parse_hours
from node.config.node_config import NodeConfig
from node.energy.meter_selection import devices_of, find_meters
from node.energy.monitor import EnergyWatch
from node.engine.interface import ScoringEngine
from node.network.budget_reports import FaultLog
from node.network.reach_words import reach_words
from node.network.transport import machine_name
from node.rollout_role.availability import Availability
from node.rollout_role.owner_control import Owner
from node.rollout_role.patience import Patience
from node.rollout_role.receipt_revisions import Revisions
from node.rollout_role.resource_limits import in_force
from node.rollout_role.session_records import SessionRecords
from node.rollout_role.teaching.worker import TeachingWorker
from node.rollout_role.work_line_news import line_reporter
from node.rollout_role.yield_to_programs import make_room
from node.runtime.events import Clock, EventLog
from node.runtime.loop_watch import LoopWatch
from node.state.owner_orders import OwnerSignals
from node.state.receipts import Receipts
from protocol.accounting.claims import MICROS, Price
from protocol.core.identity import Keypair
from protocol.core.invite import Invite
from protocol.core.limits import PROTOCOL_VERSION
from protocol.scores import TEACH, TEACHER
from protocol.work import INSTANCE, INSTANCE_BYTES, RECEIPT_REVISIONS, Heartbeat, Hello
from swarm.transport.interface import Transport
from swarm.work.client import WorkClient

ENGINE_NAME = "transformers"
"""Whatever [engine] kind says: the one that can score."""


@dataclass(kw_only=True, eq=False)
class TeachingServices:
    """What a teacher node has open, and what is built on it. Lives for one run. `engine` has loaded the teacher, whose
    digest is `digest`."""

    invite: Invite
    config: NodeConfig
    transport: Transport
    receipts: Receipts
    engine: ScoringEngine
    digest: bytes
    keypair: Keypair
    events: EventLog
    root: Path
    signals: OwnerSignals
    loop: LoopWatch

    def __post_init__(self) -> None:
        config, events, engine = self.config, self.events, self.config.engine
        self.instance = secrets.token_bytes(INSTANCE_BYTES)
        self.price = Price(micros_per_hour=round(config.price.per_hour * MICROS), currency=config.price.currency)
        self.revisions = Revisions(receipts=self.receipts, events=events)
        self.line = WorkClient(
            transport=self.transport,
            authority=self.invite.authority,
            learner=self.invite.addresses,
            hello=self.hello,
            heartbeat=self.heartbeat,
            now_ms=Clock.now_ms,
            on_event=line_reporter(events, lambda told: None, lambda recall: None, self.revisions.keep),
            report=FaultLog(events=events).report,
            protocol=TEACH,
        )
        self.role = TeachingWorker(
            engine=self.engine,
            digest=self.digest,
            keypair=self.keypair,
            swarm=self.invite.authority.swarm,
            line=self.line,
            receipts=self.receipts,
            batch_rollouts=engine.batch_rollouts,
            events=events,
            shift=Availability(parse_hours(engine.hours)),
            patience=Patience(patience_s=engine.patience_s),
        )
        self.owner = Owner(
            root=self.root,
            signals=self.signals,
            role=self.role,
            limits=in_force(config),
            trouble=events.trouble,
            loop=lambda: self.loop.latest,
            reach=lambda: reach_words(self.transport.reached()),
        )
        self.energy = EnergyWatch(
            partial(find_meters, config.energy, devices_of(engine)),
            is_lent=lambda: self.role.shift.is_on,
            engine_s=lambda: self.role.counts.engine_s,
            events=events,
            reports=config.energy.report,
        )
        self.session = SessionRecords(
            receipts=self.receipts, price=self.price, swarm=None, energy=self.energy, events=events
        )

    async def run(self) -> None:
        """Run all loops. Ends by RunFinished, NotWelcome, Drained, or what went wrong."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.role.run)
            nursery.start_soon(self.line.run)
            nursery.start_soon(self.session.run)
            nursery.start_soon(self.energy.run)
            nursery.start_soon(self.revisions.run)
            nursery.start_soon(self.owner.run)
            nursery.start_soon(self.loop.tell, self.events)
            if self.config.limits.pause_for:
                nursery.start_soon(make_room, self.config.limits.pause_for, self.role.shift)

    def hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL_VERSION,
            name=self.config.name,
            token=self.invite.token,
            price=self.price,
            engine=ENGINE_NAME,
            machine=machine_name(),
            leases=sorted(self.role.holding),
            ext={INSTANCE: self.instance, RECEIPT_REVISIONS: b"", TEACHER: self.digest},
        )

    def heartbeat(self) -> Heartbeat:
        counts = self.role.counts
        return Heartbeat(
            pending=counts.pending,
            engine_s=counts.engine_s,
            hours_left_s=self.role.shift.left_s,
            energy=self.energy.told(),
            troubles=self.role.patience.told,
        )
