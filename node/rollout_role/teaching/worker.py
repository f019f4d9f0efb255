"""Do the work of a teacher node: lease groups, score them, sign records and deliver them.

`node.rollout_role.retry_policy` decides how long failures are retried.

Invariants:

- A record holds the engine's scores of exactly the leased tokens.
- A lease that names another teacher is returned.
- One batch of leases is scored while the next one waits.
- Nothing is scored while the machine is not lent, and unscored leases are returned then.

Loops: `_lease` keeps one batch of leases waiting. `_score` consumes the batches. Each delivery waits for its receipt in
a task of its own. `_persevere` waits until nothing has worked for too long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from node.engine.interface import EngineCrashed, EngineError, EngineRefused, ScoringEngine
from node.engine.teacher_scores import scores_of
from node.rollout_role.availability import Availability
from node.rollout_role.retry_policy import Event, Failed, Lent, RetryPolicy, Worked
from node.rollout_role.worker import DRAINED, GOODBYE_S, STOPPED, GaveUp, RolloutCounts
from node.runtime.events import EventLog
from node.state.receipts import Receipts, Received
from protocol.accounting.claims import CostClaim
from protocol.core.codec import unpack_tokens
from protocol.core.envelope import sign
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId, SwarmId
from protocol.core.visible import first_line
from protocol.scores import ScoreLease, ScoreRecord, pack_scores
from protocol.trouble import TroubleKind
from swarm.transport.error_groups import first_cause
from swarm.work.client import MAX_UNDELIVERED, WorkClient

NOT_LENT = "this machine is not lent now"
OTHER_TEACHER = "this node's teacher is another model"


@dataclass(kw_only=True)
class TeachingWorker:
    """The work of a teacher node.

    The engine has loaded the teacher, whose digest is `digest`. `batch_rollouts` completions are leased at a time.
    """

    engine: ScoringEngine
    digest: bytes
    keypair: Keypair
    swarm: SwarmId
    work_client: WorkClient
    receipts: Receipts
    batch_rollouts: int
    events: EventLog
    shift: Availability = field(default_factory=Availability)
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    counts: RolloutCounts = field(default_factory=RolloutCounts)
    holding: set[LeaseId] = field(default_factory=set)
    is_draining: bool = False
    """Whether the node takes no more leases, and will end."""
    _in_hand: dict[LeaseId, ScoreLease] = field(default_factory=dict)
    """Leases that are held, and not being delivered."""
    _undelivered: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(MAX_UNDELIVERED))
    _stirred: trio.Event = field(default_factory=trio.Event)
    _asking: trio.CancelScope | None = None

    @property
    def has_freed_memory(self) -> bool:
        """Return False: a teacher stays in memory during a pause, because loading one takes minutes."""
        return False

    async def run(self) -> None:
        """Work until cancelled.

        Raises EngineError if the engine cannot continue at all. Raises GaveUp, after a goodbye, if nothing has worked
        for too long.
        """
        send, receive = trio.open_memory_channel[list[ScoreLease]](0)  # `_lease` holds the next batch
        with first_cause():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.shift.run, self._shift_changed)
                nursery.start_soon(self._persevere)
                nursery.start_soon(self._lease, send)
                nursery.start_soon(self._score, receive, nursery)

    async def drain(self, within_s: float | None) -> int:
        """Take no more leases, and wait until all that are held were delivered and acknowledged.

        After `within_s`, if given, unscored leases are returned. Returns how many were not delivered by then.
        """
        self.is_draining = True
        if self._asking is not None:
            self._asking.cancel()
        self.events.emit("drain_began", leases=len(self.holding), within_s=within_s)
        with trio.move_on_after(math.inf if within_s is None else within_s):
            while self.holding:
                await self._stirred.wait()
        undelivered = len(self.holding)
        self._give_up(list(self._in_hand.values()), DRAINED)
        self.events.emit("drained", undelivered=undelivered)
        return undelivered

    async def leave(self, reason: str = STOPPED) -> None:
        """Say goodbye if the learner can be reached, so that our leases go to other nodes at once.

        That takes at most GOODBYE_S.
        """
        self.is_draining = True
        if self._asking is not None:
            self._asking.cancel()
        with trio.move_on_after(GOODBYE_S):
            await self.work_client.leave(reason)

    async def _lease(self, batches: trio.MemorySendChannel[list[ScoreLease]]) -> None:
        while True:
            await self.shift.wait_on()
            if self.is_draining:
                return
            leases: list[ScoreLease] = []
            with self.shift.until_over(), trio.CancelScope() as self._asking:
                await trio.sleep_until(self.retry_policy.again_s(TroubleKind.LEASE, TroubleKind.ENGINE))
                leases = await self.work_client.request_scoring(self.batch_rollouts)
            if not leases:
                continue
            self.holding |= {LeaseId(lease.id) for lease in leases}
            self._in_hand |= {LeaseId(lease.id): lease for lease in leases}
            self._count_pending()
            if wrong := [lease for lease in leases if lease.teacher != self.digest]:
                self._give_up(wrong, OTHER_TEACHER)
                self._note(Failed(kind=TroubleKind.LEASE, reason=OTHER_TEACHER))
            if self.shift.is_lent:
                await batches.send([lease for lease in leases if lease.teacher == self.digest])
            else:
                self._give_up(leases, NOT_LENT)

    async def _score(self, batches: trio.MemoryReceiveChannel[list[ScoreLease]], nursery: trio.Nursery) -> None:
        async for batch in batches:
            for lease in batch:
                await self.shift.wait_on()
                if LeaseId(lease.id) not in self._in_hand:  # it was returned meanwhile
                    continue
                await self._undelivered.acquire()
                record = await self._record_of(lease)
                if record is None or self._in_hand.pop(LeaseId(lease.id), None) is None:  # it was returned meanwhile
                    self._undelivered.release()
                    continue
                nursery.start_soon(self._deliver, lease, record)

    async def _record_of(self, lease: ScoreLease) -> ScoreRecord | None:
        """Score a lease; None if it was returned. Raises EngineError if the engine's process does not come back."""
        prompt, began = unpack_tokens(lease.prompt), trio.current_time()
        sequences = [(prompt, unpack_tokens(one)) for one in lease.completions]
        found: list[tuple[float, ...]] = []
        try:
            with self.shift.until_over():
                try:
                    found = await scores_of(self.engine, sequences, lease.temperature)
                except EngineCrashed as crash:  # it was restarted, and has loaded the teacher
                    self.events.emit("engine_crashed", reason=first_line(str(crash)))
                    found = await scores_of(self.engine, sequences, lease.temperature)
        except EngineError as error:
            self._give_up([lease], str(error))
            if not isinstance(error, EngineCrashed | EngineRefused):
                raise  # the engine cannot continue: more leases would only be returned
            self._note(Failed(kind=TroubleKind.ENGINE, reason=first_line(str(error))))
            return None
        took_s = trio.current_time() - began
        self.counts.engine_s += took_s
        if not found:
            self._give_up([lease], NOT_LENT)
            return None
        self._note(Worked(kind=TroubleKind.ENGINE))
        return ScoreRecord(lease=lease.id, scores=[pack_scores(one) for one in found], cost=CostClaim(engine_s=took_s))

    async def _deliver(self, lease: ScoreLease, record: ScoreRecord) -> None:
        raw = await trio.to_thread.run_sync(sign, self.keypair, self.swarm, record)
        receipt, word = await self.work_client.deliver(LeaseId(lease.id), [raw])
        received = Received(receipt=receipt, raw=word, engine_s=record.cost.engine_s, scored=True)
        with trio.CancelScope(shield=True):  # the receipt is written even if the node is about to leave
            await trio.to_thread.run_sync(self.receipts.add_all, [received])
        self._undelivered.release()
        self._settle([lease])
        self.counts.hear(receipt, self.events)
        self._note(Worked(kind=TroubleKind.LEASE))

    async def _persevere(self) -> None:
        """Wait until nothing has worked for too long. Raises GaveUp."""
        while (why := self.retry_policy.verdict(trio.current_time())) is None:
            with trio.move_on_at(self.retry_policy.ends_s):
                await self._stirred.wait()
        self.events.emit("gave_up", reason=why)
        self._give_up(list(self._in_hand.values()), why)
        await self.leave(first_line(why))
        raise GaveUp(why)

    def _shift_changed(self) -> None:
        """Note that the machine is lent, or no longer. If not, unscored leases are returned."""
        if not self.shift.is_lent:
            self._give_up(list(self._in_hand.values()), NOT_LENT)
        self._note(Lent(is_lent=self.shift.is_lent))
        self.work_client.heartbeat_now()

    def _note(self, event: Event) -> None:
        if self.retry_policy.handle(event, trio.current_time()):
            self.work_client.heartbeat_now()
        self._stir()

    def _give_up(self, leases: Sequence[ScoreLease], reason: str) -> None:
        if held := [lease for lease in leases if LeaseId(lease.id) in self._in_hand]:
            self.events.emit("leases_given_back", leases=len(held), reason=first_line(reason))
            self.work_client.return_leases([LeaseId(lease.id) for lease in held], reason[:500])
            self._settle(held)

    def _settle(self, leases: Sequence[ScoreLease]) -> None:
        for lease in leases:
            self.holding.discard(LeaseId(lease.id))
            self._in_hand.pop(LeaseId(lease.id), None)
        self._count_pending()
        self._stir()

    def _count_pending(self) -> None:
        before, self.counts.pending = self.counts.pending, len(self.holding)
        if self.counts.pending != before:
            self.events.emit("work_pending", rollouts=self.counts.pending)

    def _stir(self) -> None:
        self._stirred.set()
        self._stirred = trio.Event()
