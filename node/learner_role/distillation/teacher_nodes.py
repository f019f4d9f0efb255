"""Build the services for teacher nodes: sessions, leases and audits.

Teacher nodes use a protocol of their own, which the learner serves from its start to its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import trio

from learner.rollouts.score_leases import ScoreLeases
from learner.trust.margins import Arithmetic, experts_in, margins_of
from node.config.swarm_config import SwarmConfig
from node.learner_role.distillation.teacher_audits import TeacherAudits
from node.learner_role.distillation.teacher_leases import TeacherLeases
from node.learner_role.distillation.teacher_model import config_of, parameters_of
from node.learner_role.distillation.teacher_sessions import TeacherSessions
from node.learner_role.shared.context import LearnerContext
from node.learner_role.shared.signals import connect_peers
from node.learner_role.trust.audit_service import AuditService
from protocol.scores import TEACH
from swarm.transport.interface import Report, Transport
from swarm.work.duplicate_keys import Doubles
from swarm.work.server import Incoming, WorkServer

INBOX = 64
"""Most deliveries that wait to be written. Each has a group's scores, 4 bytes a token."""


@dataclass(kw_only=True, eq=False)
class TeacherNodes:
    """The services for teacher nodes. `digest` is the teacher's."""

    context: LearnerContext
    config: SwarmConfig
    trust: AuditService
    digest: bytes
    under_way: ScoreLeases = field(init=False)
    audits: TeacherAudits = field(init=False)
    leases: TeacherLeases = field(init=False)
    sessions: TeacherSessions = field(init=False)

    def __post_init__(self) -> None:
        config, context, standings = self.config, self.context, self.trust.standings
        self.under_way = ScoreLeases(buffer=context.state.capacity.buffer)
        teacher, arithmetic = Path(config.distill.teacher or ""), Arithmetic(config.trust.required_compute_dtype)
        self.leases = TeacherLeases(
            context=context,
            leases=self.under_way,
            standings=standings,
            revisions=self.trust.revisions,
            digest=self.digest,
            temperature=config.learn.temperature,
            deadline_s=config.learn.lease_timeout_s,
            floor=config.trust.min_audit_share,
        )
        self.audits = TeacherAudits(
            context=context,
            leases=self.under_way,
            disown=self.leases.disown,
            standings=standings,
            revisions=self.trust.revisions,
            margins=margins_of(parameters_of(teacher), arithmetic, experts_in(config_of(teacher), told=False)),
            temperature=config.learn.temperature,
        )
        self.sessions = TeacherSessions(
            context=context,
            leases=self.leases,
            trust=self.trust,
            token=config.network.join_token,
            heartbeat_s=config.network.heartbeat_s,
            digest=self.digest,
        )

    async def run(self, transport: Transport, report: Report) -> None:
        """Serve teacher nodes until cancelled."""
        send, receive = trio.open_memory_channel[Incoming](INBOX)
        reception = WorkServer(
            transport=transport,
            desk=self.sessions,
            inbox=send,
            protocol=TEACH,
            report=report,
            doubles=Doubles(heartbeat_s=self.config.network.heartbeat_s),
        )
        connect_peers(self.context.signals, reception)
        async with trio.open_nursery() as nursery:
            reception.start()
            nursery.start_soon(self.leases.run, receive)
            nursery.start_soon(self.sessions.run)
