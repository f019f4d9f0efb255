"""Manage the sessions of rollout nodes: who may join, who is here, and their heartbeats.

`node.learner_role.scheduling.lease_service` decides about leases. The trio thread never waits for the disk, except in
`welcome`: other changes are written by `run`, a moment later.

Invariants:

- A peer that said goodbye, or timed out, has lost its leases.
- A peer whose connection broke may return before its timeout. It continues the leases that it still holds, and is
  granted again those that it has lost.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from learner.ledger.reputation import BANNED, EXCUSED, OUT_OF_HOURS
from learner.ledger.rows import PresenceRow
from node.config.engine_requirements import EngineTerms
from node.learner_role.peers.greetings import objection_to, write_joined
from node.learner_role.peers.introducer import Introducer
from node.learner_role.peers.proof_service import ProofService
from node.learner_role.peers.relay_credits import RelayCreditService
from node.learner_role.scheduling.lease_service import LeaseService
from node.learner_role.scheduling.peer_recorder import PeerRecorder
from node.learner_role.shared.context import Service
from node.learner_role.shared.node_troubles import hear_troubles
from node.learner_role.shared.presence_counts import PEERS_REMEMBERED, PresenceCounts, presence_row
from node.learner_role.shared.run_state import PeerSession
from node.learner_role.shared.signals import PeerBanned, PeerDismissed
from node.learner_role.trust.audit_service import AuditService
from node.learner_role.trust.peer_standings import ban_notice
from node.network.budget_reports import FaultLog
from protocol.accounting.tally import tally_of
from protocol.core.ids import LeaseId, PeerId
from protocol.core.limits import MAX_PEERS_TOLD, PROTOCOL_VERSION
from protocol.reach import Reach, reach_from
from protocol.versions.exchange import PeerAddresses
from protocol.work import (
    IN_GOOD_ORDER,
    LEASE_RECALLS,
    PARTS,
    PROOFS,
    RECEIPT_REVISIONS,
    RELAY_RECEIPTS,
    WINDOW,
    Farewell,
    Grant,
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
from swarm.transport.event_rate import Bucket, Buckets, Rate
from swarm.work.membership import Awaited, Gone, Heard, Joined, Lost, Opened, Tick

TICK_S = 1.0
"""Seconds between two looks for timeouts and deadlines."""

PRESENCES_AT_ONCE, PRESENCE_WRITTEN_S = 100, 10.0
"""Presences that are written with each look, and seconds between two writes of each presence if there are many. A kill
loses at most that much."""

LATELY_MS = 600_000
"""Milliseconds before the last lease of all. Peers that had a lease in that time are let in first after a restart,
because a swarm may have many peers on standby."""

REACH_SAID_EVERY_S = 10.0
"""Least seconds between two summaries of how nodes are reached. While many join, it changes with every heartbeat."""

LOGGED_HEARTBEATS = Rate(per_s=2.0, burst=20.0)
"""Heartbeats of one peer that are shown and logged. The next one contains all that was left out."""

ALL_LOGGED_HEARTBEATS = Rate(per_s=5.0, burst=100.0)
"""Heartbeats of all peers together that are logged: those of 25 peers at the usual period. Others are only shown. With
two thousand peers, the log would contain nothing else."""

HEARD_REACHES = Rate(per_s=0.2, burst=20.0)
"""Changes of one peer's reach that are processed. If there are more, the newest is processed later. Each change may
cause introductions to all peers, and is a line of the log."""

WELCOMES_AT_ONCE, WELCOME_EVERY_S = 32, 10.0
"""Welcomes of one peer at once, and seconds for each further one. A presence is a row in the ledger, a line in the
recording and one in the log, so a peer that comes and goes without end would fill the disk. An honest node whose
connection breaks repeatedly returns every 11 s at most."""


@dataclass(kw_only=True, eq=False)
class SessionService(Service):
    """Implements `swarm.work.server.WorkHandler` for rollout nodes."""

    leases: LeaseService
    relays: RelayCreditService
    proofs: ProofService
    witness: PeerRecorder
    token: str
    heartbeat_s: float
    faults: FaultLog
    introducer: Introducer
    own_reach: Callable[[], Reach] | None = None
    """Returns how the learner itself is reached, and which peers it has met."""
    trust: AuditService | None = None
    engines: EngineTerms = field(default_factory=EngineTerms)
    _ended: list[PresenceRow] = field(default_factory=list)
    _counts: PresenceCounts = field(default_factory=PresenceCounts)
    _welcomed_s: dict[PeerId, float] = field(default_factory=dict)
    """By peer: the time until which it has used up its welcomes."""
    _heartbeats: Buckets[PeerId] = field(default_factory=lambda: Buckets(rate=LOGGED_HEARTBEATS))
    _all_heartbeats: Bucket = field(default_factory=lambda: Bucket(rate=ALL_LOGGED_HEARTBEATS))
    _reaches: Buckets[PeerId] = field(default_factory=lambda: Buckets(rate=HEARD_REACHES))
    _unheard: dict[PeerId, Reach] = field(default_factory=dict)
    """By present peer: its newest reach, until that is processed."""
    _over: bool = False
    _presences_written: int = 0
    _presences_s: float = -math.inf
    _reach_said: str = ""
    _reach_said_s: float = -math.inf

    def __post_init__(self) -> None:
        self.signals.peer_banned.subscribe(self._dismiss)
        self.signals.version_published.subscribe(lambda signed: self.announce_tally(tally_of(signed.manifest) or b""))

    async def welcome(self, peer: PeerId, hello: Hello) -> Welcome | Refused:
        """Check protocol and join token. A peer that gets a Welcome is present from then on."""
        if objection := objection_to(hello, self.token) or self.engines.objection(hello.ext):
            return Refused(reason=objection)
        if self.trust is not None and (banned := await self.trust.welcome(peer)):
            return Refused(reason=ban_notice(banned))
        if (wait_s := self._too_often(peer)) > 0:
            return Refused(
                reason=f"You connected {WELCOMES_AT_ONCE} times in a short time: find out why your connection breaks, "
                f"and connect again in {math.ceil(wait_s)} s.",
                retry_after_ms=math.ceil(wait_s) * 1000,
            )
        known, row = await trio.to_thread.run_sync(self._write_joined, peer, hello)
        if self.trust is not None and (banned := await self.trust.standings.recall_banned(peer)):
            self._ended.append(PresenceRow(presence=row, bytes_up=0, bytes_down=0, reason=BANNED))
            return Refused(reason=ban_notice(banned))
        # No await from here on: a ban in between would find no connection to end, and the peer would be present.
        if known:
            self._counts.is_back(peer)
        for lost in self.state.membership.handle(Joined(peer=peer), trio.current_time()):
            self._end_presence(peer, lost.reason)
        self.leases.recollect(peer, {LeaseId(lease) for lease in hello.leases})
        self.scheduler.worker(peer).takes_parts = PARTS in hello.ext
        self.state.present[peer] = PeerSession(
            row=row,
            name=hello.name,
            addresses=tuple(hello.addresses),
            takes_recalls=LEASE_RECALLS in hello.ext,
            takes_proofs=PROOFS in hello.ext,
            takes_revisions=RECEIPT_REVISIONS in hello.ext,
            takes_windows=WINDOW in hello.ext,
            reach=reach_from(hello.ext),
        )
        if (reach := self.state.present[peer].reach) is not None:
            self._note_reach(peer, reach)
        if self.trust is not None:
            self.trust.standings.set_quota(peer)
        self.events.emit("peer_joined", peer=peer, name=hello.name, engine=hello.engine, machine=hello.machine)
        self.witness.note_joining(peer, hello)
        self.signals.peers_changed.emit(None)
        neighbours = self.introducer.greet(peer)
        self.state.notify()
        return Welcome(
            protocol=PROTOCOL_VERSION,
            now_ms=self.now_ms(),
            heartbeat_ms=round(self.heartbeat_s * 1000),
            staleness=self.capacity.window,
            publish_every=self.state.kappa,
            newest=self.state.published.version if self.state.published else None,
            peers=neighbours,
            ext={RELAY_RECEIPTS: b"", PROOFS: b"", PARTS: b""},
        )

    async def grant(self, peer: PeerId, request: LeaseRequest) -> Grant:
        return await self.leases.grant(peer, request)

    def take_heartbeat(self, peer: PeerId, heartbeat: Heartbeat) -> None:
        """Note a heartbeat and its counts."""
        self.state.membership.handle(Heard(peer=peer, installed=heartbeat.installed), trio.current_time())
        if (presence := self.state.present.get(peer)) is None:
            return
        left_s, worker = heartbeat.hours_left_s, self.scheduler.worker(peer)
        was_over = worker.until_ms <= self.now_ms()
        worker.until_ms = math.inf if left_s is None else self.now_ms() + 1000 * left_s
        is_back = was_over and left_s != 0  # it may have requested leases before this heartbeat
        is_newer = heartbeat.installed is not None and worker.installed != heartbeat.installed
        if is_newer:
            worker.installed = heartbeat.installed
        if is_back or is_newer:
            self.leases.serve_now(peer)
        self.leases.remind(peer)
        if self.trust is not None:
            self.trust.revisions.tell(peer)
        if (reach := reach_from(heartbeat.ext)) is not None:
            self._unheard[peer] = reach
            self._hear_reach(peer, presence)
        self._counts.add(peer, presence, heartbeat, self.state.present)
        hear_troubles(self.context, peer, presence.name, heartbeat)
        self.witness.note_heartbeat(peer, heartbeat)
        if self.witness.note_hours(peer, left_s):
            self.signals.peers_changed.emit(None)
        if not self._heartbeats.of(peer).admit(trio.current_time()):
            return
        log = self.events if self._all_heartbeats.admit(trio.current_time()) else self.events.unwritten
        log.emit(
            "heartbeat",
            peer=peer,
            name=presence.name,
            installed=str(heartbeat.installed) if heartbeat.installed else None,
            pending=heartbeat.pending,
            bytes_up=heartbeat.bytes_up,
            bytes_down=heartbeat.bytes_down,
        )

    def take_start(self, peer: PeerId, started: Started) -> None:
        self.leases.note_start(peer, started)

    def note_delivery(self, peer: PeerId, lease: LeaseId) -> None:
        """Note when a delivery arrived, which waits to be judged."""
        self.capacity.leasing.arrives(lease, peer, self.now_ms())

    def take_return(self, peer: PeerId, leases: LeaseReturn) -> None:
        self.state.troubles.gave_back(peer, leases.reason, ChainMap(self.state.present, self.state.teachers))
        self.leases.accept_return(peer, leases)

    def take_relay_receipt(self, peer: PeerId, relayed: Relayed) -> None:
        self.relays.hear(peer, relayed.receipt)

    def take_proof_request(self, peer: PeerId, request: ProofRequest) -> None:
        self.proofs.ask(peer, request)

    def announce_tally(self, tally: bytes) -> None:
        """Tell peers that keep proofs that a version was published with this tally, so that they ask for theirs."""
        self.proofs.announce(tally, [peer for peer, presence in self.state.present.items() if presence.takes_proofs])

    def note_departure(self, peer: PeerId, reason: str) -> None:
        """Note that a peer's connection ended.

        A peer that said goodbye, or was told that the run is over, is gone. Others may return.
        """
        self.proofs.forget(peer)
        if reason == IN_GOOD_ORDER or self._over:
            self._lose(self.state.membership.handle(Gone(peer=peer, reason=reason), trio.current_time()))
        elif self._end_presence(peer, self._reason_of(peer, reason)):
            self._forget(peer)
            self.events.emit("peer_left", peer=peer, reason=reason, leases_released=0)
            self.introducer.note(peer)

    async def run(self) -> None:
        """Look for timeouts and late leases, and write changes, until cancelled.

        Wakes every TICK_S, and at once when a lease was withdrawn.
        """
        try:
            while True:
                with trio.move_on_after(TICK_S):
                    await self.leases.changed.wait()
                self.leases.changed = trio.Event()
                if self.state.opened.is_set() and not self.state.membership.is_open:
                    self.state.membership.handle(Opened(), trio.current_time())
                self._lose(self.state.membership.handle(Tick(), trio.current_time()))
                self.leases.expire()
                self.leases.give_up_begun()
                self._look_at_reach()
                self.introducer.tell_late()
                await self._write()
        finally:
            with trio.CancelScope(shield=True):
                await self._write(everybody=True)

    def recall_reach(self) -> None:
        """After a restart: read from the ledger how peers were reached, and how they met. Waits for the disk."""
        peers = self.ledger.peers
        learners = {self.identity.keypair.peer_id, *(one.peer for one in peers.all("learner"))}
        self.state.reaches.recall(learners, peers.reach(), peers.met())

    def recover_leases(self) -> list[PeerId]:
        """After a restart: take up open leases, whose peers may return.

        A peer that is not back in time once deliveries are judged loses its leases, which does not count against it.
        Returns the peers that had leases lately, and are let in first.
        """
        for peer in dict.fromkeys(self.leases.recover()):
            self.state.membership.handle(Awaited(peer=peer), trio.current_time())
        return self.ledger.work.leased_lately(LATELY_MS)

    def note_copy(self, peer: PeerId, hello: Hello) -> None:
        """Note that a second process with the key of a present peer was refused."""
        if self.faults.admit(peer) is not None:
            self.events.emit("key_copied", peer=peer, name=hello.name, machine=hello.machine)

    def farewell(self, reason: str) -> None:
        """Tell all peers that the run is over. A peer whose connection ends from now on has left."""
        self._over = True
        for peer in list(self.state.present):
            self.signals.peer_dismissed.emit(PeerDismissed(peer=peer, last_word=Farewell(reason=reason)))

    def peers(self) -> list[PeerAddresses]:
        """Return present peers with their addresses, as many as one answer may have."""
        told = list(self.state.present.items())[:MAX_PEERS_TOLD]
        return [PeerAddresses(peer=peer, addresses=list(presence.addresses)) for peer, presence in told]

    def _too_often(self, peer: PeerId) -> float:
        """Return the seconds until the peer may be welcomed again. If they are 0, count this welcome."""
        now = trio.current_time()
        if len(self._welcomed_s) >= PEERS_REMEMBERED:
            self._welcomed_s = {one: until for one, until in self._welcomed_s.items() if until > now}
        until = max(now, self._welcomed_s.get(peer, now))
        over_s = until + WELCOME_EVERY_S - now - WELCOMES_AT_ONCE * WELCOME_EVERY_S
        if over_s <= 0:
            self._welcomed_s[peer] = until + WELCOME_EVERY_S
        return max(0.0, over_s)

    def _write_joined(self, peer: PeerId, hello: Hello) -> tuple[bool, int]:
        """Return whether the peer was here before, and the id of its new presence."""
        return write_joined(self.ledger.peers, peer, hello, self.now_ms())

    def _hear_reach(self, peer: PeerId, presence: PeerSession) -> None:
        """Note how a node reports that it is reached, and introduce it again if its kind or its addresses changed."""
        before, reach = presence.reach, self._unheard[peer]
        if reach != before and not self._reaches.of(peer).admit(trio.current_time()):
            return  # a later round tries again
        del self._unheard[peer]
        if reach == before:
            return
        presence.reach = reach
        self._note_reach(peer, reach)
        if before is None or (before.kind, before.why) != (reach.kind, reach.why):
            self.events.emit("peer_reach", peer=peer, name=presence.name, kind=reach.kind.value, why=reach.why)
        if before is None or (before.kind, before.addresses, before.relays) != (
            reach.kind,
            reach.addresses,
            reach.relays,
        ):
            self.introducer.note(peer)

    def _note_reach(self, peer: PeerId, reach: Reach) -> None:
        self.state.reaches.hear(peer, reach, self.state.present, self.now_ms())

    def _look_at_reach(self) -> None:
        """Note how the learner itself is reached, and peers that changed too often. Log a summary if it is news."""
        for peer in list(self._unheard):
            self._hear_reach(peer, self.state.present[peer])
        if self.own_reach is not None:
            self._note_reach(self.identity.keypair.peer_id, self.own_reach())
        text, now_s = self.state.reaches.figures.text, trio.current_time()
        if text != self._reach_said and now_s - self._reach_said_s >= REACH_SAID_EVERY_S:
            self._reach_said, self._reach_said_s = text, now_s
            self.events.emit("nodes_reached", text=text)

    def _dismiss(self, news: PeerBanned) -> None:
        """End a banned peer's leases and its connection."""
        losses = self.state.membership.handle(Gone(peer=news.peer, reason=BANNED), trio.current_time())
        self._lose(losses, Refused(reason=ban_notice(news.why)))

    def _lose(self, losses: Sequence[Lost], last_word: Refused | None = None) -> None:
        for lost in losses:
            reason = self._reason_of(lost.peer, lost.reason)  # before the peer's hours are forgotten
            self.scheduler.forget(lost.peer)
            released = self.leases.release(lost.peer)
            self._end_presence(lost.peer, reason)
            self._forget(lost.peer)
            self.events.emit("peer_left", peer=lost.peer, reason=lost.reason, leases_released=released)
            said = last_word or Refused(reason=lost.reason, retry_after_ms=1000)
            self.signals.peer_dismissed.emit(PeerDismissed(peer=lost.peer, last_word=said))
        if losses:
            self.introducer.note(*(lost.peer for lost in losses))

    def _reason_of(self, peer: PeerId, reason: str) -> str:
        """Return why a presence ended, for the ledger. Outside its hours, nothing is expected of a peer."""
        worker = self.scheduler.workers.get(peer)
        is_over = worker is not None and worker.until_ms <= self.now_ms()
        return OUT_OF_HOURS if is_over and reason not in EXCUSED else reason

    def _end_presence(self, peer: PeerId, reason: str) -> bool:
        """End a peer's stay, and return whether it was present until now."""
        if (presence := self.state.present.pop(peer, None)) is None:
            return False
        self._unheard.pop(peer, None)
        presence.switch(is_active=presence.is_active, now_s=trio.current_time())
        self._ended.append(presence_row(presence, reason))
        self.signals.peers_changed.emit(None)
        self.witness.note_leaving(peer, reason)
        self.state.notify()
        return True

    def _forget(self, peer: PeerId) -> None:
        """Forget the messages that waited for this peer's connection."""
        if self.trust is not None:
            self.trust.forget(peer)

    def write_rest(self) -> None:
        """Write the changes since `run` was stopped. It is called when nothing else can happen."""
        self._unwritten(everybody=True)()

    async def _write(self, *, everybody: bool = False) -> None:
        with trio.CancelScope(shield=True):  # changes that were taken out must be written
            await trio.to_thread.run_sync(self._unwritten(everybody=everybody))

    def _next_here(self) -> list[PeerSession]:
        """Return the sessions whose stay is written now: all if they are few, otherwise the next in turn."""
        here, now_s = list(self.state.present.values()), trio.current_time()
        if now_s < self._presences_s + TICK_S:
            return []  # only withdrawn leases are written at once
        self._presences_s = now_s
        count = max(PRESENCES_AT_ONCE, math.ceil(len(here) * TICK_S / PRESENCE_WRITTEN_S))
        first = self._presences_written % len(here) if len(here) > count else 0
        self._presences_written = first + count
        return (here + here)[first : first + min(count, len(here))]

    def _unwritten(self, *, everybody: bool = False) -> Callable[[], None]:
        """Return a function that writes pending changes to the ledger. Call it on a thread.

        `everybody`: include the presences of all present peers.
        """
        ended, self._ended = self._ended, []
        here = list(self.state.present.values()) if everybody else self._next_here()
        for presence in here:
            presence.switch(is_active=presence.is_active, now_s=trio.current_time())
        presences = [*ended, *map(presence_row, here)]
        write_leases, now_ms = self.leases.write(), self.now_ms()
        write_trust = None if self.trust is None else self.trust.revisions.write()
        troubles, (reaches, met) = self.state.troubles.unwritten(), self.state.reaches.unwritten()

        def write() -> None:
            write_leases()
            if write_trust is not None:
                write_trust()
            if presences:
                self.ledger.peers.peers_present(presences, now_ms)
            if troubles:
                self.ledger.peers.write_troubles(troubles)
            if reaches or met:
                self.ledger.peers.write_reach(reaches, met)

        return write
