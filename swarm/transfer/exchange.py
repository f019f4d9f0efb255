"""Fetch one version at a time from the peers that hold its chunks, and seed the versions that begin here.

There is one conversation with every connected peer (`swarm.transfer.link`).

Loops: `run` consumes connection events, and runs a link for each peer. One task reports gains, and one ticks.

Invariants:

- The plan decides, and this module performs.
- A chunk is verified before it is stored, announced or relayed.
- When a fetch ends, none of its requests is outstanding anywhere.
- A peer that sends wrong bytes is reported and not asked again for this version.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import trio

from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.ids import ManifestHash, PeerId
from protocol.versions.manifest import SignedManifest
from swarm.store import ChunkStore, StoreError
from swarm.transfer.audience import ExchangedVersion
from swarm.transfer.chunk_picker import (
    Arrived,
    Ask,
    Cancel,
    ChunkPicker,
    Complete,
    Corrupt,
    Event,
    GiveUp,
    Heard,
    Ignore,
    PeerGone,
    Recall,
    Tick,
)
from swarm.transfer.disk_turns import DiskTurns
from swarm.transfer.fetch import Fetched, Starved, VersionFetch
from swarm.transfer.link import PeerLink
from swarm.transfer.seed import VersionSeed
from swarm.transfer.serving import Serving
from swarm.transfer.super_seeding import SuperSeeder
from swarm.transport.interface import PeerConnected, PeerDisconnected, Report, Transport

TICK_S = 0.1
"""Seconds between two checks of peers that were busy, are silent or do not move."""

IDLE_TICK_S = 1.0
"""The same while nothing is fetched, seeded or requested: a node that waits for work seldom wakes the processor."""

GATHER_S, GATHER_CHUNKS = 0.2, 12
"""Arrived chunks are gathered for so many seconds, or up to this number, before other peers are told. A chunk from the
source itself is announced at once, with all that was gathered: no other peer has it, and all wait for it. In the
simulation of eight peers the rest can wait for 0.3 s without loss, and that takes less than half as many messages."""

STARVED_S = 10.0
"""Seconds that a fetch waits while no neighbour holds the missing chunks: a peer that reconnects is back by then."""

MAX_SEEDS = 4
"""Versions seeded at a time: the newest, and those that slow followers are still fetching."""


@dataclass(kw_only=True)
class ChunkExchange:
    """Fetch and seed versions by their chunks.

    Args:
        tell_gained: called with the manifest soon after chunks of it were stored.
        report: called for faults of peers.
        serving: this node's serving side, which learns from us what to announce and send first. It is needed to `seed`.
            Without it all held chunks are shown to everybody, and requests are answered as they come.
        rng: breaks ties of the plan.

    `fetched_bytes`, and `fetched_from` by peer, count chunks that were missing; `duplicate_bytes` counts the others.
    """

    transport: Transport
    store: ChunkStore
    tell_gained: Callable[[SignedManifest], None]
    report: Report
    serving: Serving | None = None
    rng: random.Random = field(default_factory=random.Random)
    fetched_from: Counter[PeerId] = field(default_factory=Counter)
    duplicate_bytes: int = 0
    fetching: VersionFetch | None = None
    _links: dict[PeerId, PeerLink] = field(default_factory=dict)
    _latest: VersionFetch | None = None
    _seeds: dict[ManifestHash, VersionSeed] = field(default_factory=dict)
    _gains: list[SignedManifest] = field(default_factory=list)
    _begun: trio.Event = field(default_factory=trio.Event)
    """Set when something is fetched or seeded since the last tick."""
    _news: trio.Event = field(default_factory=trio.Event)
    _disk: DiskTurns = field(default_factory=DiskTurns)
    _enough: trio.Event = field(default_factory=trio.Event)

    @property
    def fetched_bytes(self) -> int:
        """Bytes of chunks that were missing, from all peers."""
        return self.fetched_from.total()

    async def run(self) -> None:
        """Keep a conversation with every connected peer, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick)
            nursery.start_soon(self._tell_gains)
            while True:
                async for event in self.transport.events():
                    match event:
                        case PeerConnected(peer=peer) if peer not in self._links:
                            self._links[peer] = PeerLink(peer=peer, owner=self)
                            nursery.start_soon(self._links[peer].run)
                        case PeerDisconnected(peer=peer):
                            self._unlink(peer)
                        case _:
                            pass
                # We did not keep up with the events, and missed departures. The next channel names all that are here.
                for peer in self._links.keys() - self.transport.connected_peers():
                    self._unlink(peer)

    async def fetch(self, signed: SignedManifest, chunks: Collection[int] | None = None) -> Fetched:
        """Fetch the missing chunks of the files of `signed`, or of `chunks`; return once the store holds them all.

        The store must have begun the version. Cancel to give up: chunks that have arrived stay. Raises Starved, what
        the store raises, PeerError if the manifest itself is wrong, and LocalProtocolError while another is fetched.
        """
        if self.fetching is not None:
            raise LocalProtocolError("one version is fetched at a time")
        plan = ChunkPicker(self.store.missing(signed.hash, chunks), self.rng)
        fetch = self.fetching = VersionFetch(signed, plan, self.feed)
        self._attend(fetch)
        self._begun.set()
        try:
            for link in self._links.values():
                link.wanted.set()
            self.feed(Tick(), fetch)
            await fetch.done.wait()
        finally:
            self.fetching = None
            for link in self._links.values():
                link.break_off()
        if fetch.failure is not None:
            raise fetch.failure
        return Fetched(by_peer=fetch.by_peer, givers=fetch.givers)

    def seed(self, signed: SignedManifest, chunks: Collection[int] | None = None) -> None:
        """Be the source of `signed`: give each chunk, or each of `chunks`, once to the peer that relays it soonest.

        Best called before the version is announced. Chunks outside `chunks` are shown to everybody at once, and so is
        everything once it was given. The store must hold the version, or hold it before anybody wants it.
        """
        if self.serving is None:
            raise LocalProtocolError("seeding needs the serving side: ChunkExchange(serving=...)")
        while len(self._seeds) >= MAX_SEEDS:
            oldest = next(iter(self._seeds))
            del self._seeds[oldest]
            self.serving.dismiss(oldest)
        given = range(len(signed.manifest.chunks)) if chunks is None else chunks
        seed = VersionSeed(signed, SuperSeeder(given, self.rng), self.serving, self._listen)
        self._seeds[signed.hash] = seed
        self.serving.attend(signed.hash, seed)
        self._begun.set()

    def _attend(self, fetch: VersionFetch) -> None:
        """Let the plan decide how the fetched version is served to others, also after it is complete."""
        if self.serving is not None:
            if self._latest is not None and self._latest.hash not in self._seeds:
                self.serving.dismiss(self._latest.hash)
            self.serving.attend(fetch.hash, fetch)
        if self._latest is not None and self._latest.hash == fetch.hash:
            fetch.givers = self._latest.givers
        self._latest = fetch

    def _listen(self, peer: PeerId) -> None:
        """Ask `peer` from now on what it holds of a version that we seed."""
        if (link := self._links.get(peer)) is not None:
            link.wanted.set()

    def feed(self, event: Event, of: VersionFetch | None) -> None:
        """Give `event` to the plan of `of`, if that is still fetched, and perform the effects."""
        if of is None or of is not self.fetching:
            return
        spoken_to: set[PeerLink] = set()
        now = trio.current_time()
        for effect in of.plan.handle(event, now):
            match effect:
                case Ask(peer=peer, chunk=chunk):
                    self._links[peer].request(of, chunk)
                    spoken_to.add(self._links[peer])
                case Cancel(peer=peer, chunk=chunk):
                    self._links[peer].cancel(of.chunk(chunk).name, wanted=False)
                    spoken_to.add(self._links[peer])
                case Recall(peer=peer, chunk=chunk):
                    self._links[peer].cancel(of.chunk(chunk).name, wanted=True)
                    spoken_to.add(self._links[peer])
                case GiveUp(peer=peer):
                    self._links[peer].break_off()
                case Ignore(peer=peer, corrupt=corrupt):
                    fault = Fault.CORRUPT_CHUNK if corrupt else Fault.BROKEN_PROMISE
                    self.report(peer, fault, f"while fetching version {of.signed.version}")
                    self._links[peer].break_off()
                case Complete():
                    of.done.set()
        for link in spoken_to:
            link.flush()
        if not of.plan.starved:
            of.fed_at = now

    @property
    def _is_busy(self) -> bool:
        """Whether chunks are fetched, seeded or requested."""
        serves = self.serving is not None and self.serving.is_busy
        return self.fetching is not None or bool(self._seeds) or serves

    async def _tick(self) -> None:
        while True:
            with trio.move_on_after(TICK_S if self._is_busy else IDLE_TICK_S):
                await self._begun.wait()
                self._begun = trio.Event()
                await trio.sleep(TICK_S)
            if (fetch := self.fetching) is not None:
                for link in self._links.values():
                    if link.has_heard():
                        self.feed(Heard(peer=link.peer), fetch)
                self.feed(Tick(), fetch)
                self._look_for_hunger(fetch)
            for seed in self._seeds.values():
                seed.feed(Tick())
            if self.serving is not None:
                self.serving.tick()

    def _look_for_hunger(self, fetch: VersionFetch) -> None:
        if trio.current_time() - fetch.fed_at > STARVED_S:
            missing, total = fetch.plan.num_missing, fetch.num_chunks
            fetch.fail(Starved(f"no neighbour that we may ask holds {missing} of its {total} chunks."))

    def _note_gain(self, fetch: VersionFetch, giver: PeerId) -> None:
        self._gains.append(fetch.signed)
        self._news.set()
        is_new = giver == fetch.signed.signer
        if is_new or len(self._gains) >= GATHER_CHUNKS or fetch.plan.num_missing <= 1:
            self._enough.set()

    async def _tell_gains(self) -> None:
        while True:
            await self._news.wait()
            with trio.move_on_after(GATHER_S):
                await self._enough.wait()
            self._news, self._enough = trio.Event(), trio.Event()
            versions, self._gains = {signed.hash: signed for signed in self._gains}, []
            for signed in versions.values():
                self.tell_gained(signed)

    def _unlink(self, peer: PeerId) -> None:
        if (link := self._links.get(peer)) is not None:
            link.hang_up()
            del self._links[peer]
            link.scope.cancel()

    # For the links.

    def version_for(self, peer: PeerId) -> ExchangedVersion | None:
        """Return the version about which `peer` must tell us: the one we fetch, else the newest that we seed to it."""
        if self.fetching is not None:
            return self.fetching
        return next((seed for seed in reversed(self._seeds.values()) if peer in seed.core.targets), None)

    def version_named(self, manifest: ManifestHash) -> ExchangedVersion | None:
        """Return the version with this manifest, if it is fetched or seeded here."""
        if self.fetching is not None and self.fetching.hash == manifest:
            return self.fetching
        return self._seeds.get(manifest)

    def forget_peer(self, link: PeerLink) -> None:
        """Forget what this peer holds."""
        if self._links.get(link.peer) is link:
            self.feed(PeerGone(peer=link.peer), self.fetching)
            for seed in self._seeds.values():
                seed.feed(PeerGone(peer=link.peer))

    async def store_chunk(self, fetch: VersionFetch, chunk: int, data: memoryview, peer: PeerId) -> None:
        """Store a chunk that came from `peer`, and report the result to the plan."""
        is_new = fetch.plan.lacks(chunk)
        failure = await self._disk.run(len(data), self._put, fetch, chunk, data)
        self._heed(fetch, chunk, data, peer, is_new=is_new, failure=failure)

    def store_now(self, fetch: VersionFetch, chunk: int, data: memoryview, peer: PeerId) -> None:
        """Do the same in this turn, if `can_store_now` allows it."""
        is_new = fetch.plan.lacks(chunk)
        failure = self._disk.run_here(self._put, fetch, chunk, data)
        self._heed(fetch, chunk, data, peer, is_new=is_new, failure=failure)

    def can_store_now(self, fetch: VersionFetch, size: int) -> bool:
        """Return whether the disk takes so many bytes at once, and the version is not locked meanwhile."""
        return self._disk.is_quick(size) and not self.store.is_locked(fetch.hash)

    def _put(self, fetch: VersionFetch, chunk: int, data: memoryview) -> Exception | None:
        """Store a chunk, on any thread; return the error if that failed."""
        try:
            self.store.put(fetch.hash, chunk, data)
        except (PeerError, StoreError, OSError) as error:
            return error
        return None

    def _heed(
        self,
        fetch: VersionFetch,
        chunk: int,
        data: memoryview,
        peer: PeerId,
        *,
        is_new: bool,
        failure: Exception | None,
    ) -> None:
        """Report the result of a chunk from `peer` to the plan, and count it."""
        if isinstance(failure, PeerError) and failure.fault is Fault.CORRUPT_CHUNK:
            self.feed(Corrupt(peer=peer, chunk=chunk), fetch)
            return
        if failure is not None:  # a disk, or right bytes under a wrong manifest: not this peer's fault
            fetch.fail(failure)
            return
        if is_new:
            self.fetched_from[peer] += len(data)
            fetch.by_peer[peer] = fetch.by_peer.get(peer, 0) + len(data)
            fetch.givers[chunk] = peer
            if self.serving is not None:
                self.serving.recent.add(fetch.chunk(chunk).name, data)
            self._note_gain(fetch, peer)
        else:
            self.duplicate_bytes += len(data)
        self.feed(Arrived(peer=peer, chunk=chunk), fetch)
