"""Answers to other peers: what this node knows (ASK), which chunks it holds (EXCHANGE), and the chunks (CHUNKS).

What always holds: only bytes that were verified leave this node; a peer costs at most a bounded number of streams and
one upload at a time; whose turn it is, and who is refused instead of being kept waiting, is decided in `uploads`; an
upload that is not taken in time is broken off, so nobody can hold memory for ever; a disk that fails costs the chunk,
not the node. A version that has an `ExchangeView` (because it is being fetched or scattered here) is shown as that
says.

Loops: one task per stream consumes what the peer asks; a second one per EXCHANGE stream tells what is held, woken by
`tell_gained` and by the peer's wanting something else; a second one per CHUNKS stream sends answers, woken by the
queue.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import trio

from protocol.core.digest import as_cid
from protocol.core.errors import PeerError
from protocol.core.ids import Cid, ManifestHash, PeerId
from protocol.core.limits import MANIFEST_PIECE_BYTES, MAX_PEERS_TOLD, MAX_REQUEST_BYTES
from protocol.versions import exchange
from protocol.versions.exchange import PeerAddresses
from protocol.versions.manifest_pieces import manifest_piece
from swarm.store import ChunkStore, StoreError
from swarm.transfer import upload_queue as uploads
from swarm.transfer.audience import Asked, Begun, ExchangeView, Followed, Idle, Note, Sent, Unfollowed
from swarm.transfer.chunk_cache import RecentChunks
from swarm.transfer.upload_queue import Begin, Drop, Event, Moved, Refuse, Requested, Tick, UploadQueue, Withdrawn
from swarm.transport.error_groups import first_cause
from swarm.transport.event_rate import Graded, Rate
from swarm.transport.framing import FrameStream
from swarm.transport.interface import Report, Stream, StreamBroken, Transport, ignore_report

MAX_STREAMS_PER_PEER = 32
"""Serving streams one peer may hold open: one for holdings, one for chunks, and questions, with room."""

MAX_GAINED = 4096
"""Chunks named in one Gained, its bound on the wire."""

UPLOAD_TIMEOUT_S = 120.0
"""A 4 MiB chunk that three others share 1 Mbit/s with; who takes longer has long given up on it."""

MAX_ANSWERS = 64
"""Answers waiting on one CHUNKS stream: eight windows of requests. Who leaves more unread is not listening."""


MEMBER_QUESTIONS = Rate(per_s=100.0, burst=500.0)
"""Questions, and wants of holdings, of one member. An honest one asks some four when a version comes, a manifest of 64
MiB in 16 pieces, and else every few seconds; the smallest models have ten versions a second. Whoever asks more is
answered no faster."""

STRANGER_QUESTIONS = Rate(per_s=5.0, burst=50.0)
"""Of one stranger: joining takes three, and the token of an invite is not guessed at five a second."""

STRANGERS_QUESTIONS = Rate(per_s=100.0, burst=500.0)
"""Of all strangers together: a hundredth of a core."""

MEMBER_REQUESTS = Rate(per_s=2000.0, burst=4000.0)
"""Requests for chunks, and their withdrawal, of one member: 2 Gbit/s of chunks of 128 KiB."""

STRANGER_REQUESTS = Rate(per_s=200.0, burst=400.0)
STRANGERS_REQUESTS = Rate(per_s=1000.0, burst=2000.0)
"""Of one stranger, and of all."""

STRANGER_UPLOADS = 4
"""Chunks that all strangers together may wait for, or be sent, at once: a third of MAX_UPLOADS, so that members have
the others, however slowly strangers read."""

QUESTION_RATE, REQUEST_RATE, UPLOADS = "question_rate", "request_rate", "uploads"
"""Budgets by the names under which refusals are told."""

REPEATED_RETRY_MS = 1000
"""Told to a peer that requests again what it is owed already: it should wait for that. And to a stranger for whom there
is no place."""

FEW_BITS = 64
"""Up to so many, taking them out of a bitmap one by one is quicker than looking through all of its bytes."""


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What this node tells whoever asks: its genesis, the newest announcement it believes, the peers it knows.

    A learner also answers who asks for its `terms`, with the join token that came with the question.
    """

    genesis: bytes
    newest: Callable[[], bytes]
    peers: Callable[[], Sequence[PeerAddresses]]
    terms: Callable[[str], exchange.TellTerms | exchange.NotTold] | None = None


@dataclass(kw_only=True)
class Served:
    """Chunks and bytes handed to one peer since this node started."""

    chunks: int = 0
    size_bytes: int = 0


@dataclass(kw_only=True, eq=False)
class _Follower:
    """One EXCHANGE stream: what its opener wants, whether that waits for its Have, what wakes the task that tells."""

    peer: PeerId
    manifest: ManifestHash
    everything: bool
    asked: bool = True
    wake: trio.Event = field(default_factory=trio.Event)


@dataclass(kw_only=True, eq=False)
class _Outlet:
    """One CHUNKS stream: what was requested on it and not answered, and what is to be answered next."""

    frames: FrameStream
    requested: set[Cid] = field(default_factory=set)
    answers: deque[exchange.ChunkAnswer] = field(default_factory=deque)
    upload: Cid | None = None
    ended: bool = False
    wake: trio.Event = field(default_factory=trio.Event)

    @property
    def peer(self) -> PeerId:
        return self.frames.stream.remote

    def answer(self, answer: exchange.ChunkAnswer) -> None:
        self.requested.discard(Cid(answer.cid))
        self.answers.append(answer)
        self.wake.set()

    def begin(self, cid: Cid) -> None:
        self.upload = cid
        self.wake.set()

    def end(self) -> None:
        """Its opener says no more; what it is still owed follows."""
        self.ended = True
        self.wake.set()


@dataclass(kw_only=True)
class Serving:
    """Registers itself with `transport` by `start`; thereafter every stream is a task of the transport's.

    Args:
        report: told of peers that do not keep to the protocol.
        trouble: told, in a sentence, of what is wrong with our own disk.
        piece_bytes: what a piece of a manifest has, as with everybody in the swarm.
    """

    transport: Transport
    store: ChunkStore
    knowledge: Knowledge
    report: Report = ignore_report
    trouble: Callable[[str], None] = lambda text: None
    piece_bytes: int = MANIFEST_PIECE_BYTES
    served: dict[PeerId, Served] = field(default_factory=dict)
    audiences: dict[ManifestHash, ExchangeView] = field(default_factory=dict)
    recent: RecentChunks = field(default_factory=RecentChunks)
    _followers: set[_Follower] = field(default_factory=set)
    _streams: Counter[PeerId] = field(default_factory=Counter)
    _outlets: dict[tuple[PeerId, Cid], _Outlet] = field(default_factory=dict)
    _uploads: UploadQueue = field(init=False)
    _questions: Graded[PeerId] = field(
        default_factory=lambda: Graded(
            member=MEMBER_QUESTIONS, stranger=STRANGER_QUESTIONS, strangers=STRANGERS_QUESTIONS
        )
    )
    _requests: Graded[PeerId] = field(
        default_factory=lambda: Graded(member=MEMBER_REQUESTS, stranger=STRANGER_REQUESTS, strangers=STRANGERS_REQUESTS)
    )

    def __post_init__(self) -> None:
        self._uploads = UploadQueue(
            num_holders=self._num_holders, is_promised=self._is_promised, num_held=self._num_held
        )

    @property
    def served_bytes(self) -> int:
        """Bytes of chunks sent, to all peers."""
        return sum(served.size_bytes for served in self.served.values())

    def start(self) -> None:
        """Begin to answer."""
        self.transport.handle(exchange.ASK, self._handler(self._answer_questions))
        self.transport.handle(exchange.EXCHANGE, self._handler(self._tell_holdings))
        self.transport.handle(exchange.CHUNKS, self._handler(self._send_chunks))

    def tell_gained(self, manifest: ManifestHash) -> None:
        """Tell those who want `manifest` that more of it is held, or to be shown, now."""
        for follower in self._followers:
            if follower.manifest == manifest:
                follower.wake.set()

    def show(self, manifest: ManifestHash, peer: PeerId) -> None:
        """The same for `peer` alone."""
        for follower in self._followers:
            if follower.peer == peer and follower.manifest == manifest:
                follower.wake.set()

    def tick(self) -> None:
        """Look for uploads that do not move; to be called several times a second. `ChunkExchange` does."""
        self._queue(Tick())
        self._note_idleness()

    def attend(self, manifest: ManifestHash, audience: ExchangeView) -> None:
        """From now on `audience` says how `manifest` is shown; it is told who follows it already."""
        self.audiences[manifest] = audience
        for follower in list(self._followers):
            if follower.manifest == manifest:
                audience.take_note(Followed(peer=follower.peer))

    def dismiss(self, manifest: ManifestHash) -> None:
        """`manifest` has no audience any more: all of it that is held is shown to everybody."""
        if self.audiences.pop(manifest, None) is not None:
            self.tell_gained(manifest)

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
            await self._keep_to_rate(frames, self._questions, QUESTION_RATE)
            with trio.move_on_after(UPLOAD_TIMEOUT_S) as patience:
                await frames.send(self._answer(question))
            if patience.cancelled_caught:
                raise StreamBroken(f"{frames.stream.remote} did not take an answer within {UPLOAD_TIMEOUT_S:.0f} s")

    async def _keep_to_rate(self, frames: FrameStream, rates: Graded[PeerId], budget: str) -> None:
        """Wait before answering whoever asks too often: the next is not read meanwhile."""
        peer = frames.stream.remote
        wait_s = rates.charge(peer, trio.current_time(), is_member=self.transport.is_trusted(peer))
        if wait_s > 0:
            self.transport.note_refusal(budget, peer)
            await trio.sleep(wait_s)

    def _answer(self, question: exchange.Question) -> exchange.Answer:
        match question:
            case exchange.AskGenesis():
                ext = {} if self.knowledge.terms is None else {exchange.TERMS: b""}
                return exchange.TellGenesis(genesis=self.knowledge.genesis, ext=ext)
            case exchange.AskNewest():
                return exchange.TellNewest(announcement=self.knowledge.newest())
            case exchange.AskTerms(token=token):
                return exchange.NotHeld() if self.knowledge.terms is None else self.knowledge.terms(token)
            case exchange.AskPeers():
                return exchange.TellPeers(peers=list(self.knowledge.peers())[:MAX_PEERS_TOLD])
            case exchange.AskManifest(manifest=manifest, offset=offset):
                raw = self.store.manifest_bytes(ManifestHash(manifest))
                return exchange.NotHeld() if raw is None else manifest_piece(raw, offset, self.piece_bytes)

    # What is held.

    async def _tell_holdings(self, frames: FrameStream) -> None:
        """Two halves: this task hears what is wanted, another tells what is held and gained."""
        want: exchange.Want | None = await frames.receive(exchange.Want)
        if want is None:
            return
        follower = _Follower(
            peer=frames.stream.remote, manifest=ManifestHash(want.manifest), everything=want.everything
        )
        self._followers.add(follower)
        self._follows(follower)
        try:
            with first_cause():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_told, frames, follower)
                    while (want := await frames.receive(exchange.Want)) is not None:
                        await self._keep_to_rate(frames, self._questions, QUESTION_RATE)
                        if follower.manifest != want.manifest:
                            self._follows_no_more(follower)
                            follower.manifest = ManifestHash(want.manifest)
                            self._follows(follower)
                        follower.asked, follower.everything = True, want.everything
                        follower.wake.set()
                    nursery.cancel_scope.cancel()
        finally:
            self._followers.discard(follower)
            self._follows_no_more(follower)

    def _follows(self, follower: _Follower) -> None:
        if (audience := self.audiences.get(follower.manifest)) is not None:
            audience.take_note(Followed(peer=follower.peer))

    def _follows_no_more(self, follower: _Follower) -> None:
        if (audience := self.audiences.get(follower.manifest)) is not None:
            audience.take_note(Unfollowed(peer=follower.peer))

    async def _keep_told(self, frames: FrameStream, follower: _Follower) -> None:
        """Send a Have for what is wanted, and Gained until something is wanted anew, if only the same again."""
        told = 0  # as a bitmap in one integer: what is new of 100,000 chunks is then found in microseconds
        while True:
            follower.wake = trio.Event()
            audience = self.audiences.get(follower.manifest)
            bitmap = self.store.have_bitmap(follower.manifest)
            held = int.from_bytes(bitmap, "little")
            if audience is not None:
                held = audience.select_shown(follower.peer, held)
                bitmap = held.to_bytes((held.bit_length() + 7) // 8, "little")
            if follower.asked:
                follower.asked, told = False, held
                await frames.send(exchange.Have(manifest=follower.manifest, bitmap=bitmap))
            elif news := held & ~told:
                chunks = _lowest_bits(news, MAX_GAINED)
                told |= news & (1 << chunks[-1] + 1) - 1
                if audience is not None and not follower.everything:
                    chunks = [chunk for chunk in chunks if not audience.knows(follower.peer, chunk)]
                if chunks:
                    await frames.send(exchange.Gained(chunks=chunks))
            else:
                await follower.wake.wait()

    # Chunks.

    async def _send_chunks(self, frames: FrameStream) -> None:
        """Two halves: this task hears what is requested and withdrawn, another answers."""
        outlet = _Outlet(frames=frames)
        try:
            with first_cause():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_answering, outlet)
                    while (request := await frames.receive(exchange.ChunkRequest)) is not None:
                        await self._keep_to_rate(frames, self._requests, REQUEST_RATE)
                        self._take(outlet, request)
                    outlet.end()
        finally:
            self._forget(outlet)

    def _take(self, outlet: _Outlet, request: exchange.ChunkRequest) -> None:
        cid = as_cid(request.cid)
        match request:
            case exchange.Request():
                self._request(outlet, cid)
            case exchange.Cancel() if cid in outlet.requested and cid != outlet.upload:
                self._queue(Withdrawn(peer=outlet.peer, cid=cid))
            case exchange.Cancel():
                pass  # it is on its way, or was answered before we read this

    def _request(self, outlet: _Outlet, cid: Cid) -> None:
        if len(outlet.answers) >= MAX_ANSWERS:
            raise StreamBroken(f"{outlet.peer} has left {MAX_ANSWERS} answers unread")
        size = self.store.size_of(cid)
        if size is None:
            outlet.answer(exchange.Missing(cid=cid))
        elif (outlet.peer, cid) in self._outlets:
            outlet.answer(exchange.Busy(cid=cid, retry_after_ms=REPEATED_RETRY_MS))
        elif not self._has_place_for(outlet.peer):
            self.transport.note_refusal(UPLOADS, outlet.peer)
            outlet.answer(exchange.Busy(cid=cid, retry_after_ms=REPEATED_RETRY_MS))
        else:
            self._outlets[outlet.peer, cid] = outlet
            outlet.requested.add(cid)
            self._note(cid, lambda chunk: Asked(peer=outlet.peer, chunk=chunk))
            self._queue(Requested(peer=outlet.peer, cid=cid, size=size))

    def _has_place_for(self, peer: PeerId) -> bool:
        """Whether one more chunk may be on its way to `peer`, which may be a stranger."""
        if self.transport.is_trusted(peer):
            return True
        return sum(not self.transport.is_trusted(other) for other, _ in self._outlets) < STRANGER_UPLOADS

    def _queue(self, event: Event) -> None:
        """Tell the queue, and perform what follows."""
        for effect in self._uploads.handle(event, trio.current_time()):
            peer, cid = effect.peer, effect.cid
            match effect:
                case Begin():
                    self._outlets[peer, cid].begin(cid)
                    self._note(cid, partial(_begun, peer))
                case Refuse(retry_s=retry_s):
                    self._outlets.pop((peer, cid)).answer(exchange.Busy(cid=cid, retry_after_ms=round(retry_s * 1000)))
                case Drop():
                    self._outlets.pop((peer, cid)).answer(exchange.Missing(cid=cid))

    async def _keep_answering(self, outlet: _Outlet) -> None:
        """Send answers, and uploads when their turn has come, until the opener has ended and is owed nothing."""
        while True:
            outlet.wake = trio.Event()
            if outlet.answers:
                answers = list(outlet.answers)
                outlet.answers.clear()
                await outlet.frames.send_together(answers)
            elif outlet.upload is not None:
                await self._upload(outlet, outlet.upload)
            elif outlet.ended and not outlet.requested:
                return
            else:
                await outlet.wake.wait()

    async def _upload(self, outlet: _Outlet, cid: Cid) -> None:
        data = await self._read(cid)
        if data is None:
            self._uploaded(outlet, cid)
            outlet.answer(exchange.Missing(cid=cid))
            return
        with trio.move_on_after(UPLOAD_TIMEOUT_S) as patience:
            await outlet.frames.send(
                exchange.Chunk(cid=cid, data=data),
                note_progress=lambda size: self._queue(Moved(peer=outlet.peer, size=size)),
            )
        if patience.cancelled_caught:
            raise StreamBroken(f"{outlet.peer} did not take a chunk within {UPLOAD_TIMEOUT_S:.0f} s")
        served = self.served.setdefault(outlet.peer, Served())
        served.chunks += 1
        served.size_bytes += len(data)
        self._note(cid, lambda chunk: Sent(peer=outlet.peer, chunk=chunk))
        self._uploaded(outlet, cid)

    def _uploaded(self, outlet: _Outlet, cid: Cid) -> None:
        """An upload is over, well or not: its lane is free."""
        outlet.upload = None
        outlet.requested.discard(cid)
        del self._outlets[outlet.peer, cid]
        self._queue(uploads.Sent(peer=outlet.peer))
        self._note_idleness()

    def _note_idleness(self) -> None:
        if self._uploads.idle:
            for audience in list(self.audiences.values()):
                audience.take_note(Idle())

    def _forget(self, outlet: _Outlet) -> None:
        """The stream is over: nobody waits for what was requested on it."""
        for cid in outlet.requested - {outlet.upload}:
            self._queue(Withdrawn(peer=outlet.peer, cid=cid))
        if outlet.upload is not None:
            self._uploaded(outlet, outlet.upload)

    async def _read(self, cid: Cid) -> bytes | None:
        if (data := self.recent.get(cid)) is not None:
            return data
        try:
            return await trio.to_thread.run_sync(self.store.get, cid)
        except (StoreError, OSError) as error:
            self.trouble(f"A chunk that the store holds cannot be read: {error}")
            return None

    # What the audiences know.

    def _find(self, cid: Cid) -> tuple[ExchangeView, int] | None:
        for audience in self.audiences.values():
            if (chunk := audience.index_of(cid)) is not None:
                return audience, chunk
        return None

    def _note(self, cid: Cid, note: Callable[[int], Note]) -> None:
        if (found := self._find(cid)) is not None:
            audience, chunk = found
            audience.take_note(note(chunk))

    def _num_holders(self, cid: Cid) -> int:
        found = self._find(cid)
        return found[0].num_holders(found[1]) if found is not None else 0

    def _num_held(self, peer: PeerId, cid: Cid) -> int:
        found = self._find(cid)
        return found[0].num_held(peer) if found is not None else 0

    def _is_promised(self, peer: PeerId, cid: Cid) -> bool:
        found = self._find(cid)
        return found is not None and found[0].is_promised(peer, found[1])


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


def _begun(peer: PeerId, chunk: int) -> Note:
    return Begun(peer=peer, chunk=chunk)


def _lowest_bits(bitmap: int, limit: int) -> list[int]:
    """Indices of the lowest `limit` bits that are set."""
    if bitmap.bit_count() <= FEW_BITS:
        few: list[int] = []
        while bitmap and len(few) < limit:
            few.append((bitmap & -bitmap).bit_length() - 1)
            bitmap &= bitmap - 1
        return few
    raw = bitmap.to_bytes((bitmap.bit_length() + 7) // 8, "little")
    found: list[int] = []
    for index, byte in enumerate(raw):
        if byte:
            found += [8 * index + bit for bit in range(8) if byte >> bit & 1]
            if len(found) >= limit:
                break
    return found[:limit]
