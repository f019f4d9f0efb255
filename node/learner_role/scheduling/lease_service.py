"""Grant leases to peers, and follow each one until its delivery is judged: begun, recalled, returned, or expired.

The trio thread waits for the disk only to grant. Other changes are written by `write`, a moment later. All waiting
requests, or all leases, are examined only when something happened that they wait for.

Invariants:

- A lease is in the ledger before it is granted.
- A withdrawn lease belongs to no peer. The lease that replaces it has a new id and new seeds.
- A lease that its peer has lost and can still deliver is granted to that peer again, unchanged and before any other. So
  no peer gets better prompts or seeds by losing leases.
- A recall is repeated with every heartbeat until the lease is returned or delivered, since the first message may be
  lost with a connection.
- A lease counts against no peer if a restart of the learner is the reason for its end. That is so if its deadline
  passed while the learner was away, or before its peer could be back, or if its peer has not been back since. Such a
  lease ends as "recalled", and is no debt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from learner.ledger.rows import LeaseRow
from learner.rollouts.admission import GrantedLease
from learner.rollouts.open_leases import GRANT_BYTES
from learner.scheduling.lease_backoff import FREE_LEASES
from learner.scheduling.peer_load import Held
from node.learner_role.scheduling.peer_recorder import PeerRecorder
from node.learner_role.scheduling.recovery import granted_in
from node.learner_role.shared.context import Service
from node.learner_role.shared.signals import LeaseClosed
from protocol.core.envelope import OVERHEAD_BYTES, sign
from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.core.limits import MAX_LEASES_PER_GRANT
from protocol.work import Grant, LeaseRecall, LeaseRequest, LeaseReturn, Started, lease_bytes

GRANT_WAIT_S = 10.0
"""Seconds that a request for leases is held open before it is answered with none."""

GRANT_RETRY_MS = 100
"""Milliseconds after which a peer may ask again: at once, since requests wait here."""

DEBT = (
    f"More than {FREE_LEASES} of your leases brought no record: you are leased one group at a time, and less and less "
    "often, until one brings records. Your log says why leases went back."
)

LATE_GRACE_MS = 2_000
"""Milliseconds after its deadline at which a lease is withdrawn, so that a delivery under way gets the verdict LATE
with its figures."""


@dataclass(kw_only=True, eq=False)
class _Waiting:
    """A request for leases that is held open.

    When `pause` ends, a peer that owes records may be leased a group again.
    """

    leases: list[GrantedLease] = field(default_factory=list)
    answered: trio.Event = field(default_factory=trio.Event)
    pause: trio.CancelScope = field(default_factory=trio.CancelScope)


@dataclass(kw_only=True, eq=False)
class LeaseService(Service):
    """Grants, recalls and withdraws leases. `witness` records what happens to them."""

    witness: PeerRecorder
    changed: trio.Event = field(default_factory=trio.Event)
    """Set when there are changes to write."""
    _closed: dict[LeaseId, str] = field(default_factory=dict)
    _started: dict[LeaseId, PolicyVersion] = field(default_factory=dict)
    _waiting: dict[PeerId, _Waiting] = field(default_factory=dict)
    _forgotten: dict[PeerId, list[LeaseId]] = field(default_factory=dict)
    _again: list[LeaseId] = field(default_factory=list)
    _unissued: set[LeaseId] = field(default_factory=set)
    _recalled_at: tuple[int, tuple[int, ...]] | None = None
    _before: set[LeaseId] = field(default_factory=set)
    """Leases that are open since before this start of the learner."""
    _returned: set[PeerId] = field(default_factory=set)
    """Peers of those leases that have been here since this start."""

    async def run(self) -> None:
        """Recall leases that can no longer be used, and serve waiting peers, whenever more may be leased.

        Runs until cancelled.
        """
        while True:
            await self.state.wait_leasable()
            self._recall_all()
            self.serve_now()

    async def grant(self, peer: PeerId, request: LeaseRequest) -> Grant:
        """Wait for room, then lease as much as was requested, as there is room for, and as the peer can do in time.

        Leases that the peer was granted before and has lost come first.
        """
        if lost := self._grant_lost(peer, request.rollouts):
            return Grant(
                leases=[sign(self.identity.keypair, self.identity.swarm, one.lease) for one in lost],
                now_ms=self.now_ms(),
            )
        leases = await self._wait_granted(peer, request.rollouts)
        if not leases:
            why = "The run is finished." if self.state.finished else self._why_not(peer)
            retry_ms = max(GRANT_RETRY_MS, self.scheduler.debts.wait_ms(peer, self.now_ms()))
            return Grant(leases=[], now_ms=self.now_ms(), reason=why, retry_after_ms=retry_ms)
        issued = [(granted, sign(self.identity.keypair, self.identity.swarm, granted.lease)) for granted in leases]
        ids = [granted.id for granted, _ in issued]
        rows = [_row(granted, raw) for granted, raw in issued]
        try:
            await trio.to_thread.run_sync(self.ledger.work.leases_issued, rows)
            self.state.issued += len(rows)
        except BaseException:  # the peer has left, or asks again, and will never get these
            self.withdraw(peer, ids)
            raise
        finally:
            self._unissued.difference_update(ids)
        # A lease that was withdrawn during the write was closed before it was in the ledger: close it again.
        self._close([lease for lease in ids if lease not in self.capacity.leasing.open], "lost")
        return Grant(leases=[raw for _, raw in issued], now_ms=self.now_ms())

    def serve_now(self, only: PeerId | None = None) -> None:
        """Grant what can be leased now. If the run is over, answer all waiting requests."""
        if self.state.finished:
            for waiting in self._waiting.values():
                waiting.answered.set()
            return
        for peer, leases in self.scheduler.serve(self.now_ms(), only):
            waiting = self._waiting[peer]
            waiting.leases = leases
            self._unissued.update(granted.id for granted in leases)
            waiting.answered.set()

    def note_start(self, peer: PeerId, started: Started) -> None:
        """Note with which version a lease was begun. The first message counts.

        If the lease can no longer be used, it is recalled at once.
        """
        lease = LeaseId(started.lease)
        if self.scheduler.started(peer, lease, started.version, self.now_ms()):
            self._started[lease] = started.version
            self.witness.note_start(lease)
            if recalled := self.scheduler.recall(self.now_ms(), lease):
                self._recall(peer, recalled)
                self.state.notify()

    def accept_return(self, peer: PeerId, leases: LeaseReturn) -> None:
        """Accept leases that a peer returns. Those that were recalled count against no peer."""
        back, recalled = self._take_back(peer, [LeaseId(lease) for lease in leases.leases], "returned")
        self.events.emit("leases_returned", peer=peer, leases=back, recalled=recalled, reason=leases.reason)

    def remind(self, peer: PeerId) -> None:
        """Repeat the recalls of the peer's leases that are still open."""
        if mine := [granted for granted in self.capacity.leasing.recalled.values() if granted.peer == peer]:
            self._tell(peer, mine)

    def release(self, peer: PeerId) -> int:
        """Withdraw all leases of a peer that is gone, and return how many."""
        self._forgotten.pop(peer, None)
        begun = self.capacity.leasing.begun()
        self._excuse([granted for granted in self.capacity.leasing.open.values() if granted.peer == peer])
        released = self.scheduler.release(peer, self.now_ms())
        self._note_withdrawn(released, "lost", begun)
        return len(released)

    def give_up_begun(self) -> None:
        """Give up groups that others began and that no peer here continues, so that they take no room."""
        if groups := self.scheduler.give_up_begun(self.now_ms()):
            self.events.emit("parts_given_up", groups=groups)
            self.state.notify()

    def withdraw(self, peer: PeerId, leases: Iterable[LeaseId]) -> None:
        """Withdraw those of `leases` that are the peer's, because the peer does not have them (any more)."""
        self._take_back(peer, leases, "lost")

    def recollect(self, peer: PeerId, held: set[LeaseId]) -> None:
        """Take up the leases of a peer that is back. `held`: the leases that it still has.

        It lost its other open leases: a grant never arrived, or the node restarted. It is granted them again when it
        asks. Leases that it could not deliver in time are withdrawn, and those that were about to be granted on its
        previous connection.
        """
        theirs = [granted for granted in self.capacity.leasing.open.values() if granted.peer == peer]
        if any(granted.id in self._before for granted in theirs):
            self._returned.add(peer)
        lost = [granted for granted in theirs if granted.id not in held]
        spent = self.capacity.leasing.recalled.keys() | self._unissued
        useful = [granted for granted in lost if granted.id not in spent]
        while useful and not self.scheduler.can_still(peer, useful, self.now_ms()):
            useful.pop()
        self._forgotten[peer] = [granted.id for granted in useful]
        self.withdraw(peer, [granted.id for granted in lost if granted not in useful])

    def expire(self) -> None:
        """Withdraw leases that are not delivered in time. Does nothing before deliveries are judged."""
        if not self.state.opened.is_set():
            return
        begun, now_ms, leasing = self.capacity.leasing.begun(), self.now_ms(), self.capacity.leasing
        late = [granted for granted in leasing.open.values() if now_ms > granted.deadline_ms + LATE_GRACE_MS]
        self._excuse([granted for granted in late if granted.id not in leasing.arrived])
        self._note_withdrawn(self.scheduler.expire(now_ms, LATE_GRACE_MS), "expired", begun)

    def recover(self) -> list[PeerId]:
        """Take up the leases that are open in the ledger, and return their peers. Call it before any grant."""
        self.state.issued, _ = self.ledger.work.counts()
        self.ledger.work.recall_scoring(self.now_ms())
        rows = self.ledger.work.open_leases()
        for row in rows:
            granted = granted_in(row, self.identity.swarm)
            self.capacity.leasing.recover(granted, row.started)
            self._before.add(granted.id)
        return [row.peer for row in rows]

    def write(self) -> Callable[[], None]:
        """Return a function that writes pending changes to the ledger. Call it on a thread."""
        closed, self._closed = self._closed, {}
        started, self._started = self._started, {}
        again, self._again = self._again, []
        now_ms = self.now_ms()

        def write() -> None:
            if again:
                self.ledger.work.leases_granted_again(again)
            if started:
                self.ledger.work.leases_started(list(started.items()))
            for status in sorted(set(closed.values())):
                self.ledger.work.leases_closed(
                    [lease for lease, word in closed.items() if word == status], status, now_ms
                )

        return write

    def _grant_lost(self, peer: PeerId, rollouts: int) -> list[GrantedLease]:
        """Grant the peer again what it has lost, and return those leases.

        They are about `rollouts` rollouts, at least one lease, and no more than one grant holds.
        """
        waiting, again, size_bytes = self._forgotten.pop(peer, []), list[GrantedLease](), 0
        while waiting and rollouts > 0 and not self.state.finished and len(again) < MAX_LEASES_PER_GRANT:
            if (granted := self.capacity.leasing.lookup(waiting[0], peer)) is not None:
                seeds = len(granted.lease.seeds)
                size_bytes += lease_bytes(len(granted.lease.prompt) // 4, seeds) + OVERHEAD_BYTES
                if again and size_bytes > GRANT_BYTES:
                    break
                self.scheduler.grant_again(granted)
                self._started.pop(granted.id, None)
                again.append(granted)
                rollouts -= seeds
            del waiting[0]
        if waiting:
            self._forgotten[peer] = waiting
        if again:
            self._again += [granted.id for granted in again]
            self.events.emit("leases_granted_again", peer=peer, leases=len(again))
        return again

    async def _wait_granted(self, peer: PeerId, rollouts: int) -> list[GrantedLease]:
        """Request leases from the scheduler for the peer, and wait for its turn.

        The result is empty after GRANT_WAIT_S, or if the run is over.
        """
        if self.state.finished or peer not in self.state.present:
            return []
        waiting = self._waiting[peer] = _Waiting()
        self.scheduler.ask(peer, rollouts)
        try:
            with trio.move_on_after(GRANT_WAIT_S):
                while not waiting.answered.is_set():
                    self.serve_now(peer)
                    with trio.CancelScope() as waiting.pause:
                        self._end_with_pause(peer)
                        await waiting.answered.wait()
            return waiting.leases
        except trio.Cancelled:  # the peer has left, or asks again, and will never get these
            self.withdraw(peer, [granted.id for granted in waiting.leases])
            self._unissued.difference_update(granted.id for granted in waiting.leases)
            raise
        finally:
            if self._waiting.get(peer) is waiting:
                del self._waiting[peer]
                self.scheduler.withdraw(peer)

    def _end_with_pause(self, peer: PeerId) -> None:
        """End the wait of a peer that owes records when its pause is over, because no event happens then."""
        wait_ms = self.scheduler.debts.wait_ms(peer, self.now_ms())
        if wait_ms and (waiting := self._waiting.get(peer)):
            waiting.pause.deadline = trio.current_time() + wait_ms / 1000

    def _why_not(self, peer: PeerId) -> str:
        match self.scheduler.held(peer, self.now_ms()):
            case Held.STANDBY:
                return self.scheduler.worker(peer).standby
            case Held.HOURS:
                return (
                    "Your node last reported that your machine is not lent now (outside your hours, or paused), or not "
                    "long enough for another lease."
                )
            case Held.DEBT:
                return DEBT
            case Held.AUDIT:
                return "You have as many rollouts under way or in audits as a newcomer or quarantined peer may have."
            case Held.SHARE:
                return "You have as many rollouts under way, or waiting to be trained on, as one peer may have."
            case Held.ROOM:
                return "Enough rollouts are under way. Wait until a batch is trained on."
            case Held.PROMPT:
                return "The task is still writing the next prompts. Ask again."
            case Held.VERSION:
                return "You have as many rollouts under way as you can deliver in time. Wait for the next version."

    def _recall_all(self) -> None:
        """Recall the leases that can no longer be used after a batch was taken, or after a restart."""
        now = self.capacity.collecting, self.capacity.chain.bases
        if now == self._recalled_at:
            return
        self._recalled_at = now
        by_peer: dict[PeerId, list[GrantedLease]] = {}
        for granted in self.scheduler.recall(self.now_ms()):
            by_peer.setdefault(granted.peer, []).append(granted)
        for peer, recalled in by_peer.items():
            self._recall(peer, recalled)

    def _recall(self, peer: PeerId, recalled: Sequence[GrantedLease]) -> None:
        self.events.emit(
            "leases_recalled",
            peer=peer,
            leases=len(recalled),
            rollouts=sum(len(granted.lease.seeds) for granted in recalled),
            minimum=str(self.capacity.minimum),
        )
        self._tell(peer, recalled)

    def _tell(self, peer: PeerId, recalled: Sequence[GrantedLease]) -> None:
        presence = self.state.present.get(peer)
        if presence is None or not presence.takes_recalls:
            return
        for first in range(0, len(recalled), MAX_LEASES_PER_GRANT):
            some: list[bytes] = [granted.id for granted in recalled[first : first + MAX_LEASES_PER_GRANT]]
            self.signals.tell(peer, LeaseRecall(leases=some, minimum=self.capacity.minimum))

    def _take_back(self, peer: PeerId, leases: Iterable[LeaseId], status: str) -> tuple[int, int]:
        """Take back open leases of the peer. Return how many there were, and how many of them had been recalled."""
        leases = list(leases)
        known = self.capacity.leasing.recalled.keys() & leases
        begun = self.capacity.leasing.begun(leases)
        theirs = [self.capacity.leasing.lookup(lease, peer) for lease in leases]
        self._excuse([granted for granted in theirs if granted is not None])
        back = self.scheduler.returned(peer, leases, self.now_ms())
        recalled = [granted for granted in back if granted.id in known]
        self._note_withdrawn(recalled, "recalled", begun)
        self._note_withdrawn([granted for granted in back if granted.id not in known], status, begun)
        return len(back), len(recalled)

    def _excuse(self, leases: Sequence[GrantedLease]) -> None:
        """Recall those leases that end because of our restart before they are withdrawn, so that they are no debt."""
        for granted in leases:
            if self._is_excused(granted):
                self.capacity.leasing.recall(granted.id)

    def _note_withdrawn(
        self, leases: Sequence[GrantedLease], status: str, begun: Mapping[LeaseId, PolicyVersion]
    ) -> None:
        for peer in {granted.peer for granted in leases}:
            self._end_with_pause(peer)
        excused = {granted.id for granted in leases if self._is_excused(granted)}
        self._before.difference_update(granted.id for granted in leases)
        self._end([granted for granted in leases if granted.id in excused], "recalled", begun)
        self._end([granted for granted in leases if granted.id not in excused], status, begun)

    def _is_excused(self, granted: GrantedLease) -> bool:
        """Return whether our restart is the reason for the end of a lease.

        That is so if its peer has not been back since. It is also so if the deadline is before the time at which the
        peer could be back: the peer knows the deadline, and may have dropped the lease as worthless.
        """
        if granted.id not in self._before:
            return False
        back_ms = min(self.state.opened_ms, self.now_ms()) + 1000 * self.state.membership.returns_s
        return granted.peer not in self._returned or granted.lease.deadline_ms <= back_ms

    def _end(self, leases: Sequence[GrantedLease], status: str, begun: Mapping[LeaseId, PolicyVersion]) -> None:
        self.witness.note_withdrawal(leases, status)
        for granted in leases:
            if granted.id not in self._unissued:  # otherwise its peer has never seen it
                news = LeaseClosed(granted=granted, begun=begun.get(granted.id), status=status)
                self.signals.lease_closed.emit(news)
        self._close([granted.id for granted in leases], status)

    def _close(self, leases: Sequence[LeaseId], status: str) -> None:
        """Note leases that were withdrawn, which are soon written to the ledger."""
        if leases:
            self._closed.update(dict.fromkeys(leases, status))
            self.changed.set()
            self.state.notify()


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
        place=granted.place,
    )
