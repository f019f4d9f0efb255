"""Build a teacher node's services and connect them. `node.rollout_role.app` opens what they need."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import trio

from node.config.daily_hours import parse_hours
from node.engine.interface import ScoringEngine
from node.network.budget_reports import FaultLog
from node.network.transport import machine_name
from node.rollout_role.availability import Availability
from node.rollout_role.receipt_revisions import Revisions
from node.rollout_role.retry_policy import RetryPolicy
from node.rollout_role.services import NodeServices
from node.rollout_role.session_events import session_event_handler
from node.rollout_role.session_records import SessionRecords
from node.rollout_role.teaching.worker import TeachingWorker
from node.runtime.events import Clock
from protocol.core.limits import PROTOCOL_VERSION
from protocol.scores import TEACH, TEACHER
from protocol.work import INSTANCE, INSTANCE_BYTES, RECEIPT_REVISIONS, Heartbeat, Hello
from swarm.work.client import WorkClient

ENGINE_NAME = "transformers"
"""The engine of every teacher node, no matter what [engine] kind says: the only one that can score."""


@dataclass(kw_only=True, eq=False)
class TeachingServices(NodeServices):
    """The resources of a teacher node, and the services built on them. Lives for one run.

    `engine` has loaded the teacher, whose digest is `digest`.
    """

    engine: ScoringEngine
    digest: bytes

    def __post_init__(self) -> None:
        events, engine = self.events, self.config.engine
        self.instance = secrets.token_bytes(INSTANCE_BYTES)
        self.revisions = Revisions(receipts=self.receipts, events=events)
        self.work_client = WorkClient(
            transport=self.transport,
            authority=self.invite.authority,
            learner=self.invite.addresses,
            hello=self.hello,
            heartbeat=self.heartbeat,
            now_ms=Clock.now_ms,
            on_event=session_event_handler(events, lambda told: None, lambda recall: None, self.revisions.keep),
            report=FaultLog(events=events).report,
            protocol=TEACH,
        )
        self.role = TeachingWorker(
            engine=self.engine,
            digest=self.digest,
            keypair=self.keypair,
            swarm=self.invite.authority.swarm,
            work_client=self.work_client,
            receipts=self.receipts,
            batch_rollouts=engine.batch_rollouts,
            events=events,
            shift=Availability(parse_hours(engine.hours)),
            retry_policy=RetryPolicy(give_up_s=engine.patience_s),
        )
        self.owner = self.build_owner(self.role, carried=lambda: 0)
        self.energy = self.build_energy(self.role)
        self.session = SessionRecords(
            receipts=self.receipts, price=self.price, transport=self.transport, swarm=None, energy=self.energy,
            events=events,
        )  # fmt: skip

    async def run(self) -> None:
        """Run all loops. Ends with RunFinished, NotWelcome, Drained, or another error."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.role.run)
            nursery.start_soon(self.work_client.run)
            nursery.start_soon(self.session.run)
            nursery.start_soon(self.energy.run)
            nursery.start_soon(self.revisions.run)
            nursery.start_soon(self.owner.run)
            self.watch_machine(nursery, self.role)

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
            energy=self.energy.reported(),
            troubles=self.role.retry_policy.troubles,
        )
