"""Who gets which lease, and what becomes of it until its delivery is judged: granted, begun, recalled, withdrawn.

What always holds: a lease is in the ledger before it is handed out; one that is withdrawn is nobody's, and what is
issued instead has a new id and new seeds; one that its peer has lost, and could still deliver, is granted to that peer
again before any other, the very same, so that losing leases gains nobody better prompts or seeds; one that is recalled
is told to its peer again with every heartbeat until it is given back or delivered, since the first word may be lost
with a line; one whose deadline passed while the learner was away, or before its peer could be back, or whose peer has
not been back since the learner restarted, is held against nobody, shows as recalled, and is nobody's debt. Nobody looks
at all requests that wait, or at all leases, but when something happened that they wait for. The trio thread never waits
for the disk but to grant: what else happens is written by `write`, a moment later.
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
"""How long a request for leases is held open before it is answered with none."""

GRANT_RETRY_MS = 100
"""When to ask again after that: at once, since it is here that a request waits."""

DEBT = (
    f"More than {FREE_LEASES} of your leases brought no record: you are leased one group at a time, and less and less "
    "often, until one does. Your log says why leases went back."
)

LATE_GRACE_MS = 2_000
"""A lease is withdrawn this long after its deadline, so that a delivery under way hears LATE with its figures."""


@dataclass(kw_only=True, eq=False)
class _Waiting:
    """A request for leases that is held open; at the end of `pause` its peer, who owes, may be leased a group again."""

    leases: list[GrantedLease] = field(default_factory=list)
    answered: trio.Event = field(default_factory=trio.Event)
    pause: trio.CancelScope = field(default_factory=trio.CancelScope)


@dataclass(kw_only=True, eq=False)
class LeaseService(Service):
    """See the module's paragraph."""

    witness: PeerRecorder
    changed: trio.Event = field(default_factory=trio.Event)
    """Something is to be written."""
    _closed: dict[LeaseId, str] = field(default_factory=dict)
    _started: dict[LeaseId, PolicyVersion] = field(default_factory=dict)
    _waiting: dict[PeerId, _Waiting] = field(default_factory=dict)
    _forgotten: dict[PeerId, list[LeaseId]] = field(default_factory=dict)
    _again: list[LeaseId] = field(default_factory=list)
    _unissued: set[LeaseId] = field(default_factory=set)
    _recalled_at: tuple[int, tuple[int, ...]] | None = None
    _before: set[LeaseId] = field(default_factory=set)
    """Open since before this start of the learner's."""
    _returned: set[PeerId] = field(default_factory=set)
    """Who has been here since, of those whose leases these are."""

    async def run(self) -> None:
        """Recall what has become hopeless and serve those who wait, whenever there may be more to lease; until
        cancelled."""
        while True:
            await self.state.wait_leasable()
            self._recall_all()
            self.serve_now()

    async def grant(self, peer: PeerId, request: LeaseRequest) -> Grant:
        """Wait for room, then lease as much as was asked for, as the pace allows, and as the peer can do in time.

        First comes what the peer was granted before and has lost.
        """
        if lost := self._grant_lost(peer, request.rollouts):
            return Grant(
                leases=[sign(self.identity.keypair, self.identity.swarm, one.lease) for one in lost],
                now_ms=self.now_ms(),
            )
        leases = await self._wait_granted(peer, request.rollouts)
        if not leases:
            why = "The run is finished." if self.state.finished else self._why_not(peer)
            retry_ms = max(GRANT_RETRY_MS, self.scheduler.give_backs.wait_ms(peer, self.now_ms()))
            return Grant(leases=[], now_ms=self.now_ms(), reason=why, retry_after_ms=retry_ms)
        issued = [(granted, sign(self.identity.keypair, self.identity.swarm, granted.lease)) for granted in leases]
        ids = [granted.id for granted, _ in issued]
        rows = [_row(granted, raw) for granted, raw in issued]
        try:
            await trio.to_thread.run_sync(self.ledger.work.leases_issued, rows)
            self.state.issued += len(rows)
        except BaseException:  # the peer has left, or asks anew, and will never hear of these
            self.withdraw(peer, ids)
            raise
        finally:
            self._unissued.difference_update(ids)
        # What was withdrawn while we wrote was closed before it was there; close it again.
        self._close([lease for lease in ids if lease not in self.capacity.leasing.open], "lost")
        return Grant(leases=[raw for _, raw in issued], now_ms=self.now_ms())

    def serve_now(self, only: PeerId | None = None) -> None:
        """Hand out what can be leased now; with the run over, tell all that wait."""
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
        """Note which version a lease is generated with; the first word counts. A hopeless one is recalled at once."""
        lease = LeaseId(started.lease)
        if self.scheduler.started(peer, lease, started.version, self.now_ms()):
            self._started[lease] = started.version
            self.witness.note_start(lease)
            if recalled := self.scheduler.recall(self.now_ms(), lease):
                self._recall(peer, recalled)
                self.state.notify()

    def accept_return(self, peer: PeerId, leases: LeaseReturn) -> None:
        """Take leases back. Those that were recalled are nobody's fault."""
        back, recalled = self._take_back(peer, [LeaseId(lease) for lease in leases.leases], "returned")
        self.events.emit("leases_returned", peer=peer, leases=back, recalled=recalled, reason=leases.reason)

    def remind(self, peer: PeerId) -> None:
        """Tell the peer again what was recalled and is open still."""
        if mine := [granted for granted in self.capacity.leasing.recalled.values() if granted.peer == peer]:
            self._tell(peer, mine)

    def release(self, peer: PeerId) -> int:
        """The peer is gone: withdraw all its leases; return how many."""
        self._forgotten.pop(peer, None)
        begun = self.capacity.leasing.begun()
        self._excuse([granted for granted in self.capacity.leasing.open.values() if granted.peer == peer])
        released = self.scheduler.release(peer, self.now_ms())
        self._note_withdrawn(released, "lost", begun)
        return len(released)

    def give_up_begun(self) -> None:
        """Give up what others began and nobody who is here goes on with, so that it takes no room."""
        if groups := self.scheduler.give_up_begun(self.now_ms()):
            self.events.emit("parts_given_up", groups=groups)
            self.state.notify()

    def withdraw(self, peer: PeerId, leases: Iterable[LeaseId]) -> None:
        """Withdraw those of `leases` that are the peer's, who knows nothing of them, or no longer."""
        self._take_back(peer, leases, "lost")

    def recollect(self, peer: PeerId, held: set[LeaseId]) -> None:
        """The peer is back, and remembers `held`. What else is its own and open (a grant that never arrived, or work
        that its own restart lost) it is granted again when it asks. Withdrawn is what it could not deliver any more,
        and what was about to be granted on the line before.
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
        """Withdraw what is not delivered in time; nothing before deliveries are judged."""
        if not self.state.opened.is_set():
            return
        begun, now_ms, leasing = self.capacity.leasing.begun(), self.now_ms(), self.capacity.leasing
        late = [granted for granted in leasing.open.values() if now_ms > granted.deadline_ms + LATE_GRACE_MS]
        self._excuse([granted for granted in late if granted.id not in leasing.arrived])
        self._note_withdrawn(self.scheduler.expire(now_ms, LATE_GRACE_MS), "expired", begun)

    def recover(self) -> list[PeerId]:
        """Before any is granted: take up the leases that are still open from before; return whose they are."""
        self.state.issued, _ = self.ledger.work.counts()
        self.ledger.work.recall_scoring(self.now_ms())
        rows = self.ledger.work.open_leases()
        for row in rows:
            granted = granted_in(row, self.identity.swarm)
            self.capacity.leasing.recover(granted, row.started)
            self._before.add(granted.id)
        return [row.peer for row in rows]

    def write(self) -> Callable[[], None]:
        """What the ledger does not know yet, to be called on a thread."""
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
        """What the peer has lost and is granted again now: of so many rollouts, but one at least, and no more than one
        grant holds.
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
        """Ask the workload for the peer, and wait for its turn; nothing after GRANT_WAIT_S, or when the run is over."""
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
        except trio.Cancelled:  # the peer has left, or asks anew, and will never hear of these
            self.withdraw(peer, [granted.id for granted in waiting.leases])
            self._unissued.difference_update(granted.id for granted in waiting.leases)
            raise
        finally:
            if self._waiting.get(peer) is waiting:
                del self._waiting[peer]
                self.scheduler.withdraw(peer)

    def _end_with_pause(self, peer: PeerId) -> None:
        """Look at the peer again, if it waits and owes, when its pause is over, since nothing else happens then."""
        wait_ms = self.scheduler.give_backs.wait_ms(peer, self.now_ms())
        if wait_ms and (waiting := self._waiting.get(peer)):
            waiting.pause.deadline = trio.current_time() + wait_ms / 1000

    def _why_not(self, peer: PeerId) -> str:
        match self.scheduler.held(peer, self.now_ms()):
            case Held.STANDBY:
                return self.scheduler.worker(peer).standby
            case Held.HOURS:
                return (
                    "By what your node told last, your machine is not lent now (outside your hours, or paused), or not "
                    "for as long as more would take."
                )
            case Held.DEBT:
                return DEBT
            case Held.AUDIT:
                return "As much of yours is under way or being audited as may be of a newcomer, or in quarantine."
            case Held.SHARE:
                return "As much of yours is under way, or waits to be trained on, as may be of one peer."
            case Held.ROOM:
                return "Enough rollouts are under way; wait for a batch to be trained on."
            case Held.PROMPT:
                return "The task is still writing the next prompts; ask again."
            case Held.VERSION:
                return "What you could deliver in time is under way; wait for the next version."

    def _recall_all(self) -> None:
        """Recall what a batch that was taken, or a restart, has made hopeless."""
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
        """How many were the peer's and open, and how many of these had been recalled."""
        leases = list(leases)
        known = self.capacity.leasing.recalled.keys() & leases
        begun = self.capacity.leasing.begun(leases)
        theirs = [self.capacity.leasing.lookup(lease, peer) for lease in leases]
        self._excuse([granted for granted in theirs if granted is not None])
        back = self.scheduler.given_back(peer, leases, self.now_ms())
        recalled = [granted for granted in back if granted.id in known]
        self._note_withdrawn(recalled, "recalled", begun)
        self._note_withdrawn([granted for granted in back if granted.id not in known], status, begun)
        return len(back), len(recalled)

    def _excuse(self, leases: Sequence[GrantedLease]) -> None:
        """Of leases that are about to be withdrawn, recall first what is held against nobody: it is no debt, either."""
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
        """Whether a restart of ours is why: its peer, who knows what was signed, may have taken it to be worthless
        before it could be back, or has not been back."""
        if granted.id not in self._before:
            return False
        back_ms = min(self.state.opened_ms, self.now_ms()) + 1000 * self.state.membership.returns_s
        return granted.peer not in self._returned or granted.lease.deadline_ms <= back_ms

    def _end(self, leases: Sequence[GrantedLease], status: str, begun: Mapping[LeaseId, PolicyVersion]) -> None:
        self.witness.note_withdrawal(leases, status)
        for granted in leases:
            if granted.id not in self._unissued:  # else its peer has never seen it
                news = LeaseClosed(granted=granted, begun=begun.get(granted.id), status=status)
                self.signals.lease_closed.emit(news)
        self._close([granted.id for granted in leases], status)

    def _close(self, leases: Sequence[LeaseId], status: str) -> None:
        """Have leases that were withdrawn written as such, soon."""
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
