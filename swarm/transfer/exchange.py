"""Fetching one version at a time from whichever peers hold its chunks, and scattering those that begin here.

With every connected peer there is one conversation: a control stream that tells what it holds, and one data stream for
all that the scheduler asks of it, opened when first needed and kept for the next version. What always holds: the
scheduler decides and this file performs; a chunk is verified before it is stored, announced or relayed; when a
conversation ends, nothing is outstanding at that peer, and when a fetch ends, nothing of it is outstanding anywhere;
a peer that sends wrong bytes is reported and not asked again for this version.

Loops: `run` consumes connection events; a conversation consumes Have and Gained; its `_tell_wants` is woken when
something else is wanted, its `_carry` when something is to be requested, and its `_exchange_chunks` consumes answers;
one task tells what was gained, one ticks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import trio

from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.ids import Cid, ManifestHash, PeerId
from protocol.core.limits import MAX_CHUNKS
from protocol.versions import exchange
from protocol.versions.manifest import ChunkRef, SignedManifest
from swarm.store import ChunkStore, StoreError
from swarm.transfer import super_seeding as scatter
from swarm.transfer.audience import Begun, Note, Unfollowed
from swarm.transfer.chunk_picker import (
    Arrived,
    Ask,
    Broke,
    Cancel,
    ChunkPicker,
    Complete,
    Corrupt,
    Event,
    GiveUp,
    Heard,
    Ignore,
    Missing,
    PeerGained,
    PeerGone,
    PeerHas,
    Recall,
    Refused,
    Returned,
    Tick,
)
from swarm.transfer.serving import Serving
from swarm.transfer.super_seeding import Listen, Offer, Show, SuperSeeder
from swarm.transport.error_groups import first_cause
from swarm.transport.framing import FrameStream, framed
from swarm.transport.interface import PeerConnected, PeerDisconnected, Report, StreamBroken, StreamRefused, Transport

BREAK_GRACE_S = 0.5
"""After a data stream broke: if its connection is gone as well, which shows by then, the peer broke no promise."""

REOPEN_DELAY_S = 1.0
"""Before a control stream is opened again: short enough for a version, and no spinning on a peer that refuses."""

FAULT_PAUSE_S = 30.0
"""The same after the peer broke the protocol: it will again, and each time is reported."""

TICK_S = 0.1
"""How often those who were busy, are silent or do not move are looked at again."""

GATHER_S, GATHER_CHUNKS = 0.2, 12
"""How long, and up to how many, chunks that arrived are gathered before others are told. What the source itself gave is
told at once, with all that was gathered: nobody else has it, and all wait for it. In the simulation of eight peers the
rest can wait for 0.3 s and nothing is lost, and that takes less than half as many messages."""

STARVED_S = 10.0
"""How long a fetch waits while nobody here holds what is missing: a peer that reconnects is back by then."""

SPARE_HAVES = 4
"""Haves beyond one for each Want before a peer is thought to flood us: honest ones send none. Each costs us 0.1 ms, or
0.3 s where there are 500,000 chunks."""

MAX_SEEDS = 4
"""Versions scattered at a time: the newest, and those that slow followers are still fetching."""


class Starved(Exception):
    """Nobody who is connected, and whom we would still ask, holds the missing chunks."""


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """Bytes that one fetch took, by the peer they came from.

    `givers` are the chunks of the version that came from peers, with those of fetches of it just before this one.
    """

    by_peer: dict[PeerId, int]
    givers: Mapping[int, PeerId] = field(default_factory=dict)


class _Subject:
    """A version that peers are asked about. Is the version's `ExchangeView` for our own serving side, too."""

    def __init__(self, signed: SignedManifest) -> None:
        self.signed = signed
        self.hash: ManifestHash = signed.hash
        self._index = {chunk.name: index for index, chunk in enumerate(signed.manifest.chunks)}

    @property
    def num_chunks(self) -> int:
        return len(self.signed.manifest.chunks)

    def chunk(self, index: int) -> ChunkRef:
        return self.signed.manifest.chunks[index]

    def index_of(self, cid: Cid) -> int | None:
        return self._index.get(cid)


class _Fetch(_Subject):
    """One version on its way here."""

    def __init__(self, signed: SignedManifest, plan: ChunkPicker, feed: Callable[[Event, _Fetch], None]) -> None:
        super().__init__(signed)
        self.plan = plan
        self._feed = feed
        self.done = trio.Event()
        self.failure: Exception | None = None
        self.fed_at = trio.current_time()
        self.by_peer: dict[PeerId, int] = {}
        self.givers: dict[int, PeerId] = {}

    def fail(self, error: Exception) -> None:
        """End the fetch with `error`; the first one counts."""
        self.failure = self.failure or error
        self.done.set()

    # For those who fetch it from us meanwhile.

    def noted(self, note: Note) -> None:
        match note:
            case Begun(peer=peer, chunk=chunk):  # it will not tell us, who hold it
                self._feed(PeerGained(peer=peer, chunks=(chunk,)), self)
            case _:
                pass

    def shown(self, peer: PeerId, held: int) -> int:
        return held

    def knows(self, peer: PeerId, chunk: int) -> bool:
        return self.plan.holds(peer, chunk)

    def num_holders(self, chunk: int) -> int:
        return self.plan.num_holders(chunk)

    def num_held(self, peer: PeerId) -> int:
        return self.plan.num_held(peer)

    def promised(self, peer: PeerId, chunk: int) -> bool:
        return False


class _Seed(_Subject):
    """One version on its way out, of which this node is the source."""

    def __init__(
        self, signed: SignedManifest, core: SuperSeeder, serving: Serving, listen: Callable[[PeerId], None]
    ) -> None:
        super().__init__(signed)
        self.core = core
        self._serving = serving
        self._listen = listen
        self._offered: dict[PeerId, int] = {}
        self._open = _bits(chunk for chunk in range(self.num_chunks) if core.shows(chunk))

    def feed(self, event: scatter.Event) -> None:
        """Give `event` to the core and perform what follows."""
        if isinstance(event, Unfollowed):
            self._offered.pop(event.peer, None)
        for effect in self.core.handle(event, trio.current_time()):
            match effect:
                case Offer(peer=peer, chunk=chunk):
                    self._offered[peer] = self._offered.get(peer, 0) | 1 << chunk
                    self._serving.show(self.hash, peer)
                case Show(chunks=chunks):
                    self._open |= _bits(chunks)
                    self._serving.gained(self.hash)
                case Listen(peer=peer):
                    self._listen(peer)

    def noted(self, note: Note) -> None:
        self.feed(note)

    def shown(self, peer: PeerId, held: int) -> int:
        return held & (self._open | self._offered.get(peer, 0))

    def knows(self, peer: PeerId, chunk: int) -> bool:
        return False

    def num_holders(self, chunk: int) -> int:
        return self.core.num_holders(chunk)

    def num_held(self, peer: PeerId) -> int:
        return 0  # we hear of few, and all are served in turn

    def promised(self, peer: PeerId, chunk: int) -> bool:
        return self.core.promised(peer, chunk)


@dataclass(kw_only=True, slots=True)
class _Owed:
    """A request that has not been answered. After a Cancel it still has one answer: the chunk, or Missing."""

    fetch: _Fetch
    chunk: int
    wanted: bool = True
    cancelled: bool = False


@dataclass(kw_only=True, eq=False)
class _Link:
    """One connected peer, and what is to be said to it."""

    peer: PeerId
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    talks: bool = False
    haves_left: int = 0
    gains_left: int = 0
    wanted: trio.Event = field(default_factory=trio.Event)
    outbox: list[exchange.ChunkRequest] = field(default_factory=list)
    asking: trio.Event = field(default_factory=trio.Event)
    owed: dict[Cid, _Owed] = field(default_factory=dict)
    carrier: trio.CancelScope = field(default_factory=trio.CancelScope)
    data: FrameStream | None = None
    heard_bytes: int = 0

    def request(self, fetch: _Fetch, chunk: int) -> None:
        cid = fetch.chunk(chunk).name
        if (owed := self.owed.get(cid)) is not None:  # cancelled a moment ago: its one answer is still to come
            owed.wanted = True
            return
        self.owed[cid] = _Owed(fetch=fetch, chunk=chunk)
        self._say(exchange.Request(cid=cid))

    def cancel(self, cid: Cid, *, wanted: bool) -> None:
        """Ask for a request back; `wanted` says whether the chunk may come all the same."""
        if (owed := self.owed.get(cid)) is not None:
            owed.wanted = wanted
            if not owed.cancelled:
                owed.cancelled = True
                self._say(exchange.Cancel(cid=cid))

    def break_off(self) -> None:
        """Nothing is owed any more, and what carried it is torn down."""
        if self.owed:
            self.forget()
            self.carrier.cancel()

    def forget(self) -> None:
        """Nothing is owed any more."""
        self.owed.clear()
        self.outbox.clear()

    def has_heard(self) -> bool:
        """Whether bytes have come since we asked last."""
        before, self.heard_bytes = self.heard_bytes, 0 if self.data is None else self.data.received_bytes
        return self.heard_bytes != before

    def _say(self, message: exchange.ChunkRequest) -> None:
        self.outbox.append(message)
        self.asking.set()


@dataclass(kw_only=True)
class ChunkExchange:
    """See the module's paragraph.

    Args:
        gained: told the manifest when chunks of it were stored, soon after.
        report: told of faults.
        serving: this node's serving side, which learns from us what is worth telling and sending first. Needed to
            `seed`; without it all that is held is shown to everybody, and requests are answered as they come.
        rng: breaks the scheduler's ties.

    `fetched_bytes`, and by peer `fetched_from`, are of chunks that were missing; `duplicate_bytes` came besides.
    """

    transport: Transport
    store: ChunkStore
    gained: Callable[[SignedManifest], None]
    report: Report
    serving: Serving | None = None
    rng: random.Random = field(default_factory=random.Random)
    fetched_from: Counter[PeerId] = field(default_factory=Counter)
    duplicate_bytes: int = 0
    _links: dict[PeerId, _Link] = field(default_factory=dict)
    _fetch: _Fetch | None = None
    _latest: _Fetch | None = None
    _seeds: dict[ManifestHash, _Seed] = field(default_factory=dict)
    _gained: list[SignedManifest] = field(default_factory=list)
    _news: trio.Event = field(default_factory=trio.Event)
    _enough: trio.Event = field(default_factory=trio.Event)

    @property
    def fetched_bytes(self) -> int:
        """Bytes of chunks that were missing, from all peers."""
        return self.fetched_from.total()

    async def run(self) -> None:
        """Keep a conversation with every connected peer, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick)
            nursery.start_soon(self._tell_gained)
            while True:
                async for event in self.transport.events():
                    match event:
                        case PeerConnected(peer=peer) if peer not in self._links:
                            self._links[peer] = _Link(peer=peer)
                            nursery.start_soon(self._keep_talking, self._links[peer])
                        case PeerDisconnected(peer=peer):
                            self._unlink(peer)
                        case _:
                            pass
                # We did not keep up with the events, and missed who left; who came is told by the next channel.
                for peer in self._links.keys() - self.transport.connected():
                    self._unlink(peer)

    async def fetch(self, signed: SignedManifest, chunks: Collection[int] | None = None) -> Fetched:
        """Fetch what is missing of the files of `signed`, or of `chunks`; return once the store holds them all.

        The store must have begun the version. Cancel to give up: what has arrived stays. Raises Starved, what the
        store raises, or PeerError when the manifest itself is wrong; and LocalProtocolError while another is fetched.
        """
        if self._fetch is not None:
            raise LocalProtocolError("one version is fetched at a time")
        plan = ChunkPicker(self.store.missing(signed.hash, chunks), self.rng)
        fetch = self._fetch = _Fetch(signed, plan, self._feed)
        self._attend(fetch)
        try:
            for link in self._links.values():
                link.wanted.set()
            self._feed(Tick(), fetch)
            await fetch.done.wait()
        finally:
            self._fetch = None
            for link in self._links.values():
                link.break_off()
        if fetch.failure is not None:
            raise fetch.failure
        return Fetched(by_peer=fetch.by_peer, givers=fetch.givers)

    def seed(self, signed: SignedManifest, chunks: Collection[int] | None = None) -> None:
        """Be the source of `signed`: give every chunk, or of `chunks` alone, once to whoever passes it on soonest.

        Best called before the version is announced. Chunks beyond `chunks` are shown to everybody at once, as is
        everything once it was given. The store must hold the version, or hold it before anybody wants it.
        """
        if self.serving is None:
            raise LocalProtocolError("seeding needs the serving side: Distribution(serving=...)")
        while len(self._seeds) >= MAX_SEEDS:
            oldest = next(iter(self._seeds))
            del self._seeds[oldest]
            self.serving.dismiss(oldest)
        given = range(len(signed.manifest.chunks)) if chunks is None else chunks
        seed = _Seed(signed, SuperSeeder(given, self.rng), self.serving, self._listen)
        self._seeds[signed.hash] = seed
        self.serving.attend(signed.hash, seed)

    def _attend(self, fetch: _Fetch) -> None:
        """From now on others are served what we fetch with what the plan knows; also after it is complete."""
        if self.serving is not None:
            if self._latest is not None and self._latest.hash not in self._seeds:
                self.serving.dismiss(self._latest.hash)
            self.serving.attend(fetch.hash, fetch)
        if self._latest is not None and self._latest.hash == fetch.hash:
            fetch.givers = self._latest.givers
        self._latest = fetch

    def _listen(self, peer: PeerId) -> None:
        """What `peer` holds of a version that we seed has become interesting."""
        if (link := self._links.get(peer)) is not None:
            link.wanted.set()

    def _feed(self, event: Event, of: _Fetch | None) -> None:
        """Give `event` to the plan of `of`, if that is still what is fetched, and perform what follows."""
        if of is None or of is not self._fetch:
            return
        for effect in of.plan.handle(event, trio.current_time()):
            match effect:
                case Ask(peer=peer, chunk=chunk):
                    self._links[peer].request(of, chunk)
                case Cancel(peer=peer, chunk=chunk):
                    self._links[peer].cancel(of.chunk(chunk).name, wanted=False)
                case Recall(peer=peer, chunk=chunk):
                    self._links[peer].cancel(of.chunk(chunk).name, wanted=True)
                case GiveUp(peer=peer):
                    self._links[peer].break_off()
                case Ignore(peer=peer, corrupt=corrupt):
                    fault = Fault.CORRUPT_CHUNK if corrupt else Fault.BROKEN_PROMISE
                    self.report(peer, fault, f"while fetching version {of.signed.version}")
                    self._links[peer].break_off()
                case Complete():
                    of.done.set()
        if not of.plan.starved:
            of.fed_at = trio.current_time()

    async def _tick(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            if (fetch := self._fetch) is not None:
                for link in self._links.values():
                    if link.has_heard():
                        self._feed(Heard(peer=link.peer), fetch)
                self._feed(Tick(), fetch)
                self._look_for_hunger(fetch)
            for seed in self._seeds.values():
                seed.feed(Tick())
            if self.serving is not None:
                self.serving.tick()

    def _look_for_hunger(self, fetch: _Fetch) -> None:
        if trio.current_time() - fetch.fed_at > STARVED_S:
            missing, total = fetch.plan.num_missing, fetch.num_chunks
            fetch.fail(Starved(f"nobody here whom we may ask holds {missing} of its {total} chunks."))

    def _note_gained(self, fetch: _Fetch, giver: PeerId) -> None:
        self._gained.append(fetch.signed)
        self._news.set()
        is_new = giver == fetch.signed.signer
        if is_new or len(self._gained) >= GATHER_CHUNKS or fetch.plan.num_missing <= 1:
            self._enough.set()

    async def _tell_gained(self) -> None:
        while True:
            await self._news.wait()
            with trio.move_on_after(GATHER_S):
                await self._enough.wait()
            self._news, self._enough = trio.Event(), trio.Event()
            versions, self._gained = {signed.hash: signed for signed in self._gained}, []
            for signed in versions.values():
                self.gained(signed)

    # Conversations.

    def _unlink(self, peer: PeerId) -> None:
        if (link := self._links.get(peer)) is not None:
            self._hang_up(link)
            del self._links[peer]
            link.scope.cancel()

    def _hang_up(self, link: _Link) -> None:
        """Nothing can be asked of this peer until it has said again what it holds."""
        if link.talks and self._links.get(link.peer) is link:
            link.talks = False
            link.forget()
            self._feed(PeerGone(peer=link.peer), self._fetch)
            for seed in self._seeds.values():
                seed.feed(PeerGone(peer=link.peer))

    async def _keep_talking(self, link: _Link) -> None:
        with link.scope:
            while True:
                pause = REOPEN_DELAY_S
                try:
                    with first_cause():
                        await self._converse(link)
                except (StreamBroken, StreamRefused):
                    pass
                except PeerError as error:
                    self.report(link.peer, error.fault, error.detail)
                    pause = FAULT_PAUSE_S
                await trio.sleep(pause)

    async def _converse(self, link: _Link) -> None:
        stream = await self.transport.open_stream(link.peer, exchange.EXCHANGE)
        async with framed(stream, exchange.MAX_HAVE_BYTES) as frames, trio.open_nursery() as nursery:
            link.talks, link.haves_left, link.gains_left = True, SPARE_HAVES, MAX_CHUNKS
            try:
                nursery.start_soon(self._tell_wants, link, frames)
                nursery.start_soon(self._carry, link)
                await self._hear_holdings(link, frames)
            finally:
                self._hang_up(link)
                nursery.cancel_scope.cancel()

    def _subject(self, link: _Link) -> _Subject | None:
        """What this peer is to tell us about: what we fetch, else the newest that we seed to it."""
        if self._fetch is not None:
            return self._fetch
        return next((seed for seed in reversed(self._seeds.values()) if link.peer in seed.core.targets), None)

    async def _tell_wants(self, link: _Link, frames: FrameStream) -> None:
        told: _Subject | None = None
        while True:
            link.wanted = trio.Event()
            if (subject := self._subject(link)) is not None and subject is not told:
                told = subject
                link.haves_left += 1
                await frames.send(exchange.Want(manifest=subject.hash, everything=isinstance(subject, _Seed)))
            else:
                await link.wanted.wait()

    async def _hear_holdings(self, link: _Link, frames: FrameStream) -> None:
        about: _Subject | None = None
        while (frame := await frames.receive(exchange.ExchangeFrame)) is not None:
            if not link.talks:  # unlinked in the moment in which this frame came
                return
            match frame:
                case exchange.Have(manifest=manifest, bitmap=bitmap):
                    about = self._about(ManifestHash(manifest))
                    link.haves_left -= 1
                    link.gains_left = MAX_CHUNKS
                    if about is not None:
                        link.gains_left = about.num_chunks
                        chunks = _indices(bitmap, about.num_chunks)
                        self._hear(about, PeerHas(peer=link.peer, chunks=chunks))
                case exchange.Gained(chunks=gained):
                    link.gains_left -= max(1, len(gained))
                    if about is not None:
                        known = tuple(chunk for chunk in gained if chunk < about.num_chunks)
                        self._hear(about, PeerGained(peer=link.peer, chunks=known))
            if link.haves_left < 0 or link.gains_left < 0:
                raise PeerError(Fault.OVERSIZED, "says what it holds again and again, unasked")

    def _about(self, manifest: ManifestHash) -> _Subject | None:
        if self._fetch is not None and self._fetch.hash == manifest:
            return self._fetch
        return self._seeds.get(manifest)

    def _hear(self, about: _Subject, event: PeerHas | PeerGained) -> None:
        match about:
            case _Fetch():
                self._feed(event, about)
            case _Seed():
                about.feed(event)

    # Chunks.

    async def _carry(self, link: _Link) -> None:
        """Keep a data stream while there is something to request; one that broke is replaced when there is again."""
        while True:
            while not link.outbox:
                link.asking = trio.Event()
                await link.asking.wait()
            with trio.CancelScope() as link.carrier:
                try:
                    with first_cause():
                        await self._exchange_chunks(link)
                    continue
                except (StreamBroken, StreamRefused):
                    await trio.sleep(BREAK_GRACE_S)
                except PeerError as error:
                    self.report(link.peer, error.fault, error.detail)
                link.forget()
                self._feed(Broke(peer=link.peer), self._fetch)

    async def _exchange_chunks(self, link: _Link) -> None:
        """Requests out, chunks in, over one stream, until the peer ends it in good order."""
        stream = await self.transport.open_stream(link.peer, exchange.CHUNKS)
        async with framed(stream, exchange.MAX_CHUNK_FRAME_BYTES) as frames, trio.open_nursery() as nursery:
            link.data, link.heard_bytes = frames, 0
            nursery.start_soon(self._send_requests, link, frames)
            while (answer := await frames.receive(exchange.ChunkAnswer)) is not None:
                await self._take_answer(link, answer)
            if link.owed:
                raise StreamBroken(f"{link.peer} ended a data stream without answering")
            nursery.cancel_scope.cancel()

    async def _send_requests(self, link: _Link, frames: FrameStream) -> None:
        while True:
            if link.outbox:
                messages, link.outbox = link.outbox, []
                await frames.send_together(messages)
            else:
                link.asking = trio.Event()
                await link.asking.wait()

    async def _take_answer(self, link: _Link, answer: exchange.ChunkAnswer) -> None:
        owed = link.owed.pop(Cid(answer.cid), None)
        if owed is None:
            raise PeerError(Fault.BROKEN_PROMISE, "answered a request that was not made")
        event: Event | None = None
        match answer:
            case exchange.Chunk(data=data):
                event = await self._store(owed.fetch, owed.chunk, data, link.peer)
            case exchange.Busy(retry_after_ms=retry) if owed.wanted:
                event = Refused(peer=link.peer, chunk=owed.chunk, retry_at=trio.current_time() + retry / 1000)
            case exchange.Missing() if owed.wanted:
                event = (Returned if owed.cancelled else Missing)(peer=link.peer, chunk=owed.chunk)
        if event is not None:
            self._feed(event, owed.fetch)

    async def _store(self, fetch: _Fetch, chunk: int, data: bytes, peer: PeerId) -> Event | None:
        is_new = fetch.plan.lacks(chunk)
        try:
            await trio.to_thread.run_sync(self.store.put, fetch.hash, chunk, data)
        except PeerError as error:
            if error.fault is Fault.CORRUPT_CHUNK:
                return Corrupt(peer=peer, chunk=chunk)
            fetch.fail(error)  # the right bytes, of which the manifest is wrong: not this peer's fault
            return None
        except (StoreError, OSError) as error:
            fetch.fail(error)
            return None
        if is_new:
            self.fetched_from[peer] += len(data)
            fetch.by_peer[peer] = fetch.by_peer.get(peer, 0) + len(data)
            fetch.givers[chunk] = peer
            if self.serving is not None:
                self.serving.recent.add(fetch.chunk(chunk).name, data)
            self._note_gained(fetch, peer)
        else:
            self.duplicate_bytes += len(data)
        return Arrived(peer=peer, chunk=chunk)


def _bits(chunks: Iterable[int]) -> int:
    """A bitmap of these chunks, in one integer. By way of bytes: adding up half a million powers of two took 2.4 s."""
    marked = bytearray()
    for chunk in chunks:
        if chunk // 8 >= len(marked):
            marked += bytes(chunk // 8 + 1024 - len(marked))
        marked[chunk // 8] |= 1 << chunk % 8
    return int.from_bytes(marked, "little")


def _indices(bitmap: bytes, count: int) -> frozenset[int]:
    """The chunks that a Have marks, of the `count` that there are."""
    return frozenset(
        index
        for byte_index, byte in enumerate(bitmap)
        if byte
        for index in range(8 * byte_index, min(8 * byte_index + 8, count))
        if byte >> index % 8 & 1
    )
