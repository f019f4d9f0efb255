"""The rollout role: follow the newest version, lease prompts, generate, sign, deliver, relay.

What always holds: a record is signed with the version that made it and names its manifest; a lease is worked on only
with a version at least as new as it asks for; at most two batches of leases are in hand (one generating, one waiting),
so that a node never hoards work; what was in service stays in service while a new version is fetched or when it cannot
be installed.

Loops: `_install` consumes arrivals, wakes on the newest; `_lease` keeps one batch of leases waiting; `_generate`
consumes them; each delivery waits for its receipt in a task of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from learner.speed import Speed
from node.engine.port import (
    EngineCrashed,
    EngineError,
    Generation,
    GenerationRequest,
    InstalledVersion,
    InstallFailed,
    PolicyEngine,
)
from node.events import EventLog
from node.receipts import Receipts
from node.speed import measure_speed
from protocol.codec import pack_logprobs, pack_tokens, unpack_tokens
from protocol.cost import CostClaim
from protocol.identity import Keypair
from protocol.ids import LeaseId, ManifestHash, PeerId, PolicyVersion, SwarmId
from protocol.relay import relay_receipt, sign_relay_receipt
from protocol.work import Introduction, Lease, RolloutRecord, Rule, Span, Started, Timing, sign_record
from swarm.delivery import MAX_UNDELIVERED, Connected, Disconnected, Granted, LineEvent, NoLease, WorkLine
from swarm.following import Arrival
from swarm.store import ChunkStore
from swarm.transport import DialFailed, Transport

GOODBYE_S = 1.0
"""How long a goodbye may take when we leave."""

INSTALL_RETRY_S = 5.0
"""Pause after an installation failed for a reason that may pass."""


@dataclass(kw_only=True)
class RolloutCounts:
    """What this node did since it started, for the view and the heartbeat; `tokens_per_s` is measured once."""

    admitted: int = 0
    refused: int = 0
    tokens: int = 0
    pending: int = 0
    engine_s: float = 0.0
    tokens_per_s: float | None = None


@dataclass(kw_only=True)
class RolloutRole:
    """See the module's paragraph. The application opens `line`; the engine takes `batch_rollouts` at a time."""

    engine: PolicyEngine
    store: ChunkStore
    keypair: Keypair
    swarm: SwarmId
    line: WorkLine
    receipts: Receipts
    in_flight: Callable[[], ManifestHash | None]
    batch_rollouts: int
    now_ms: Callable[[], int]
    events: EventLog
    counts: RolloutCounts = field(default_factory=RolloutCounts)
    holding: set[LeaseId] = field(default_factory=set)
    _newest: Arrival | None = None
    _speed: Speed = field(default_factory=Speed)
    _pinned: set[ManifestHash] = field(default_factory=set)
    _undelivered: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(MAX_UNDELIVERED))
    _arrived: trio.Event = field(default_factory=trio.Event)
    _installed: trio.Event = field(default_factory=trio.Event)

    @property
    def installed(self) -> PolicyVersion | None:
        """The version in service, None before the first."""
        return None if self.engine.installed is None else self.engine.installed.name

    def arrived(self, arrival: Arrival) -> None:
        """A version is complete in the store; the newest one is installed next."""
        self.events.emit(
            "version_fetched",
            version=str(arrival.signed.version),
            seconds=round(arrival.seconds, 3),
            fetched_bytes=sum(arrival.obtained.fetched.by_peer.values()),
            patch_bytes=arrival.obtained.patch_bytes,
            patches=arrival.obtained.num_patches,
            sources=len(arrival.obtained.fetched.by_peer),
        )
        self._newest = arrival
        self._pin()
        self._arrived.set()
        self._thank(arrival)

    async def run(self) -> None:
        """Work until cancelled. Raises EngineError when the engine cannot go on at all."""
        # Nothing waits in the channel: `_lease` holds the batch that is next, which is enough to keep the engine busy.
        send, receive = trio.open_memory_channel[list[Granted]](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._install)
            nursery.start_soon(self._lease, send)
            nursery.start_soon(self._generate, receive, nursery)

    async def leave(self) -> None:
        """Say goodbye if the learner can be reached, so that our leases go to others at once; within GOODBYE_S."""
        with trio.move_on_after(GOODBYE_S):
            await self.line.leave("the node was stopped")

    async def _install(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            arrival = self._newest
            if arrival is None or self._is_installed(arrival):
                continue
            version = InstalledVersion(name=arrival.signed.version, manifest=arrival.signed.hash)
            began = trio.current_time()
            try:
                await self.engine.install(version, self.store.directory(arrival.signed.hash))
            except (InstallFailed, EngineCrashed) as error:
                self.events.emit("install_failed", version=str(version.name), reason=str(error).splitlines()[0])
                await trio.sleep(INSTALL_RETRY_S)
                self._arrived.set()
                continue
            seconds = round(trio.current_time() - began, 3)
            self.events.emit("version_installed", version=str(version.name), seconds=seconds)
            self.line.beat_now()
            self._pin()
            if self.counts.tokens_per_s is None:  # before the first lease, so that nothing else runs meanwhile
                await self._measure()
            self._installed.set()
            self._installed = trio.Event()
            await trio.to_thread.run_sync(self.store.evict, self._keep())

    async def _measure(self) -> None:
        speed = self.counts.tokens_per_s = await measure_speed(self.engine, self.batch_rollouts)
        self.events.emit("speed_measured", tokens_per_s=round(speed, 1))
        self.line.beat_now()

    def _thank(self, arrival: Arrival) -> None:
        """Sign who relayed the version to us, for the learner to credit. What it gave us itself needs no thanks."""
        signed = arrival.signed
        givers = {chunk: peer for chunk, peer in arrival.obtained.fetched.givers.items() if peer != signed.signer}
        if (receipt := relay_receipt(signed.hash, givers)) is not None:
            self.line.relayed(sign_relay_receipt(self.keypair, self.swarm, receipt))

    def _is_installed(self, arrival: Arrival) -> bool:
        return self.engine.installed is not None and self.engine.installed.manifest == arrival.signed.hash

    def _pin(self) -> None:
        """Let the store make no room by evicting what is in service, or what will be next; anything else it may."""
        wanted = {self._newest.signed.hash} if self._newest is not None else set()
        if self.engine.installed is not None:
            wanted.add(self.engine.installed.manifest)
        for manifest in wanted - self._pinned:
            self.store.pin(manifest)
        for manifest in self._pinned - wanted:
            self.store.unpin(manifest)
        self._pinned = wanted

    def _keep(self) -> set[ManifestHash]:
        """The version in service, the newest one, what is being fetched, and what its patches start from."""
        keep = {flying} if (flying := self.in_flight()) is not None else set()
        if self.engine.installed is not None:
            keep.add(self.engine.installed.manifest)
        if self._newest is not None:
            keep.add(self._newest.signed.hash)
            keep.update(patch.base_hash for patch in self._newest.signed.manifest.patches)
        return keep

    async def _lease(self, batches: trio.MemorySendChannel[list[Granted]]) -> None:
        while self.installed is None:
            await self._installed.wait()
        while True:
            granted = await self.line.request_leases(self.batch_rollouts)
            self.holding |= {LeaseId(grant.lease.id) for grant in granted}
            self.counts.pending += sum(len(grant.lease.seeds) for grant in granted)
            await batches.send(granted)

    async def _generate(self, batches: trio.MemoryReceiveChannel[list[Granted]], nursery: trio.Nursery) -> None:
        async for granted in batches:
            version = await self._await_version(granted)
            if version is None:
                self._give_up(granted, "the version these leases ask for did not arrive before their deadline")
                continue
            if late := self._late(granted):
                self._give_up(late, "they would be late: this node takes longer than is left until their deadline")
                granted = granted[: -len(late)]
            for grant in granted:
                self.line.started(Started(lease=grant.lease.id, version=version))
            started_ms = self.now_ms()
            try:
                completions = await self._complete(
                    [request for grant in granted for request in requests_of(grant.lease)]
                )
            except EngineError as error:
                self._give_up(granted, str(error))
                continue
            self.counts.engine_s += sum(completion.generation_s for completion in completions)
            self._speed.observe(len(completions), (self.now_ms() - started_ms) / 1000)
            for grant in granted:
                mine, completions = completions[: len(grant.lease.seeds)], completions[len(grant.lease.seeds) :]
                await self._undelivered.acquire()
                nursery.start_soon(self._deliver, grant, mine, started_ms)

    async def _await_version(self, granted: Sequence[Granted]) -> PolicyVersion | None:
        """Wait until a version is in service that all leases accept; None when their deadline passes first."""
        minimum = max(grant.lease.minimum for grant in granted)
        deadline_ms = min(grant.lease.deadline_ms - grant.clock_offset_ms for grant in granted)
        with trio.move_on_after(max(0.0, (deadline_ms - self.now_ms()) / 1000)):
            while (installed := self.installed) is None or installed < minimum:
                await self._installed.wait()
            return installed
        return None

    def _late(self, granted: Sequence[Granted]) -> Sequence[Granted]:
        """The last ones, which would be delivered after their deadline by what the engine took of late: others make
        them sooner, and hear of them now. One is always tried, or a node could never find out that it has become
        faster.
        """
        kept = len(granted)
        while kept > 1:
            rollouts = sum(len(grant.lease.seeds) for grant in granted[:kept])
            deadline_ms = min(grant.lease.deadline_ms - grant.clock_offset_ms for grant in granted[:kept])
            if self.now_ms() + 1000 * self._speed.seconds(rollouts) <= deadline_ms:
                break
            kept -= 1
        return granted[kept:]

    async def _complete(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Generate; once more when the engine crashed under us, since by then it was restarted."""
        try:
            return await self.engine.generate(requests)
        except EngineCrashed as crash:
            self.events.emit("engine_crashed", reason=str(crash).splitlines()[0])
            return await self.engine.generate(requests)

    def _give_up(self, granted: Sequence[Granted], reason: str) -> None:
        leases = [LeaseId(grant.lease.id) for grant in granted]
        self.events.emit("leases_given_back", leases=len(leases), reason=reason.splitlines()[0])
        self.line.give_back(leases, reason[:500])
        self._settle(granted)

    async def _deliver(self, grant: Granted, completions: Sequence[Generation], started_ms: int) -> None:
        lease = grant.lease
        # Signing a group takes milliseconds of pure CPU; a worker thread keeps the network's turn short.
        records = await trio.to_thread.run_sync(
            self._sign_all, lease, completions, max(0, started_ms + grant.clock_offset_ms)
        )
        receipt, raw = await self.line.deliver(LeaseId(lease.id), records)
        engine_s = sum(completion.generation_s for completion in completions)
        with trio.CancelScope(shield=True):  # what was acknowledged is written, also when we are about to leave
            await trio.to_thread.run_sync(lambda: self.receipts.add(receipt, raw, engine_s=engine_s))
        self._undelivered.release()
        self._settle([grant])
        admitted = sum(verdict.admitted for verdict in receipt.verdicts)
        self.counts.admitted += admitted
        self.counts.refused += len(receipt.verdicts) - admitted
        self.counts.tokens += receipt.tokens
        refused = next((verdict for verdict in receipt.verdicts if verdict.rule is not Rule.ADMITTED), None)
        self.events.emit(
            "receipt",
            lease=lease.id.hex()[:8],
            admitted=admitted,
            refused=len(receipt.verdicts) - admitted,
            reason=refused.rule.value if refused else None,
            detail=refused.detail if refused else None,
            tokens=receipt.tokens,
        )

    def _settle(self, granted: Sequence[Granted]) -> None:
        for grant in granted:
            self.holding.discard(LeaseId(grant.lease.id))
            self.counts.pending -= len(grant.lease.seeds)

    def _sign_all(self, lease: Lease, completions: Sequence[Generation], started_ms: int) -> list[bytes]:
        return [
            sign_record(self.keypair, self.swarm, record_of(lease, index, completion, started_ms))
            for index, completion in enumerate(completions)
        ]


def requests_of(lease: Lease) -> list[GenerationRequest]:
    """What a lease asks of the engine: one request a seed."""
    prompt = unpack_tokens(lease.prompt)
    return [
        GenerationRequest(
            prompt=prompt,
            seed=seed,
            temperature=lease.sampler.temperature,
            max_new_tokens=lease.max_new_tokens,
            stop_ids=frozenset(lease.stop_ids),
        )
        for seed in lease.seeds
    ]


def record_of(lease: Lease, index: int, completion: Generation, started_ms: int) -> RolloutRecord:
    """The evidence of completion `index` of `lease`."""
    return RolloutRecord(
        lease=lease.id,
        index=index,
        tokens=pack_tokens(completion.tokens),
        logprobs=pack_logprobs(completion.logprobs),
        spans=[
            Span(start=span.start, end=span.end, version=span.version.name, manifest=span.version.manifest)
            for span in completion.spans
        ],
        sampler=lease.sampler,
        timing=Timing(started_ms=started_ms, generation_ms=round(completion.generation_s * 1000)),
        cost=CostClaim(engine_s=completion.generation_s),
    )


@dataclass(kw_only=True)
class Neighbours:
    """Dials the peers the learner introduces, so that chunks travel among peers and not from the learner alone.

    Of two peers that can both be dialled the one with the smaller id dials, or each pair would dial twice.
    """

    transport: Transport

    async def meet(self, introduction: Sequence[tuple[PeerId, Sequence[str]]]) -> None:
        """Dial those we should; what fails is tried again with the next introduction."""
        me = self.transport.peer_id
        reachable = bool(self.transport.addresses())
        for peer, addresses in introduction:
            if peer == me or not addresses or peer in self.transport.connected() or (reachable and peer < me):
                continue
            try:
                await self.transport.dial(list(addresses))
            except DialFailed:
                continue


def line_reporter(events: EventLog, meet: Callable[[Introduction], None]) -> Callable[[LineEvent], None]:
    """What the work line's events become: log lines, and introductions to peers."""

    def on_event(event: LineEvent) -> None:
        match event:
            case Connected(learner=learner, welcome=welcome):
                newest = str(welcome.newest) if welcome.newest else None
                events.emit("joined", learner=learner, staleness=welcome.staleness, newest=newest)
                meet(Introduction(peers=welcome.peers))
            case Disconnected(reason=reason, pause_s=pause):
                events.emit("learner_unreachable", reason=reason, retry_s=round(pause, 1))
            case Introduction():
                meet(event)
            case NoLease(reason=reason):
                events.emit("no_lease", reason=reason)

    return on_event
