"""Manage the sessions of teacher nodes: who may join, their presences, and their heartbeats.

Teacher nodes have a protocol of their own (`TEACH`), so nothing for rollout nodes counts them: they are leased no
rollouts, introduced to no peer, and are in no plan. The trio thread waits for the disk only in `welcome`.

Invariants:

- A peer that joined has a row in the ledger for its presence, with its cost.
- A peer that said goodbye, is banned, or stays away, has no open leases.
- A peer whose connection broke may continue when it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from learner.ledger.reputation import BANNED
from learner.ledger.rows import PresenceRow
from node.learner_role.distillation.teacher_leases import TeacherLeases
from node.learner_role.peers.greetings import objection_to, write_joined
from node.learner_role.shared.context import Service
from node.learner_role.shared.node_troubles import hear_troubles
from node.learner_role.shared.presence_counts import PresenceCounts, presence_row
from node.learner_role.shared.run_state import PeerSession
from node.learner_role.shared.signals import PeerBanned, PeerDismissed
from node.learner_role.trust.audit_service import AuditService
from node.learner_role.trust.peer_standings import ban_notice
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import LeaseId, PeerId
from protocol.core.limits import PROTOCOL_VERSION
from protocol.scores import TEACHER, ScoreGrant
from protocol.work import (
    IN_GOOD_ORDER,
    RECEIPT_REVISIONS,
    Farewell,
    Heartbeat,
    Hello,
    LeaseRequest,
    LeaseReturn,
    ProofRequest,
    Refused,
    Relayed,
    Started,
    Welcome,
)
from swarm.transport.event_rate import Buckets, Rate

ENGINE = "teacher, {}"
"""The engine of a teacher node in the ledger, where its role is the same as a rollout node's."""

WRITE_S = 2.0
"""Seconds between two writes of the presences, besides those at their ends."""

BACK_WITHIN_S = 30.0
"""Seconds for which a teacher keeps its leases after its connection broke. A node pauses for at most 19 s between two
tries."""

MAX_TEACHERS = 256
"""Most teachers at a time. A swarm needs few: one scores the completions of many nodes."""

WELCOMES = Rate(per_s=0.1, burst=32.0)
"""Welcomes of one peer. As for rollout nodes, they are limited because each presence is a row in the ledger."""


@dataclass(kw_only=True, eq=False)
class TeacherSessions(Service):
    """Implements `swarm.work.server.WorkHandler` for teacher nodes. `digest` is that of the teacher they must have."""

    leases: TeacherLeases
    trust: AuditService
    token: str
    heartbeat_s: float
    digest: bytes
    _counts: PresenceCounts = field(default_factory=PresenceCounts)
    _welcomes: Buckets[PeerId] = field(default_factory=lambda: Buckets(rate=WELCOMES))
    _ended: list[PresenceRow] = field(default_factory=list)
    _away: dict[PeerId, float] = field(default_factory=dict)
    """By peer whose connection broke: the time until which it keeps its leases."""

    def __post_init__(self) -> None:
        self.signals.peer_banned.subscribe(self._dismiss)

    async def welcome(self, peer: PeerId, hello: Hello) -> Welcome | Refused:
        """Check protocol, join token and teacher. A peer that gets a Welcome is present from then on."""
        if (objection := objection_to(hello, self.token)) is not None:
            return Refused(reason=objection)
        if (told := hello.ext.get(TEACHER, b"")) != self.digest:
            return Refused(
                reason=f"Your teacher ({told.hex()[:16] or 'none'}) is not this swarm's teacher "
                f"({self.digest.hex()[:16]}): config.json and the weights must be the same to the byte. Ask the "
                "operator where to get them."
            )
        if banned := await self.trust.welcome(peer):
            return Refused(reason=ban_notice(banned))
        if len(self.state.teachers) >= MAX_TEACHERS and peer not in self.state.teachers:
            return Refused(reason=f"{MAX_TEACHERS} teachers are here already.", retry_after_ms=600_000)
        if not self._welcomes.of(peer).admit(trio.current_time()):
            return Refused(
                reason="You reconnected too often: find out why your connection breaks.", retry_after_ms=10_000
            )
        known, row = await trio.to_thread.run_sync(self._write_joined, peer, hello)
        if banned := await self.trust.standings.recall_banned(peer):
            self._ended.append(PresenceRow(presence=row, bytes_up=0, bytes_down=0, reason=BANNED))
            return Refused(reason=ban_notice(banned))
        # No await from here on: a ban in between would find no connection to end, and the peer would be present.
        if known:
            self._counts.is_back(peer)
        self._end(peer, "it opened another connection")
        self._away.pop(peer, None)
        self.leases.recollect(peer, {LeaseId(lease) for lease in hello.leases})
        self.state.teachers[peer] = PeerSession(
            row=row, name=hello.name, addresses=(), takes_revisions=RECEIPT_REVISIONS in hello.ext
        )
        self.events.emit("teacher_joined", peer=peer, name=hello.name, engine=hello.engine, machine=hello.machine)
        self.state.notify(leasable=False)
        return Welcome(
            protocol=PROTOCOL_VERSION,
            now_ms=self.now_ms(),
            heartbeat_ms=round(self.heartbeat_s * 1000),
            staleness=self.capacity.window,
            publish_every=self.state.kappa,
        )

    async def grant(self, peer: PeerId, request: LeaseRequest) -> ScoreGrant:
        return await self.leases.grant(peer, request)

    def take_heartbeat(self, peer: PeerId, heartbeat: Heartbeat) -> None:
        """Note the counts of a heartbeat."""
        if (session := self.state.teachers.get(peer)) is not None:
            self._counts.add(peer, session, heartbeat, self.state.teachers)
            hear_troubles(self.context, peer, session.name, heartbeat)
            self.trust.revisions.tell(peer)

    def take_start(self, peer: PeerId, started: Started) -> None:
        """Do nothing: nothing depends on when a teacher begins."""

    def note_delivery(self, peer: PeerId, lease: LeaseId) -> None:
        self.leases.note_arrival(peer, lease)

    def take_return(self, peer: PeerId, leases: LeaseReturn) -> None:
        self.leases.accept_return(peer, leases)

    def take_relay_receipt(self, peer: PeerId, relayed: Relayed) -> None:
        raise PeerError(Fault.BROKEN_PROMISE, "a teacher relays nothing")

    def take_proof_request(self, peer: PeerId, request: ProofRequest) -> None:
        raise PeerError(Fault.BROKEN_PROMISE, "no version has proofs of a teacher's scores")

    def note_departure(self, peer: PeerId, reason: str) -> None:
        """Note that a peer's connection ended. If it said goodbye, its leases are released. Otherwise it may return."""
        self._end(peer, reason)
        if reason == IN_GOOD_ORDER:
            self._release(peer, "returned")

    def farewell(self, reason: str) -> None:
        """Tell all teachers that the run is over."""
        for peer in list(self.state.teachers):
            self.signals.peer_dismissed.emit(PeerDismissed(peer=peer, last_word=Farewell(reason=reason)))

    async def run(self) -> None:
        """Withdraw late leases, and write changes, until cancelled."""
        try:
            while True:
                await trio.sleep(WRITE_S)
                self.look()
                await self._write()
        finally:
            with trio.CancelScope(shield=True):
                await self._write()

    def look(self) -> None:
        """Withdraw late leases, and the leases of teachers that stay away."""
        self.leases.expire()
        for peer in [one for one, until_s in self._away.items() if trio.current_time() > until_s]:
            self._release(peer, "lost")

    def _dismiss(self, news: PeerBanned) -> None:
        self._release(news.peer, "lost")
        if news.peer in self.state.teachers:
            self._end(news.peer, BANNED)
            self._away.pop(news.peer, None)
            self.signals.peer_dismissed.emit(
                PeerDismissed(peer=news.peer, last_word=Refused(reason=ban_notice(news.why)))
            )

    def _end(self, peer: PeerId, reason: str) -> None:
        if (session := self.state.teachers.pop(peer, None)) is None:
            return
        self._ended.append(presence_row(session, reason))
        self._away[peer] = trio.current_time() + BACK_WITHIN_S
        self.events.emit("teacher_left", peer=peer, reason=reason)
        self.state.notify(leasable=False)

    def _release(self, peer: PeerId, status: str) -> None:
        """Withdraw the open leases of a peer."""
        self._away.pop(peer, None)
        self.leases.release(peer, status)

    def _write_joined(self, peer: PeerId, hello: Hello) -> tuple[bool, int]:
        """Return whether the peer was here before, and the id of its new presence."""
        return write_joined(self.ledger.peers, peer, hello, self.now_ms(), engine=ENGINE.format(hello.engine))

    async def _write(self) -> None:
        with trio.CancelScope(shield=True):  # changes that were taken out must be written
            await trio.to_thread.run_sync(self.unwritten())

    def unwritten(self) -> Callable[[], None]:
        """Return a function that writes pending changes to the ledger. Call it on a thread."""
        ended, self._ended = self._ended, []
        presences: Sequence[PresenceRow] = [
            *ended,
            *(presence_row(session) for session in self.state.teachers.values()),
        ]
        write_leases, now_ms = self.leases.unwritten(), self.now_ms()

        def write() -> None:
            write_leases()
            if presences:
                self.ledger.peers.peers_present(presences, now_ms)

        return write
