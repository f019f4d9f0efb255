"""Do the work of a rollout node: lease prompts, generate completions, sign records and deliver them.

`node.rollout_role.serving_version` decides which version is in service. `node.rollout_role.retry_policy` decides how
long failures are retried, and what the learner is told about them.

Invariants:

- A record names the version that made it, and its manifest.
- The engine works on a lease only with a version that is at least as new as the lease requires.
- At most two batches of leases are in hand, one generating and one waiting, so that a node never hoards work.
- A lease that the learner recalls as too late is dropped at once.
- Nothing is generated while the machine is not lent (`node.rollout_role.availability`).
- When the node is stopped, or its owner needs the machine, unfinished completions are returned if the learner
  accepts them.
- A lease that goes back for the owner's sake, or because the learner recalled it, is no failure.

Loops: `_lease` keeps one batch of leases waiting. `_generate` consumes the batches. Each delivery waits for its receipt
in a task of its own. `_persevere` waits until nothing has worked for too long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import trio

from learner.scheduling.batch_speed import Speed
from node.engine.interface import (
    EngineCrashed,
    EngineError,
    EngineRefused,
    FinishReason,
    Generation,
    GenerationRequest,
    PolicyEngine,
)
from node.engine.lease_requests import learners_clock, record_of, requests_of
from node.engine.throughput import measure_speed
from node.rollout_role.availability import Availability
from node.rollout_role.retry_policy import Event, Failed, Lent, RetryPolicy, Worked
from node.rollout_role.serving_version import ServingVersion
from node.runtime.batched_calls import BatchedCalls
from node.runtime.events import EventLog
from node.state.receipts import Receipts, Received
from protocol.accounting.relay_receipt import relay_receipt
from protocol.core.envelope import sign
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId, ManifestHash, PolicyVersion, SwarmId, short
from protocol.core.visible import first_line
from protocol.trouble import TroubleKind
from protocol.versions.formats import STORED
from protocol.work import LeaseRecall, Receipt, Rule, Started
from swarm.store import ChunkStore
from swarm.transport.error_groups import first_cause
from swarm.versions.follower import Arrival
from swarm.work.client import MAX_UNDELIVERED, Granted, WorkClient

LEASE, ENGINE = TroubleKind.LEASE, TroubleKind.ENGINE

GOODBYE_S = 1.0
"""Seconds that a goodbye may take."""

INTERRUPT_S = 2.0
"""Seconds that the engine may take to return unfinished completions. It needs one step, which takes milliseconds, or
the prefill of long prompts on a slow machine. After that it is cancelled, and its completions are lost."""

RETURN_S = 3.0
"""Seconds to wait until what was returned is on the learner's disk, the engine's time included. An owner who presses
Ctrl-C waits no longer than this."""

STOPPED = "the node was stopped"

LATE = "they would be late: this node takes longer than the time until their deadline"
LATE_IN_HOURS = f"{LATE}, or than the rest of its owner's hours"
OVER = "the hours are over in which this machine's owner lends it"
HELD = "this machine is not lent now"
"""The reason for a pause that the learner is told. The real reason is the owner's business."""
DRAINED = "this node ends, and its owner gave it no more time"

ASK_AGAIN_S = 10.0
"""Seconds of pause after a batch of which no lease could be finished within the owner's hours. The learner thinks that
we are faster than we are, and would grant as many at once."""


UNTRUE = "they were made with weights that are not the version's"
FELL_BACK = "the engine went back to an older version than they were begun with"
NOT_HERE = "the version these leases require did not arrive before their deadline"

SIGNED_TOGETHER = 16
"""Most groups that one call of a thread signs, in some milliseconds. No more than may wait for their receipts."""

THANKS_WAITING = 16
"""Most relay receipts that wait to be written. Each comes with a version, which takes seconds at least."""


class GaveUp(Exception):
    """Raised when nothing has worked for too long. The message says what failed, why, and what the owner can do."""


@dataclass(kw_only=True)
class RolloutCounts:
    """What this node did since its start, for the view and the heartbeat. `tokens_per_s` is measured once."""

    admitted: int = 0
    rejected: int = 0
    tokens: int = 0
    pending: int = 0
    engine_s: float = 0.0
    tokens_per_s: float | None = None

    def hear(self, receipt: Receipt, events: EventLog) -> None:
        """Count the verdicts of a receipt, and log them."""
        admitted = sum(verdict.admitted for verdict in receipt.verdicts)
        self.admitted += admitted
        self.rejected += len(receipt.verdicts) - admitted
        self.tokens += receipt.tokens
        rejected = next((verdict for verdict in receipt.verdicts if verdict.rule is not Rule.ADMITTED), None)
        events.emit(
            "receipt",
            lease=short(LeaseId(receipt.lease)),
            admitted=admitted,
            refused=len(receipt.verdicts) - admitted,
            reason=rejected.rule.value if rejected else None,
            detail=rejected.detail if rejected else None,
            tokens=receipt.tokens,
        )


@dataclass(kw_only=True, eq=False)
class _Begun:
    """The batch that the engine generates: leases that were begun with `version`.

    `scope` stops it at once. `interrupted` stops it for a `reason`, and unfinished completions are kept.
    """

    version: PolicyVersion
    leases: set[LeaseId]
    scope: trio.CancelScope
    interrupted: trio.Event = field(default_factory=trio.Event)
    reason: str = ""

    def interrupt(self, reason: str) -> None:
        """Stop the batch, and keep unfinished completions. The first reason counts."""
        self.reason = self.reason or reason
        self.interrupted.set()


@dataclass(kw_only=True)
class RolloutWorker:
    """The work of a node that generates.

    `work_client` is the connection to the learner, which the application opens. The engine takes `batch_rollouts`
    rollouts at a time.
    """

    engine: PolicyEngine
    store: ChunkStore
    keypair: Keypair
    swarm: SwarmId
    work_client: WorkClient
    receipts: Receipts
    in_flight: Callable[[], ManifestHash | None]
    batch_rollouts: int
    now_ms: Callable[[], int]
    events: EventLog
    form: str = STORED
    """The format in which the engine holds weights. Records name it."""
    shift: Availability = field(default_factory=Availability)
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    counts: RolloutCounts = field(default_factory=RolloutCounts)
    holding: set[LeaseId] = field(default_factory=set)
    is_draining: bool = False
    """Whether the node takes no more leases, and will end."""
    service: ServingVersion = field(init=False)
    _speed: Speed = field(default_factory=Speed)
    _undelivered: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(MAX_UNDELIVERED))
    _stirred: trio.Event = field(default_factory=trio.Event)
    _in_hand: dict[LeaseId, Granted] = field(default_factory=dict)
    _rollouts: dict[LeaseId, int] = field(default_factory=dict)
    """Rollouts of each lease that is held, as granted."""
    _begun: _Begun | None = None
    _asks_again_s: float = -math.inf
    _asking: trio.CancelScope | None = None
    _paused: bool = False

    def __post_init__(self) -> None:
        self._thanks, self._thanked = trio.open_memory_channel[tuple[ManifestHash, bytes]](THANKS_WAITING)
        self._keep = BatchedCalls(self.receipts.add_all, most=MAX_UNDELIVERED)
        self.service = ServingVersion(
            engine=self.engine,
            store=self.store,
            in_flight=self.in_flight,
            shift=self.shift,
            events=self.events,
            on_change=self._stir,
            on_installed=self.work_client.heartbeat_now,
            retry_policy=self.retry_policy,
            happened=self._note,
        )

    @property
    def has_freed_memory(self) -> bool:
        """Return whether the engine's memory is free while the machine is not lent."""
        return self.service.has_freed_memory

    @property
    def installed(self) -> PolicyVersion | None:
        """Return the version in service (`ServingVersion.installed`)."""
        return self.service.installed

    def arrive(self, arrival: Arrival) -> None:
        """Install this version next, which is complete in the store, and sign who relayed it."""
        self.events.emit(
            "version_fetched",
            version=str(arrival.signed.version),
            seconds=round(arrival.seconds, 3),
            fetched_bytes=sum(arrival.obtained.fetched.by_peer.values()),
            patch_bytes=arrival.obtained.patch_bytes,
            patches=arrival.obtained.num_patches,
            apply_seconds=round(arrival.obtained.apply_s, 4),
            sources=len(arrival.obtained.fetched.by_peer),
        )
        self.service.offer(arrival.signed)
        self._thank(arrival)

    def note_fetch_failure(self, version: PolicyVersion, reason: str) -> None:
        """Note that the newest version could not be fetched.

        The reason may be the connection, other nodes or the disk. So the learner is told, but the node never gives up
        because of it.
        """
        self._note(Failed(kind=TroubleKind.FETCH, reason=first_line(reason), version=version, may_pass=True))

    async def run(self) -> None:
        """Work until cancelled.

        Raises EngineError if the engine cannot continue at all. Raises GaveUp, after a goodbye, if nothing has worked
        for too long.
        """
        # Nothing waits in the channel: `_lease` holds the next batch, which is enough to keep the engine busy.
        send, receive = trio.open_memory_channel[list[Granted]](0)
        try:
            with first_cause():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.shift.run, self._shift_changed)
                    nursery.start_soon(self.service.run)
                    nursery.start_soon(self._keep_thanks)
                    nursery.start_soon(self._persevere)
                    nursery.start_soon(self._lease, send)
                    nursery.start_soon(self._generate, receive, nursery)
        except EngineError as lost:  # tell the learner why while there is still a connection
            self._note(Failed(kind=ENGINE, reason=first_line(str(lost)), version=self.installed, is_final=True))
            await self._end(str(lost))
            raise

    async def drain(self, within_s: float | None) -> int:
        """Take no more leases, and wait until all that are held were delivered and acknowledged.

        After `within_s`, if given, unfinished leases are returned. Returns how many were not delivered by then.
        """
        self.is_draining = True
        if self._asking is not None:
            self._asking.cancel()
        self.events.emit("drain_began", leases=len(self.holding), within_s=within_s)
        with trio.move_on_after(math.inf if within_s is None else within_s):
            while self.holding:
                await self._stirred.wait()
        undelivered = len(self.holding)
        await self._return_leases(DRAINED)
        self.events.emit("drained", undelivered=undelivered)
        return undelivered

    async def leave(self, reason: str = STOPPED) -> None:
        """Hand back unfinished completions, and say goodbye, so that our leases go to other nodes at once.

        That takes at most RETURN_S and GOODBYE_S. Without a connection to the learner, nothing is sent.
        """
        self.is_draining = True
        if self._asking is not None:
            self._asking.cancel()
        if self._begun is not None and self.work_client.takes_parts:
            await self._return_leases(reason)
        with trio.move_on_after(GOODBYE_S):
            await self.work_client.leave(reason)

    async def _return_leases(self, reason: str) -> None:
        """Stop the engine, and wait until the learner has the unfinished completions, at most RETURN_S."""
        begun = set(self._begun.leases) if self._begun is not None else set[LeaseId]()
        self._stop_making(reason)
        with trio.move_on_after(RETURN_S):
            while begun & self.holding:
                await self._stirred.wait()

    def _note(self, event: Event) -> None:
        """Note that something failed or worked, and tell the learner if its view of our troubles changes."""
        if self.retry_policy.handle(event, trio.current_time()):
            self.work_client.heartbeat_now()
        self._stir()

    async def _persevere(self) -> None:
        """Wait until nothing has worked for too long. Raises GaveUp."""
        while (why := self.retry_policy.verdict(trio.current_time())) is None:
            with trio.move_on_at(self.retry_policy.ends_s):
                await self._stirred.wait()
        self.events.emit("gave_up", reason=why)
        await self._end(why)
        raise GaveUp(why)

    async def _end(self, why: str) -> None:
        """Return unfinished leases, and say goodbye."""
        self._stop_making(why)
        await self.leave(first_line(why))

    def _thank(self, arrival: Arrival) -> None:
        """Sign which peers relayed the version to us, so that the learner can credit them.

        Chunks that the learner itself sent need no receipt.
        """
        signed = arrival.signed
        givers = {chunk: peer for chunk, peer in arrival.obtained.fetched.givers.items() if peer != signed.signer}
        if (receipt := relay_receipt(signed.hash, givers)) is not None:
            raw = sign(self.keypair, self.swarm, receipt)
            self.work_client.tell_relayed(raw)
            with suppress(trio.WouldBlock):
                self._thanks.send_nowait((signed.hash, raw))

    async def _keep_thanks(self) -> None:
        """Keep the relay receipts that we signed."""
        async for manifest, raw in self._thanked:
            await trio.to_thread.run_sync(self.receipts.relayed, manifest, raw, self.now_ms())

    async def _lease(self, batches: trio.MemorySendChannel[list[Granted]]) -> None:
        while True:
            granted: list[Granted] = []
            await self.shift.wait_on()
            if self.is_draining:
                return
            with self.shift.until_over(), trio.CancelScope() as self._asking:
                while self.installed is None:  # before the first version, or after a rest
                    await self._stirred.wait()
                while self._in_hand and self.retry_policy.fails(
                    LEASE, ENGINE
                ):  # one batch at a time while batches fail
                    await self._stirred.wait()
                await trio.sleep_until(max(self._asks_again_s, self.retry_policy.again_s(LEASE, ENGINE)))
                if self.counts.tokens_per_s is None:  # before the first lease, while nothing else runs
                    speed = self.counts.tokens_per_s = await measure_speed(self.engine, self.batch_rollouts)
                    self.events.emit("speed_measured", tokens_per_s=round(speed, 1))
                    self.work_client.heartbeat_now()
                granted = self._not_held(await self.work_client.request_leases(self.batch_rollouts))
            if not granted:
                continue
            self.holding |= {LeaseId(grant.lease.id) for grant in granted}
            self._in_hand |= {LeaseId(grant.lease.id): grant for grant in granted}
            self._rollouts |= {LeaseId(grant.lease.id): len(grant.lease.seeds) for grant in granted}
            self._count_pending()
            if self.shift.is_lent:
                await batches.send(granted)
            else:  # they arrived just when the hours ended or a pause began
                self._give_up(granted, self._why_not)

    @property
    def _why_not(self) -> str:
        """Return why nothing is generated now, for the learner."""
        return HELD if self.shift.held else OVER

    def _shift_changed(self) -> None:
        """Note that the machine is lent, or no longer, or is not lent for a new reason.

        If it is not lent, unfinished leases are returned.
        """
        if self.shift.is_lent and self._paused:
            self.events.emit("resumed")
        elif self.shift.is_lent:
            self.events.emit("hours_began", until=self.shift.turns_at)
        elif self.shift.held:
            self.events.emit("paused", why=self.shift.held)
        else:
            self.events.emit("hours_ended", again_at=self.shift.turns_at)
        self._paused = bool(self.shift.held)
        self._note(Lent(is_lent=self.shift.is_lent))
        if not self.shift.is_lent:
            self._stop_making(self._why_not)
        self.work_client.heartbeat_now()

    def _stop_making(self, reason: str) -> None:
        """Stop the engine, and return all leases that are not being delivered.

        Unfinished completions are returned if the learner accepts them.
        """
        begun, kept = self._begun, set[LeaseId]()
        if begun is not None and self.work_client.takes_parts:
            kept = begun.leases
            begun.interrupt(reason)
        self._give_up([grant for lease, grant in self._in_hand.items() if lease not in kept], reason)
        self._stir()
        if begun is not None and not kept:
            begun.scope.cancel()

    async def _generate(self, batches: trio.MemoryReceiveChannel[list[Granted]], nursery: trio.Nursery) -> None:
        async for granted in batches:
            version = await self._await_version(granted)
            granted = self._held(granted)
            if not granted:
                continue
            if version is None:
                failed = Failed(kind=LEASE, reason=NOT_HERE, version=self.installed, may_pass=True)
                self._fail(granted, failed)
                continue
            if late := self._late(granted):
                self._give_up(late, LATE if self.shift.left_s is None else LATE_IN_HOURS)
                granted = granted[: -len(late)]
            if not granted:
                self._asks_again_s = trio.current_time() + ASK_AGAIN_S
                continue
            started_ms = self.now_ms()
            begun = self._begin(granted, version)
            try:
                made = await self._generate_batch(granted, begun)
            except EngineError as error:
                if not isinstance(error, EngineCrashed | EngineRefused):
                    self._give_up(self._held(granted), str(error))
                    raise  # the engine cannot continue: more leases would only be returned
                kind = ENGINE if isinstance(error, EngineCrashed) else LEASE
                self._fail(granted, Failed(kind=kind, reason=first_line(str(error)), version=version))
                continue
            finally:
                self._begun = None
            if not await self.service.trusts(
                span.version.manifest for _, mine in made for one in mine for span in one.spans
            ):
                self._fail(granted, Failed(kind=LEASE, reason=UNTRUE, version=version))
                continue
            if any(span.version.name < version for _, mine in made for one in mine for span in one.spans):
                self._fail(granted, Failed(kind=LEASE, reason=FELL_BACK, version=version))
                continue
            if made and not begun.reason:
                self._note(Worked(kind=LEASE))
                self._speed.observe(sum(len(mine) for _, mine in made), (self.now_ms() - started_ms) / 1000)
            made = [(grant, mine) for grant, mine in made if self._in_hand.pop(LeaseId(grant.lease.id), None)]
            for begin in range(0, len(made), SIGNED_TOGETHER):
                part = made[begin : begin + SIGNED_TOGETHER]
                for _ in part:
                    await self._undelivered.acquire()
                nursery.start_soon(self._deliver_all, part, started_ms, begun.reason)

    async def _await_version(self, granted: Sequence[Granted]) -> PolicyVersion | None:
        """Wait until a version is in service that is new enough for all leases, and return it.

        Leases that are recalled meanwhile do not count. Returns None if their deadline passes first, or none is left.
        """
        deadline_ms = min(grant.lease.deadline_ms - grant.clock_offset_ms for grant in granted)
        with trio.move_on_after(max(0.0, (deadline_ms - self.now_ms()) / 1000)):
            while held := self._held(granted):
                if (installed := self.installed) is not None and installed >= max(one.lease.minimum for one in held):
                    return installed
                await self._stirred.wait()
        return None

    def _not_held(self, granted: Sequence[Granted]) -> list[Granted]:
        """Return each lease once, without those that we hold: a learner that grants one again has lost count."""
        named = {LeaseId(grant.lease.id): grant for grant in granted}
        return [grant for lease, grant in named.items() if lease not in self.holding]

    def _held(self, granted: Sequence[Granted]) -> list[Granted]:
        """Return the leases that were not returned."""
        return [grant for grant in granted if LeaseId(grant.lease.id) in self._in_hand]

    def _begin(self, granted: Sequence[Granted], version: PolicyVersion) -> _Begun:
        """Note that the engine begins these leases, and tell the learner."""
        for grant in granted:
            self.work_client.tell_started(Started(lease=grant.lease.id, version=version))
        leases = {LeaseId(grant.lease.id) for grant in granted}
        self._begun = begun = _Begun(version=version, leases=leases, scope=trio.CancelScope())
        return begun

    async def _generate_batch(
        self, granted: Sequence[Granted], begun: _Begun
    ) -> list[tuple[Granted, Sequence[Generation]]]:
        """Return the engine's completions for each lease. Raises EngineError.

        The result is empty if all leases were recalled, or if the engine did not stop in time.
        """
        began = trio.current_time()
        with begun.scope as scope:
            requests = [request for grant in granted for request in requests_of(grant.lease)]
            made = iter(await self._complete_unless_interrupted(requests, begun))
        if scope.cancelled_caught:
            self._give_up(self._held(granted), begun.reason)  # none is held if all were recalled
            self.counts.engine_s += trio.current_time() - began
            return []
        shares: list[tuple[Granted, Sequence[Generation]]]
        shares = [(grant, list(islice(made, len(grant.lease.seeds)))) for grant in granted]
        self.counts.engine_s += sum(completion.generation_s for _, mine in shares for completion in mine)
        return shares

    def recall(self, recall: LeaseRecall) -> None:
        """Return the recalled leases whose version is too old to be used.

        That is the version that they were begun with, or would be begun with now. Other leases, and those being
        delivered, stay. The engine stops if nothing is left of its batch.
        """
        named = [grant for lease in recall.leases if (grant := self._in_hand.get(LeaseId(lease))) is not None]
        hopeless = [grant for grant in named if self._version_of(grant) < recall.minimum]
        if hopeless:
            self._give_up(hopeless, f"the learner accepts only records of version {recall.minimum} or newer")
            self._stir()
            if self._begun is not None and not self._begun.leases & self._in_hand.keys():
                self._begun.scope.cancel()

    def _version_of(self, grant: Granted) -> PolicyVersion:
        """Return the version that the lease was begun with, or would be begun with now."""
        if self._begun is not None and LeaseId(grant.lease.id) in self._begun.leases:
            return self._begun.version
        return grant.lease.minimum if self.installed is None else max(self.installed, grant.lease.minimum)

    def _stir(self) -> None:
        """Wake the tasks that wait for a version, for leases to go, or for something that failed to work again."""
        self._stirred.set()
        self._stirred = trio.Event()

    def _late(self, granted: Sequence[Granted]) -> Sequence[Granted]:
        """Return the last leases of a batch, those that would miss their deadline at the engine's recent speed.

        Other nodes generate them sooner if we return them now. One lease is always tried, because otherwise a node
        could never find out that it has become faster. But it must fit into the owner's hours.
        """
        left_s = self.shift.left_s
        kept = len(granted)
        end_ms = math.inf if left_s is None else self.now_ms() + 1000 * left_s
        while kept > 0:
            rollouts = sum(len(grant.lease.seeds) for grant in granted[:kept])
            deadline_ms = min(grant.lease.deadline_ms - grant.clock_offset_ms for grant in granted[:kept])
            made_ms = self.now_ms() + 1000 * self._speed.seconds(rollouts)
            if made_ms <= end_ms and (kept == 1 or made_ms <= deadline_ms):
                break
            kept -= 1
        return granted[kept:]

    async def _complete_unless_interrupted(
        self, requests: Sequence[GenerationRequest], begun: _Begun
    ) -> list[Generation]:
        """Generate. Once interrupted, return what there is, or be cancelled after INTERRUPT_S."""
        with first_cause():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._interrupt_when_told, begun)
                made = await self._complete(requests, begun)
                nursery.cancel_scope.cancel()
        return made

    async def _interrupt_when_told(self, begun: _Begun) -> None:
        await begun.interrupted.wait()
        with trio.move_on_after(INTERRUPT_S):
            with suppress(EngineError):  # the interrupted call raises it as well
                await self.engine.interrupt()
            await trio.sleep_forever()
        begun.scope.cancel()

    async def _complete(self, requests: Sequence[GenerationRequest], begun: _Begun) -> list[Generation]:
        """Generate. If the engine crashes, generate once more, since it was restarted by then."""
        try:
            return await self.engine.generate(requests)
        except EngineCrashed as crash:
            if begun.interrupted.is_set():
                raise
            self.events.emit("engine_crashed", reason=first_line(str(crash)))
            return await self.engine.generate(requests)

    def _fail(self, granted: Sequence[Granted], failed: Failed) -> None:
        """Return the leases that are still held, and note the failure.

        If none is held, it is no failure: all were recalled, or went back because the owner needs the machine.
        """
        if held := self._held(granted):
            self._give_up(held, failed.reason)
            self._note(failed)

    def _give_up(self, granted: Sequence[Granted], reason: str) -> None:
        if not granted:
            return
        leases = [LeaseId(grant.lease.id) for grant in granted]
        self.events.emit("leases_given_back", leases=len(leases), reason=first_line(reason))
        self.work_client.return_leases(leases, reason[:500])
        self._settle(granted)

    async def _deliver_all(
        self, made: Sequence[tuple[Granted, Sequence[Generation]]], started_ms: int, interrupted: str
    ) -> None:
        """Sign the records of these leases, and deliver each lease.

        If the batch was interrupted, `interrupted` says why, and unfinished leases are returned.
        """
        # Signing on a thread does not delay the network. A call signs many, since it costs as much as a signature.
        signed = await trio.to_thread.run_sync(lambda: [self._sign(grant, mine, started_ms) for grant, mine in made])
        async with trio.open_nursery() as nursery:
            for (grant, mine), records in zip(made, signed, strict=True):
                nursery.start_soon(self._deliver, grant, mine, records, interrupted)

    def _sign(self, grant: Granted, completions: Sequence[Generation], started_ms: int) -> list[bytes]:
        began_ms = learners_clock(started_ms, grant.clock_offset_ms)
        return [
            sign(self.keypair, self.swarm, record_of(grant.lease, index, completion, began_ms, self.form))
            for index, completion in enumerate(completions)
            if completion.tokens
        ]

    async def _deliver(
        self, grant: Granted, completions: Sequence[Generation], records: list[bytes], interrupted: str
    ) -> None:
        lease = grant.lease
        handed_in = await self._hand_in(LeaseId(lease.id), completions, records, interrupted)
        if handed_in is None:
            self._undelivered.release()
            self._settle([grant])
            return
        receipt, raw = handed_in
        engine_s = sum(completion.generation_s for completion in completions)
        with trio.CancelScope(shield=True):  # the receipt is written even if the node is about to leave
            await self._keep(Received(receipt=receipt, raw=raw, engine_s=engine_s))
        self._undelivered.release()
        self._settle([grant])
        self.counts.hear(receipt, self.events)

    async def _hand_in(
        self, lease: LeaseId, completions: Sequence[Generation], records: list[bytes], interrupted: str
    ) -> tuple[Receipt, bytes] | None:
        """Deliver the records of a lease, or return those of an interrupted one, and return the receipt.

        None: nothing was generated for the lease, and it was returned.
        """
        begun = [one for one in completions if one.finish is FinishReason.PART]
        if not begun:
            return await self.work_client.deliver(lease, records)
        if not records:
            self.events.emit("leases_given_back", leases=1, reason=first_line(interrupted))
            self.work_client.return_leases([lease], interrupted[:500])
            return None
        self.events.emit(
            "handed_back",
            lease=short(lease),
            finished=len(completions) - len(begun),
            begun=sum(bool(one.tokens) for one in begun),
            tokens=sum(len(one.tokens) for one in completions),
            reason=first_line(interrupted),
        )
        return await self.work_client.return_begun(lease, records, interrupted)

    def _settle(self, granted: Sequence[Granted]) -> None:
        for grant in granted:
            self.holding.discard(LeaseId(grant.lease.id))
            self._in_hand.pop(LeaseId(grant.lease.id), None)
            self._rollouts.pop(LeaseId(grant.lease.id), None)
        self._count_pending()
        self._stir()

    def _count_pending(self) -> None:
        before, self.counts.pending = self.counts.pending, sum(self._rollouts.values())
        if self.counts.pending != before:
            self.events.emit("work_pending", rollouts=self.counts.pending)
