"""What peers are answered: who may join, who gets which lease, and what happens to leases whose holder is gone.

What always holds: a lease is in the ledger before it is handed out; a peer that said goodbye, fell silent for too long
or gave a lease back has lost it, and what is issued instead has a new id and new seeds; a peer whose line broke has
until then to come back and go on with what it says it still holds. The trio thread never waits for the disk: what
peers tell us in passing is written by `watch`, a moment later.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from learner.intake import GrantedLease
from learner.leasing import own_lease
from learner.ledger import LeaseRow, Ledger, PeerRow, StayRow
from learner.workload import Held
from node.events import EventLog
from node.learner_run import LearnerRun, Presence
from node.relay_desk import RelayDesk
from node.witness import Witness
from protocol.exchange import PeerAddresses
from protocol.identity import Keypair
from protocol.ids import LeaseId, PeerId, PolicyVersion, SwarmId
from protocol.limits import MAX_PEERS_TOLD, PROTOCOL_VERSION
from protocol.work import (
    RELAY_RECEIPTS,
    Farewell,
    Grant,
    Heartbeat,
    Hello,
    Introduction,
    LeaseRequest,
    LeaseReturn,
    Refused,
    Relayed,
    Started,
    Welcome,
    sign_lease,
)
from swarm.membership import Gone, Heard, Joined, Lost, Tick
from swarm.neighbourhood import neighbourhoods
from swarm.reception import IN_GOOD_ORDER, Reception

GRANT_WAIT_S = 10.0
"""How long a request for leases is held open before it is answered with none."""

GRANT_RETRY_MS = 100
"""When to ask again after that: at once, since it is here that a request waits."""

LATE_GRACE_MS = 2_000
"""A lease is withdrawn this long after its deadline, so that a delivery under way hears LATE with its figures."""

TICK_S = 1.0
"""How often silence and deadlines are looked at."""

PEERS_REMEMBERED = 4096
"""Peers whose last heartbeat is remembered after they have left, so that what it counted is not counted again."""


@dataclass(kw_only=True, eq=False)
class _Waiting:
    """A request for leases that is held open."""

    leases: list[GrantedLease] = field(default_factory=list)
    answered: trio.Event = field(default_factory=trio.Event)


@dataclass(kw_only=True)
class LearnerDesk:
    """Implements `swarm.reception.Desk`; see the module's paragraph."""

    run: LearnerRun
    ledger: Ledger
    relays: RelayDesk
    witness: Witness
    keypair: Keypair
    swarm: SwarmId
    token: str
    heartbeat_s: float
    now_ms: Callable[[], int]
    events: EventLog
    peers_changed: Callable[[], None] = lambda: None
    reception: Reception | None = None
    _closed: dict[LeaseId, str] = field(default_factory=dict)
    _started: dict[LeaseId, PolicyVersion] = field(default_factory=dict)
    _ended: list[StayRow] = field(default_factory=list)
    _counted: dict[PeerId, Heartbeat | None] = field(default_factory=dict)
    _introduced: dict[PeerId, list[PeerAddresses]] = field(default_factory=dict)
    _waiting: dict[PeerId, _Waiting] = field(default_factory=dict)
    _work: trio.Event = field(default_factory=trio.Event)

    async def welcome(self, peer: PeerId, hello: Hello) -> Welcome | Refused:
        """Check protocol and join token; a Welcome makes the peer present."""
        if hello.protocol != PROTOCOL_VERSION:
            return Refused(
                reason=f"You speak protocol {hello.protocol}, this swarm {PROTOCOL_VERSION}: use a matching volery."
            )
        if not hmac.compare_digest(hello.token.encode(), self.token.encode()):
            return Refused(reason="The join token is missing or wrong. Ask the operator for a new invite.")
        known, row = await trio.to_thread.run_sync(self._write_joined, peer, hello)
        if known:
            self._counted.setdefault(peer, None)
        for lost in self.run.membership.handle(Joined(peer=peer), trio.current_time()):
            self._end_presence(peer, lost.reason)
        self._forget_but(peer, {LeaseId(lease) for lease in hello.leases})
        self.run.present[peer] = Presence(row=row, name=hello.name, addresses=tuple(hello.addresses))
        self.events.emit("peer_joined", peer=peer, name=hello.name, engine=hello.engine, machine=hello.machine)
        self.witness.joined(peer, hello)
        self.peers_changed()
        self._introduce()
        self.run.notify()
        return Welcome(
            protocol=PROTOCOL_VERSION,
            now_ms=self.now_ms(),
            heartbeat_ms=round(self.heartbeat_s * 1000),
            staleness=self.run.window,
            publish_every=self.run.kappa,
            newest=self.run.published.version if self.run.published else None,
            peers=self._neighbours()[peer],
            ext={RELAY_RECEIPTS: b""},
        )

    async def grant(self, peer: PeerId, request: LeaseRequest) -> Grant:
        """Wait for room, then lease as much as was asked for, as the pace allows, and as the peer can do in time."""
        leases = await self._wait_granted(peer, request.rollouts)
        if not leases:
            why = "The run is finished." if self.run.finished else self._why_not(peer)
            return Grant(leases=[], now_ms=self.now_ms(), reason=why, retry_after_ms=GRANT_RETRY_MS)
        issued = [(granted, sign_lease(self.keypair, self.swarm, granted.lease)) for granted in leases]
        ids = [granted.id for granted, _ in issued]
        rows = [_row(granted, raw) for granted, raw in issued]
        try:
            await trio.to_thread.run_sync(self.ledger.leases_issued, rows)
        except BaseException:  # the peer has left, or asks anew, and will never hear of these
            self._withdrawn(self.run.leasing.give_back(peer, ids), "lost")
            raise
        # What was withdrawn while we wrote was closed before it was there; close it again.
        self._close([lease for lease in ids if lease not in self.run.leasing.open], "lost")
        return Grant(leases=[raw for _, raw in issued], now_ms=self.now_ms())

    def heard(self, peer: PeerId, heartbeat: Heartbeat) -> None:
        """Note a sign of life and the counts that came with it."""
        self.run.membership.handle(Heard(peer=peer, installed=heartbeat.installed), trio.current_time())
        if (presence := self.run.present.get(peer)) is None:
            return
        if heartbeat.installed is not None and self.run.worker(peer).installed != heartbeat.installed:
            self.run.worker(peer).installed = heartbeat.installed
            self._serve(peer)
        self._count(peer, presence, heartbeat)
        self.witness.heard(peer, heartbeat)
        self.events.emit(
            "heartbeat",
            peer=peer,
            name=presence.name,
            installed=str(heartbeat.installed) if heartbeat.installed else None,
            pending=heartbeat.pending,
            bytes_up=heartbeat.bytes_up,
            bytes_down=heartbeat.bytes_down,
        )

    def started(self, peer: PeerId, started: Started) -> None:
        """Note which version a lease is generated with; the first word counts."""
        lease = LeaseId(started.lease)
        if self.run.started(peer, lease, started.version, self.now_ms()):
            self._started[lease] = started.version
            self.witness.started(lease)

    def returned(self, peer: PeerId, leases: LeaseReturn) -> None:
        """Take leases back."""
        back = self.run.leasing.give_back(peer, [LeaseId(lease) for lease in dict.fromkeys(leases.leases)])
        self._withdrawn(back, "returned")
        self.events.emit("leases_returned", peer=peer, leases=len(back), reason=leases.reason)

    def relayed(self, peer: PeerId, relayed: Relayed) -> None:
        """Hand on who relayed a version to the peer."""
        self.relays.heard(peer, relayed.receipt)

    def left(self, peer: PeerId, reason: str) -> None:
        """The peer's line ended. After a goodbye its leases go to others at once, else when it stays away."""
        if reason == IN_GOOD_ORDER:
            self._lose(self.run.membership.handle(Gone(peer=peer, reason=reason), trio.current_time()))
        elif self._end_presence(peer, reason):
            self.events.emit("peer_left", peer=peer, reason=reason, leases_released=0)
            self._introduce()

    async def watch(self) -> None:
        """Look for silent peers and late leases, and write what changed; until cancelled.

        Wakes every TICK_S, and at once when a lease was withdrawn.
        """
        try:
            while True:
                with trio.move_on_after(TICK_S):
                    await self._work.wait()
                self._work = trio.Event()
                self._lose(self.run.membership.handle(Tick(), trio.current_time()))
                self._withdrawn(self.run.leasing.expire(self.now_ms(), LATE_GRACE_MS), "expired")
                await self._write()
        finally:
            with trio.CancelScope(shield=True):
                await self._write()

    def recover_leases(self) -> None:
        """After a restart: leases that are still open belong to peers that may come back; silence releases them."""
        for row in self.ledger.open_leases():
            lease = own_lease(row.envelope, self.swarm)
            self.run.leasing.recover(GrantedLease(lease=lease, prompt_index=row.prompt))
            self.run.membership.handle(Joined(peer=row.peer), trio.current_time())

    def farewell(self, reason: str) -> None:
        """Tell everybody that the run is over."""
        if self.reception is not None:
            for peer in list(self.run.present):
                self.reception.dismiss(peer, Farewell(reason=reason))

    def peers(self) -> list[PeerAddresses]:
        """Those present, as many as one answer names, with the addresses they may be dialled at."""
        told = list(self.run.present.items())[:MAX_PEERS_TOLD]
        return [PeerAddresses(peer=peer, addresses=list(presence.addresses)) for peer, presence in told]

    def _write_joined(self, peer: PeerId, hello: Hello) -> tuple[bool, int]:
        """Return whether the peer was here before, and the id of its new stay."""
        row = PeerRow(
            peer=peer,
            name=hello.name,
            role="rollout",
            engine=hello.engine,
            machine=hello.machine,
            micros_per_hour=hello.price.micros_per_hour,
            currency=hello.price.currency,
        )
        return self.ledger.knows(peer), self.ledger.peer_joined(row, self.now_ms())

    async def _wait_granted(self, peer: PeerId, rollouts: int) -> list[GrantedLease]:
        """Ask the workload for the peer, and wait for its turn; nothing after GRANT_WAIT_S, or when the run is over."""
        if self.run.finished or peer not in self.run.present:
            return []
        waiting = self._waiting[peer] = _Waiting()
        self.run.ask(peer, rollouts)
        try:
            with trio.move_on_after(GRANT_WAIT_S):
                self._serve(peer)
                await waiting.answered.wait()
            return waiting.leases
        except trio.Cancelled:  # the peer has left, or asks anew, and will never hear of these
            self._withdrawn(self.run.leasing.give_back(peer, [granted.id for granted in waiting.leases]), "lost")
            raise
        finally:
            if self._waiting.get(peer) is waiting:
                del self._waiting[peer]
                self.run.withdraw(peer)

    def _serve(self, only: PeerId | None = None) -> None:
        """Hand out what can be leased now; with the run over, tell all that wait."""
        if self.run.finished:
            for waiting in self._waiting.values():
                waiting.answered.set()
            return
        for peer, leases in self.run.serve(self.now_ms(), only):
            waiting = self._waiting[peer]
            waiting.leases = leases
            waiting.answered.set()

    async def serve(self) -> None:
        """Serve those who wait whenever something changed, until cancelled."""
        while True:
            await self.run.wait_changed()
            self._serve()

    def _why_not(self, peer: PeerId) -> str:
        match self.run.held(peer):
            case Held.STANDBY:
                return self.run.worker(peer).standby
            case Held.ROOM:
                return "Enough rollouts are under way; wait for a batch to be trained on."
            case Held.VERSION:
                return "What you could deliver in time is under way; wait for the next version."

    def _count(self, peer: PeerId, presence: Presence, now: Heartbeat) -> None:
        """Add what a heartbeat counts beyond the one before it to this stay.

        A node counts since it started, a stay lasts as long as a line. After a restart of ours, what a known peer says
        first is where we begin to count.
        """
        before = self._counted.get(peer, Heartbeat())
        if before is None:
            before = now
        elif now.bytes_up < before.bytes_up or now.bytes_down < before.bytes_down or now.engine_s < before.engine_s:
            before = Heartbeat()  # the node was started anew
        presence.bytes_up += now.bytes_up - before.bytes_up
        presence.bytes_down += now.bytes_down - before.bytes_down
        presence.engine_s += now.engine_s - before.engine_s
        self._counted[peer] = now
        if len(self._counted) > PEERS_REMEMBERED:
            self._counted = {one: beat for one, beat in self._counted.items() if one in self.run.present}

    def _lose(self, losses: Sequence[Lost]) -> None:
        for lost in losses:
            released = self.run.leasing.release(lost.peer)
            self.run.forget(lost.peer)
            self._withdrawn(released, "lost")
            self._end_presence(lost.peer, lost.reason)
            self.events.emit("peer_left", peer=lost.peer, reason=lost.reason, leases_released=len(released))
            if self.reception is not None:
                self.reception.dismiss(lost.peer, Refused(reason=lost.reason, retry_after_ms=1000))
        if losses:
            self._introduce()

    def _forget_but(self, peer: PeerId, held: set[LeaseId]) -> None:
        """Withdraw what `peer` does not remember: a grant that never arrived, or work that its own restart lost."""
        open_leases = [lease for lease, granted in self.run.leasing.open.items() if granted.peer == peer]
        forgotten = [lease for lease in open_leases if lease not in held]
        self._withdrawn(self.run.leasing.give_back(peer, forgotten), "lost")

    def _end_presence(self, peer: PeerId, reason: str) -> bool:
        """Whether the peer was present until now."""
        if (presence := self.run.present.pop(peer, None)) is None:
            return False
        presence.switch(on=presence.is_on, now_s=trio.current_time())
        self._ended.append(replace(_stay(presence), reason=reason))
        self.peers_changed()
        self.witness.left(peer, reason)
        self.run.notify()
        return True

    def _withdrawn(self, leases: Sequence[GrantedLease], status: str) -> None:
        self.witness.withdrawn(leases, status)
        self._close([granted.id for granted in leases], status)

    def _close(self, leases: Sequence[LeaseId], status: str) -> None:
        """Have leases that were withdrawn written as such, soon."""
        if leases:
            self.run.withdrawn(leases)
            self._closed.update(dict.fromkeys(leases, status))
            self._work.set()
            self.run.notify()

    def _introduce(self) -> None:
        """Tell everybody whose neighbours have changed who they are now."""
        neighbours = self._neighbours()
        if self.reception is not None:
            for peer, told in neighbours.items():
                if self._introduced.get(peer) != told:
                    self.reception.tell(peer, Introduction(peers=told))
        self._introduced = neighbours

    def _neighbours(self) -> dict[PeerId, list[PeerAddresses]]:
        """For everybody present, whom to exchange chunks with."""
        present = self.run.present
        return {
            peer: [PeerAddresses(peer=other, addresses=list(present[other].addresses)) for other in sorted(others)]
            for peer, others in neighbourhoods(present).items()
        }

    async def _write(self) -> None:
        closed, self._closed = self._closed, {}
        started, self._started = self._started, {}
        ended, self._ended = self._ended, []
        for presence in self.run.present.values():
            presence.switch(on=presence.is_on, now_s=trio.current_time())
        stays = [*ended, *(_stay(presence) for presence in self.run.present.values())]
        await trio.to_thread.run_sync(partial(self._write_all, closed, started, stays, self.now_ms()))

    def _write_all(
        self, closed: dict[LeaseId, str], started: dict[LeaseId, PolicyVersion], stays: list[StayRow], now_ms: int
    ) -> None:
        if started:
            self.ledger.leases_started(list(started.items()))
        for status in sorted(set(closed.values())):
            self.ledger.leases_closed([lease for lease, word in closed.items() if word == status], status, now_ms)
        if stays:
            self.ledger.peers_present(stays, now_ms)


def _stay(presence: Presence) -> StayRow:
    return StayRow(
        presence=presence.row,
        bytes_up=presence.bytes_up,
        bytes_down=presence.bytes_down,
        engine_s=presence.engine_s,
        standby_s=presence.standby_s,
    )


def _row(granted: GrantedLease, envelope: bytes) -> LeaseRow:
    lease = granted.lease
    return LeaseRow(
        lease=granted.id,
        peer=granted.peer,
        task=lease.task,
        prompt=granted.prompt_index,
        rollouts=len(lease.seeds),
        issued_ms=lease.issued_ms,
        deadline_ms=lease.deadline_ms,
        envelope=envelope,
    )
