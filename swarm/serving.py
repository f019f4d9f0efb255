"""Answers to other peers: what this node knows (ASK), which chunks it holds (EXCHANGE), and the chunks (CHUNKS).

What always holds: only bytes that were verified leave this node; a peer costs at most a bounded number of streams and
uploads; who comes when all upload slots are taken hears BUSY instead of waiting in a silent queue; an upload that is
not taken in time is broken off, so nobody can hold a slot for ever; a disk that fails costs the chunk, not the node.

Loops: one task per stream consumes what the peer asks; a second one per EXCHANGE stream tells what is held, and is
woken by `gained` and by the peer's wanting something else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from protocol import exchange
from protocol.digest import as_cid
from protocol.errors import PeerError
from protocol.exchange import PeerAddresses
from protocol.ids import Cid, ManifestHash, PeerId
from protocol.limits import MAX_PEERS_TOLD, MAX_REQUEST_BYTES
from swarm.causes import first_cause
from swarm.framing import FrameStream
from swarm.reputation import Report, unreported
from swarm.store import ChunkStore, StoreError
from swarm.transport import Stream, StreamBroken, Transport

MAX_UPLOADS = 16
"""Chunks being sent at once: a few per neighbour in a full mesh; more would only divide the uplink."""

MAX_UPLOADS_PER_PEER = 4
"""One more than a peer's window of requests: nobody takes all slots from the others."""

MAX_STREAMS_PER_PEER = 32
"""Serving streams one peer may hold open: a control stream, a window of data streams, and questions, with room."""

MAX_GAINED = 4096
"""Chunks named in one Gained, its bound on the wire."""

BUSY_RETRY_MS = 100
"""A 256 KiB chunk leaves a 50 Mbit/s uplink in 40 ms; a slot is free by then."""

UPLOAD_TIMEOUT_S = 120.0
"""A 4 MiB chunk that three others share 1 Mbit/s with; who takes longer has long given up on it."""


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What this node tells whoever asks: its genesis, the newest announcement it believes, the peers it knows."""

    genesis: bytes
    newest: Callable[[], bytes]
    peers: Callable[[], Sequence[PeerAddresses]]


@dataclass(kw_only=True)
class Served:
    """Chunks and bytes handed to one peer since this node started."""

    chunks: int = 0
    size_bytes: int = 0


@dataclass(kw_only=True, eq=False)
class _Follower:
    """One EXCHANGE stream: what its opener wants, whether that waits for its Have, what wakes the task that tells."""

    manifest: ManifestHash
    asked: bool = True
    wake: trio.Event = field(default_factory=trio.Event)


@dataclass(kw_only=True)
class Serving:
    """Registers itself with `transport` by `start`; thereafter every stream is a task of the transport's.

    Args:
        report: told of peers that do not keep to the protocol.
        trouble: told, in a sentence, of what is wrong with our own disk.
    """

    transport: Transport
    store: ChunkStore
    knowledge: Knowledge
    report: Report = unreported
    trouble: Callable[[str], None] = lambda text: None
    served: dict[PeerId, Served] = field(default_factory=dict)
    _followers: set[_Follower] = field(default_factory=set)
    _streams: Counter[PeerId] = field(default_factory=Counter)
    _uploads: Counter[PeerId] = field(default_factory=Counter)

    def start(self) -> None:
        """Begin to answer."""
        self.transport.handle(exchange.ASK, self._handler(self._answer_questions))
        self.transport.handle(exchange.EXCHANGE, self._handler(self._tell_holdings))
        self.transport.handle(exchange.CHUNKS, self._handler(self._send_chunks))

    def gained(self, manifest: ManifestHash) -> None:
        """Tell those who want `manifest` that more of it is held now."""
        for follower in self._followers:
            if follower.manifest == manifest:
                follower.wake.set()

    def _handler(self, serve: Callable[[FrameStream], Awaitable[None]]) -> Callable[[Stream], Awaitable[None]]:
        """`serve` for a stream that is counted, and whose faults are reported before they end it."""

        async def handle(stream: Stream) -> None:
            if self._streams[stream.remote] >= MAX_STREAMS_PER_PEER:
                raise StreamBroken(f"{stream.remote} holds {MAX_STREAMS_PER_PEER} streams already")
            with _counted(self._streams, stream.remote):
                try:
                    await serve(FrameStream(stream, MAX_REQUEST_BYTES))
                except PeerError as error:
                    self.report(stream.remote, error.fault, error.detail)
                    raise

        return handle

    async def _answer_questions(self, frames: FrameStream) -> None:
        while (question := await frames.receive(exchange.Question)) is not None:
            await frames.send(self._answer(question))

    def _answer(self, question: exchange.Question) -> exchange.Answer:
        match question:
            case exchange.AskGenesis():
                return exchange.TellGenesis(genesis=self.knowledge.genesis)
            case exchange.AskNewest():
                return exchange.TellNewest(announcement=self.knowledge.newest())
            case exchange.AskPeers():
                return exchange.TellPeers(peers=list(self.knowledge.peers())[:MAX_PEERS_TOLD])
            case exchange.AskManifest(manifest=manifest):
                raw = self.store.manifest_bytes(ManifestHash(manifest))
                return exchange.NotHeld() if raw is None else exchange.TellManifest(manifest=raw)

    async def _tell_holdings(self, frames: FrameStream) -> None:
        """Two halves: this task hears what is wanted, another tells what is held and gained."""
        want: exchange.Want | None = await frames.receive(exchange.Want)
        if want is None:
            return
        follower = _Follower(manifest=ManifestHash(want.manifest))
        self._followers.add(follower)
        try:
            with first_cause():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_told, frames, follower)
                    while (want := await frames.receive(exchange.Want)) is not None:
                        follower.manifest, follower.asked = ManifestHash(want.manifest), True
                        follower.wake.set()
                    nursery.cancel_scope.cancel()
        finally:
            self._followers.discard(follower)

    async def _keep_told(self, frames: FrameStream, follower: _Follower) -> None:
        """Send a Have for what is wanted, and Gained until something is wanted anew, if only the same again."""
        told = 0  # as a bitmap in one integer: what is new of 100,000 chunks is then found in microseconds
        while True:
            follower.wake = trio.Event()
            bitmap = self.store.have_bitmap(follower.manifest)
            held = int.from_bytes(bitmap, "little")
            if follower.asked:
                follower.asked, told = False, held
                await frames.send(exchange.Have(manifest=follower.manifest, bitmap=bitmap))
            elif news := held & ~told:
                chunks = _lowest_bits(news, MAX_GAINED)
                told |= news & (1 << chunks[-1] + 1) - 1
                await frames.send(exchange.Gained(chunks=chunks))
            else:
                await follower.wake.wait()

    async def _send_chunks(self, frames: FrameStream) -> None:
        while (request := await frames.receive(exchange.ChunkRequest)) is not None:
            match request:
                case exchange.Request(cid=cid):
                    await self._answer_request(frames, as_cid(cid))
                case exchange.Cancel():
                    pass  # requests are answered in turn, so what it cancels was answered before we read this

    async def _answer_request(self, frames: FrameStream, cid: Cid) -> None:
        peer = frames.stream.remote
        if not self.store.holds(cid):
            await frames.send(exchange.Missing(cid=cid))
        elif self._uploads[peer] >= MAX_UPLOADS_PER_PEER or self._uploads.total() >= MAX_UPLOADS:
            await frames.send(exchange.Busy(cid=cid, retry_after_ms=BUSY_RETRY_MS))
        else:
            with _counted(self._uploads, peer):
                await self._upload(frames, cid)

    async def _upload(self, frames: FrameStream, cid: Cid) -> None:
        data = await self._read(cid)
        if data is None:
            await frames.send(exchange.Missing(cid=cid))
            return
        with trio.move_on_after(UPLOAD_TIMEOUT_S) as patience:
            await frames.send(exchange.Chunk(cid=cid, data=data))
        if patience.cancelled_caught:
            raise StreamBroken(f"{frames.stream.remote} did not take a chunk within {UPLOAD_TIMEOUT_S:.0f} s")
        served = self.served.setdefault(frames.stream.remote, Served())
        served.chunks += 1
        served.size_bytes += len(data)

    async def _read(self, cid: Cid) -> bytes | None:
        try:
            return await trio.to_thread.run_sync(self.store.get, cid)
        except (StoreError, OSError) as error:
            self.trouble(f"A chunk that the store holds cannot be read: {error}")
            return None


@contextmanager
def _counted(counts: Counter[PeerId], peer: PeerId) -> Iterator[None]:
    """One more of `peer` while the block lasts; peers with none are not remembered."""
    counts[peer] += 1
    try:
        yield
    finally:
        counts[peer] -= 1
        if not counts[peer]:
            del counts[peer]


def _lowest_bits(bitmap: int, limit: int) -> list[int]:
    """Indices of the lowest `limit` bits that are set."""
    raw = bitmap.to_bytes((bitmap.bit_length() + 7) // 8, "little")
    found: list[int] = []
    for index, byte in enumerate(raw):
        if byte:
            found += [8 * index + bit for bit in range(8) if byte >> bit & 1]
            if len(found) >= limit:
                break
    return found[:limit]
