"""Run the relays of a drill: nodes that follow the learner's versions and relay their chunks. Some of them lie.

All are members to each other and to the learner, like nodes that it has introduced. Otherwise the limits on strangers,
and not the lies, would decide what they get.

Invariants:

- An honest relay consists of the same parts as a node, with a store of its own.
- A liar speaks the protocol, and does one thing wrong.
- Only reports of honest relays are recorded.
- A version counts as obtained when the store has verified every chunk of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import trio

from node.commands.drill.attacks import Attack
from protocol.core.errors import Fault
from protocol.core.genesis import Authority
from protocol.core.identity import Keypair
from protocol.core.ids import Cid, ManifestHash, PeerId
from protocol.core.limits import MAX_REQUEST_BYTES
from protocol.versions import exchange
from swarm.store import ChunkStore
from swarm.testing.memory_transport import MemoryNetwork
from swarm.transfer.chunk_cache import RecentChunks
from swarm.transfer.exchange import ChunkExchange
from swarm.transfer.serving import Knowledge, Serving
from swarm.transport.framing import FrameStream
from swarm.transport.interface import DialFailed, Stream, Transport
from swarm.versions.follower import Arrival, VersionFollower

HONEST = 2
"""Honest relays: they fetch from the learner, from each other and from every liar."""

REDIAL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Named:
    """One liar. `asked`: chunks that it was asked for. `by`: honest relays that reported it, none of them wrongly."""

    peer: PeerId
    lie: Attack
    asked: int
    by: int


@dataclass(frozen=True, kw_only=True)
class Relayed:
    """The results of the relays.

    Args:
        liars: each liar.
        versions: number of versions that each honest relay obtained.
        seconds: median seconds that a version took an honest relay.
        slandered: how many times an honest relay reported an honest one.
    """

    liars: tuple[Named, ...] = ()
    versions: tuple[int, ...] = ()
    seconds: float | None = None
    slandered: int = 0


class _Flipping:
    """A store that flips one bit of every chunk that is read from it."""

    def __init__(self, store: ChunkStore, read: Callable[[], None]) -> None:
        self._store, self._read = store, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, cid: Cid) -> bytes | None:
        data = self._store.get(cid)
        if data is None:
            return None
        self._read()
        return bytes([data[0] ^ 1]) + data[1:]


class _NothingRecent(RecentChunks):
    """Keeps nothing, so that every chunk is read from the store."""

    def add(self, cid: Cid, data: bytes | memoryview) -> None:
        pass


@dataclass(kw_only=True)
class Relay:
    """One relay. `lie` None: an honest one. `waiting`: peers that a withholding relay keeps waiting."""

    transport: Transport
    store: ChunkStore
    authority: Authority
    lie: Attack | None = None
    asked: int = 0
    waiting: set[PeerId] = field(default_factory=set)
    took_s: list[float] = field(default_factory=list)
    faults: Counter[tuple[PeerId, Fault]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        store: Any = _Flipping(self.store, self._count) if self.lie is Attack.CORRUPT_CHUNKS else self.store
        self.serving = Serving(
            transport=self.transport,
            store=store,
            knowledge=Knowledge(genesis=b"", newest=lambda: self.following.newest, peers=lambda: []),
            report=self._report,
        )
        if self.lie is Attack.CORRUPT_CHUNKS:
            self.serving.recent = _NothingRecent()
        self.distribution = ChunkExchange(
            transport=self.transport,
            store=self.store,
            tell_gained=lambda signed: self.serving.tell_gained(signed.hash),
            report=self._report,
            serving=self.serving,
        )
        self.following = VersionFollower(
            transport=self.transport,
            store=self.store,
            authority=self.authority,
            distribution=self.distribution,
            on_arrival=self._arrived,
            report=self._report,
            trouble=lambda text: None,
        )

    async def run(self, others: Sequence[Sequence[str]]) -> None:
        """Follow the versions, and keep connections to the peers at `others`, until cancelled."""
        self.serving.start()
        if self.lie is Attack.WITHHELD_CHUNKS:
            self.transport.handle(exchange.EXCHANGE, self._promise)
            self.transport.handle(exchange.CHUNKS, self._keep_waiting)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.distribution.run)
            nursery.start_soon(self.following.run)
            for addresses in others:
                nursery.start_soon(self.keep_dialling, list(addresses))

    def _arrived(self, arrival: Arrival) -> None:
        self.took_s.append(arrival.seconds)
        keep: set[ManifestHash] = {arrival.signed.hash}
        keep.update(patch.base_hash for patch in arrival.signed.manifest.patches)
        self.store.evict(keep)

    def _report(self, peer: PeerId, fault: Fault, detail: str) -> None:
        self.faults[peer, fault] += 1

    def _count(self) -> None:
        self.asked += 1

    async def _promise(self, stream: Stream) -> None:
        frames = FrameStream(stream, MAX_REQUEST_BYTES)
        while (want := await frames.receive(exchange.Want)) is not None:
            await frames.send(exchange.Have(manifest=want.manifest, bitmap=bytes([255]) * 64))

    async def _keep_waiting(self, stream: Stream) -> None:
        frames = FrameStream(stream, MAX_REQUEST_BYTES)
        while await frames.receive(exchange.ChunkRequest) is not None:
            self.asked += 1
            self.waiting.add(stream.remote)

    async def keep_dialling(self, addresses: list[str]) -> None:
        peer = PeerId(addresses[0].rpartition("/")[2])
        while True:
            if peer not in self.transport.connected_peers():
                with suppress(DialFailed):
                    await self.transport.dial(addresses)
            await trio.sleep(REDIAL_S)


@dataclass(kw_only=True)
class Relays:
    """Two honest relays, and a liar for each of `lies`, which knows the `learner`.

    An honest relay at first knows only the liars, which is when it is easiest to lie to it. When each of them has lied
    to it, it knows all.
    """

    network: MemoryNetwork
    authority: Authority
    learner: Transport
    scratch: Path
    lies: Sequence[Attack]
    honest: list[Relay] = field(default_factory=list)
    liars: list[Relay] = field(default_factory=list)

    async def play(self) -> None:
        """Run the relays until cancelled. Raises StoreError if the disk cannot hold what they fetch."""
        async with AsyncExitStack() as stack:
            for number in range(HONEST):
                self.honest.append(await self._opened(stack, f"relay-{number + 1}", None))
            for lie in self.lies:
                self.liars.append(await self._opened(stack, lie.value, lie))
            async with trio.open_nursery() as nursery:
                for liar in self.liars:
                    nursery.start_soon(liar.run, [self.learner.addresses()])
                for relay in self.honest:
                    nursery.start_soon(relay.run, [liar.transport.addresses() for liar in self.liars])
                    nursery.start_soon(self._introduce, relay)

    async def _introduce(self, relay: Relay) -> None:
        """Tell it the learner and the other honest relays once each liar has lied to it; run until cancelled."""
        while not all(_has_lied(liar, relay) for liar in self.liars):
            await trio.sleep(REDIAL_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relay.keep_dialling, self.learner.addresses())
            for other in self.honest:
                if other is not relay:
                    nursery.start_soon(relay.keep_dialling, other.transport.addresses())

    async def _opened(self, stack: AsyncExitStack, name: str, lie: Attack | None) -> Relay:
        keypair = Keypair.generate()
        transport = await stack.enter_async_context(self.network.node(name, peer_id=keypair.peer_id))
        for other in (self.learner, *(relay.transport for relay in (*self.honest, *self.liars))):
            other.trust(transport.peer_id)
            transport.trust(other.peer_id)
        store = stack.enter_context(ChunkStore.open(self.scratch / name, self.authority))
        return Relay(transport=transport, store=store, authority=self.authority, lie=lie)

    def outcome(self) -> Relayed:
        """Return the results so far."""
        named = Counter(peer for relay in self.honest for peer in {peer for peer, _ in relay.faults})
        took_s = [seconds for relay in self.honest for seconds in relay.took_s]
        return Relayed(
            liars=tuple(
                Named(peer=one.transport.peer_id, lie=one.lie, asked=one.asked, by=named[one.transport.peer_id])
                for one in self.liars
                if one.lie is not None
            ),
            versions=tuple(len(relay.took_s) for relay in self.honest),
            seconds=median(took_s) if took_s else None,
            slandered=sum(named[one.transport.peer_id] for one in self.honest),
        )


def _has_lied(liar: Relay, to: Relay) -> bool:
    """Return whether its wrong answer was detected, or an answer was requested that will not come."""
    return to.transport.peer_id in liar.waiting or any(peer == liar.transport.peer_id for peer, _ in to.faults)
