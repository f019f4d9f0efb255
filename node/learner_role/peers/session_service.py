"""What peers are answered: who may join, who is here, and whom they are introduced to.

What always holds: a peer that said goodbye, or fell silent for too long, has lost its leases; one whose line broke has
until then to come back and go on with what it still holds, and is granted again what it has lost. What becomes of
leases is `node.learner_role.scheduling.lease_service`'s. The trio thread never waits for the disk: what peers tell us
in passing is written by `run`, a moment later.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from learner.ledger.reputation import BANNED, EXCUSED, OUT_OF_HOURS
from learner.ledger.rows import StayRow
from node.config.engine_requirements import EngineTerms
from node.learner_role.peers.greetings import objection_to, write_joined
from node.learner_role.peers.introducer import Introducer
from node.learner_role.peers.proof_service import ProofService
from node.learner_role.peers.relay_credits import RelayCreditService
from node.learner_role.scheduling.lease_service import LeaseService
from node.learner_role.scheduling.peer_recorder import PeerRecorder
from node.learner_role.shared.context import Service
from node.learner_role.shared.node_troubles import hear_troubles
from node.learner_role.shared.run_state import PeerSession
from node.learner_role.shared.signals import PeerBanned, PeerDismissed
from node.learner_role.shared.stay_counts import PEERS_REMEMBERED, StayCounts, stay_row
from node.learner_role.trust.audit_service import AuditService
from node.learner_role.trust.peer_standings import ban_notice
from node.network.budget_reports import FaultLog
from protocol.accounting.tally import tally_of
from protocol.core.ids import LeaseId, PeerId
from protocol.core.limits import MAX_PEERS_TOLD, PROTOCOL_VERSION
from protocol.reach import Reach, reach_told
from protocol.versions.exchange import PeerAddresses
from protocol.work import (
    IN_GOOD_ORDER,
    LEASE_RECALLS,
    PARTS,
    PROOFS,
    RECEIPT_REVISIONS,
    RELAY_RECEIPTS,
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
"""How often silence and deadlines are looked at."""

STAYS_AT_ONCE, STAY_WRITTEN_S = 100, 10.0
"""How many stays that go on are written with every look, and how often each of many: what a kill loses of them."""

LATELY_MS = 600_000
"""Who was leased anything so long before the last lease of all is let in first after a restart: a swarm may have many
who stand by."""

REACH_SAID_EVERY_S = 10.0
"""How often is said at most how nodes are reached: while many join, that changes with every heartbeat."""

LOGGED_BEATS = Rate(per_s=2.0, burst=20.0)
"""Heartbeats of one peer that are shown, and become a row of the log; the next one says as much as those left out."""

ALL_LOGGED_BEATS = Rate(per_s=5.0, burst=100.0)
"""The same of all peers together, but those left out are still shown: those of 25 peers at the usual period. A log of
two thousand would have nothing else in it."""

HEARD_REACHES = Rate(per_s=0.2, burst=20.0)
"""Changes of how one peer is reached that are taken, the newest of them later if need be. Each may have all be
introduced anew, and is a row of the log."""

WELCOMES_AT_ONCE, WELCOME_EVERY_S = 32, 10.0
"""How often one peer is welcomed: so many times at once, and then once in so many seconds. A stay is a row in the
ledger, a line in the recording and one in the log, so who comes and goes without end would fill the disk. A node whose
line breaks again and again comes back every 11 s at most."""


@dataclass(kw_only=True, eq=False)
class SessionService(Service):
    """Implements `swarm.work.server.WorkHandler`; see the module's paragraph."""

    leases: LeaseService
    relays: RelayCreditService
    proofs: ProofService
    witness: PeerRecorder
    token: str
    heartbeat_s: float
    faults: FaultLog
    introducer: Introducer
    own_reach: Callable[[], Reach] | None = None
    """How the learner itself is reached, and whom it has met."""
    trust: AuditService | None = None
    engines: EngineTerms = field(default_factory=EngineTerms)
    _ended: list[StayRow] = field(default_factory=list)
    _counts: StayCounts = field(default_factory=StayCounts)
    _welcomed_s: dict[PeerId, float] = field(default_factory=dict)
    """Until when each peer has used up its welcomes."""
    _beats: Buckets[PeerId] = field(default_factory=lambda: Buckets(rate=LOGGED_BEATS))
    _all_beats: Bucket = field(default_factory=lambda: Bucket(rate=ALL_LOGGED_BEATS))
    _reaches: Buckets[PeerId] = field(default_factory=lambda: Buckets(rate=HEARD_REACHES))
    _unheard: dict[PeerId, Reach] = field(default_factory=dict)
    """The newest word of peers that are present on how they are reached, until it is taken."""
    _over: bool = False
    _stays_written: int = 0
    _stays_s: float = -math.inf
    _reach_said: str = ""
    _reach_said_s: float = -math.inf

    def __post_init__(self) -> None:
        self.signals.peer_banned.subscribe(self._dismiss)
        self.signals.version_published.subscribe(lambda signed: self.announce_tally(tally_of(signed.manifest) or b""))

    async def welcome(self, peer: PeerId, hello: Hello) -> Welcome | Refused:
        """Check protocol and join token; a Welcome makes the peer present."""
        if objection := objection_to(hello, self.token) or self.engines.objection(hello.ext):
            return Refused(reason=objection)
        if self.trust is not None and (banned := await self.trust.welcome(peer)):
            return Refused(reason=ban_notice(banned))
        if (wait_s := self._too_often(peer)) > 0:
            return Refused(
                reason=f"You came {WELCOMES_AT_ONCE} times in a short while: see why your line breaks, and come again "
                f"in {math.ceil(wait_s)} s.",
                retry_after_ms=math.ceil(wait_s) * 1000,
            )
        known, row = await trio.to_thread.run_sync(self._write_joined, peer, hello)
        if self.trust is not None and (banned := await self.trust.standings.recall_banned(peer)):
            self._ended.append(StayRow(presence=row, bytes_up=0, bytes_down=0, reason=BANNED))
            return Refused(reason=ban_notice(banned))
        # No await from here on, or a ban would find no line to end, and then the peer would be here.
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
            reach=reach_told(hello.ext),
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
        """Note a sign of life and the counts that came with it."""
        self.state.membership.handle(Heard(peer=peer, installed=heartbeat.installed), trio.current_time())
        if (presence := self.state.present.get(peer)) is None:
            return
        left_s, worker = heartbeat.hours_left_s, self.scheduler.worker(peer)
        was_over = worker.until_ms <= self.now_ms()
        worker.until_ms = math.inf if left_s is None else self.now_ms() + 1000 * left_s
        is_back = was_over and left_s != 0  # it may have asked before it said so
        is_newer = heartbeat.installed is not None and worker.installed != heartbeat.installed
        if is_newer:
            worker.installed = heartbeat.installed
        if is_back or is_newer:
            self.leases.serve_now(peer)
        self.leases.remind(peer)
        if self.trust is not None:
            self.trust.revisions.tell(peer)
        if (reach := reach_told(heartbeat.ext)) is not None:
            self._unheard[peer] = reach
            self._hear_reach(peer, presence)
        self._counts.add(peer, presence, heartbeat, self.state.present)
        hear_troubles(self.context, peer, presence.name, heartbeat)
        self.witness.note_heartbeat(peer, heartbeat)
        if self.witness.note_hours(peer, left_s):
            self.signals.peers_changed.emit(None)
        if not self._beats.of(peer).admit(trio.current_time()):
            return
        log = self.events if self._all_beats.admit(trio.current_time()) else self.events.unwritten
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
        """Note when a delivery came, which waits to be judged."""
        self.capacity.leasing.arrives(lease, peer, self.now_ms())

    def take_return(self, peer: PeerId, leases: LeaseReturn) -> None:
        self.state.troubles.gave_back(peer, leases.reason, ChainMap(self.state.present, self.state.teachers))
        self.leases.accept_return(peer, leases)

    def take_relay_receipt(self, peer: PeerId, relayed: Relayed) -> None:
        self.relays.hear(peer, relayed.receipt)

    def take_proof_request(self, peer: PeerId, request: ProofRequest) -> None:
        self.proofs.ask(peer, request)

    def announce_tally(self, tally: bytes) -> None:
        """A version was published with this tally: whoever keeps proofs is told, and asks for its own."""
        self.proofs.announce(tally, [peer for peer, presence in self.state.present.items() if presence.takes_proofs])

    def note_departure(self, peer: PeerId, reason: str) -> None:
        """The peer's line ended. Who said goodbye, or was told that the run is over, is gone; others may come back."""
        self.proofs.forget(peer)
        if reason == IN_GOOD_ORDER or self._over:
            self._lose(self.state.membership.handle(Gone(peer=peer, reason=reason), trio.current_time()))
        elif self._end_presence(peer, self._reason_of(peer, reason)):
            self._forget(peer)
            self.events.emit("peer_left", peer=peer, reason=reason, leases_released=0)
            self.introducer.note(peer)

    async def run(self) -> None:
        """Look for silent peers and late leases, and write what changed; until cancelled.

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
        """After a restart: how peers were reached, and how they met, as far as the ledger knows. Waits for the disk."""
        peers = self.ledger.peers
        learners = {self.identity.keypair.peer_id, *(one.peer for one in peers.all("learner"))}
        self.state.reaches.recall(learners, peers.reach(), peers.met())

    def recover_leases(self) -> list[PeerId]:
        """After a restart: leases that are still open belong to peers that may come back. Who is not back in time once
        deliveries are judged loses them, which is held against nobody. Return whom work waits for: those who were
        leased any lately."""
        for peer in dict.fromkeys(self.leases.recover()):
            self.state.membership.handle(Awaited(peer=peer), trio.current_time())
        return self.ledger.work.leased_lately(LATELY_MS)

    def note_copy(self, peer: PeerId, hello: Hello) -> None:
        """A second process with the key of a peer that is here was turned away."""
        if self.faults.admit(peer) is not None:
            self.events.emit("key_copied", peer=peer, name=hello.name, machine=hello.machine)

    def farewell(self, reason: str) -> None:
        """Tell everybody that the run is over: whose line ends now has left."""
        self._over = True
        for peer in list(self.state.present):
            self.signals.peer_dismissed.emit(PeerDismissed(peer=peer, last_word=Farewell(reason=reason)))

    def peers(self) -> list[PeerAddresses]:
        """Those present, as many as one answer names, with the addresses they may be dialled at."""
        told = list(self.state.present.items())[:MAX_PEERS_TOLD]
        return [PeerAddresses(peer=peer, addresses=list(presence.addresses)) for peer, presence in told]

    def _too_often(self, peer: PeerId) -> float:
        """Seconds until the peer may be welcomed again; 0 if it may be now, which counts."""
        now = trio.current_time()
        if len(self._welcomed_s) >= PEERS_REMEMBERED:
            self._welcomed_s = {one: until for one, until in self._welcomed_s.items() if until > now}
        until = max(now, self._welcomed_s.get(peer, now))
        over_s = until + WELCOME_EVERY_S - now - WELCOMES_AT_ONCE * WELCOME_EVERY_S
        if over_s <= 0:
            self._welcomed_s[peer] = until + WELCOME_EVERY_S
        return max(0.0, over_s)

    def _write_joined(self, peer: PeerId, hello: Hello) -> tuple[bool, int]:
        """Return whether the peer was here before, and the id of its new stay."""
        return write_joined(self.ledger.peers, peer, hello, self.now_ms())

    def _hear_reach(self, peer: PeerId, presence: PeerSession) -> None:
        """Note how a node says it is reached, and introduce it anew where that changes for whom, or where."""
        before, reach = presence.reach, self._unheard[peer]
        if reach != before and not self._reaches.of(peer).admit(trio.current_time()):
            return  # a later round looks again
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
        """Note how the learner itself is reached, and peers that changed too often; say how all are if that is news."""
        for peer in list(self._unheard):
            self._hear_reach(peer, self.state.present[peer])
        if self.own_reach is not None:
            self._note_reach(self.identity.keypair.peer_id, self.own_reach())
        text, now_s = self.state.reaches.figures.text, trio.current_time()
        if text != self._reach_said and now_s - self._reach_said_s >= REACH_SAID_EVERY_S:
            self._reach_said, self._reach_said_s = text, now_s
            self.events.emit("nodes_reached", text=text)

    def _dismiss(self, news: PeerBanned) -> None:
        """The peer is not welcome any more: it loses its leases and its line."""
        losses = self.state.membership.handle(Gone(peer=news.peer, reason=BANNED), trio.current_time())
        self._lose(losses, Refused(reason=ban_notice(news.why)))

    def _lose(self, losses: Sequence[Lost], last_word: Refused | None = None) -> None:
        for lost in losses:
            reason = self._reason_of(lost.peer, lost.reason)  # before what it said of its hours is forgotten
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
        """Why its stay ended, as the ledger has it: nobody vanishes while nothing is expected of him."""
        worker = self.scheduler.workers.get(peer)
        is_over = worker is not None and worker.until_ms <= self.now_ms()
        return OUT_OF_HOURS if is_over and reason not in EXCUSED else reason

    def _end_presence(self, peer: PeerId, reason: str) -> bool:
        """Whether the peer was present until now."""
        if (presence := self.state.present.pop(peer, None)) is None:
            return False
        self._unheard.pop(peer, None)
        presence.switch(on=presence.is_on, now_s=trio.current_time())
        self._ended.append(stay_row(presence, reason))
        self.signals.peers_changed.emit(None)
        self.witness.note_leaving(peer, reason)
        self.state.notify()
        return True

    def _forget(self, peer: PeerId) -> None:
        """What waited for this line to be told."""
        if self.trust is not None:
            self.trust.forget(peer)

    def write_rest(self) -> None:
        """Write what happened after `run` was told to stop: called when nothing else can happen."""
        self._unwritten(everybody=True)()

    async def _write(self, *, everybody: bool = False) -> None:
        with trio.CancelScope(shield=True):  # what is taken to be written is written
            await trio.to_thread.run_sync(self._unwritten(everybody=everybody))

    def _next_here(self) -> list[PeerSession]:
        """Those present whose stay is written now: all of them where they are few, else the next in turn."""
        here, now_s = list(self.state.present.values()), trio.current_time()
        if now_s < self._stays_s + TICK_S:
            return []  # leases were withdrawn, and are written at once; stays have time
        self._stays_s = now_s
        count = max(STAYS_AT_ONCE, math.ceil(len(here) * TICK_S / STAY_WRITTEN_S))
        first = self._stays_written % len(here) if len(here) > count else 0
        self._stays_written = first + count
        return (here + here)[first : first + min(count, len(here))]

    def _unwritten(self, *, everybody: bool = False) -> Callable[[], None]:
        """What the ledger does not know yet, to be called on a thread; `everybody`: the stays of all who are here."""
        ended, self._ended = self._ended, []
        here = list(self.state.present.values()) if everybody else self._next_here()
        for presence in here:
            presence.switch(on=presence.is_on, now_s=trio.current_time())
        stays = [*ended, *map(stay_row, here)]
        write_leases, now_ms = self.leases.write(), self.now_ms()
        write_trust = None if self.trust is None else self.trust.revisions.write()
        troubles, (reaches, met) = self.state.troubles.unwritten(), self.state.reaches.unwritten()

        def write() -> None:
            write_leases()
            if write_trust is not None:
                write_trust()
            if stays:
                self.ledger.peers.peers_present(stays, now_ms)
            if troubles:
                self.ledger.peers.troubles_told(troubles)
            if reaches or met:
                self.ledger.peers.reach_told(reaches, met)

        return write
