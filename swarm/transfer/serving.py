"""Answer other peers' questions: what this node knows (ASK), and which chunks it holds (EXCHANGE).

Requests for the chunks themselves go to `chunk_server`.

Loops: one task per stream consumes the peer's questions. A second one per EXCHANGE stream reports holdings. It is woken
when the peer wants another version, and when `tell_gained` could not send something at once.

Invariants:

- A peer has at most a bounded number of streams.
- A version with an `ExchangeView` (because it is fetched or seeded here) is shown as that view decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import trio

from protocol.core.errors import PeerError
from protocol.core.ids import ManifestHash, PeerId
from protocol.core.limits import MANIFEST_PIECE_BYTES, MAX_PEERS_TOLD, MAX_REQUEST_BYTES
from protocol.versions import exchange
from protocol.versions.exchange import PeerAddresses
from protocol.versions.manifest_pieces import manifest_piece
from swarm.store import ChunkStore
from swarm.transfer.audience import ExchangeView, Followed, Unfollowed
from swarm.transfer.chunk_cache import RecentChunks
from swarm.transfer.chunk_server import UPLOAD_TIMEOUT_S, ChunkServer, Served
from swarm.transfer.question_rates import RateLimit
from swarm.transport.error_groups import first_cause
from swarm.transport.event_rate import Rate
from swarm.transport.framing import FrameStream
from swarm.transport.interface import Report, Stream, StreamBroken, Transport, ignore_report

MAX_STREAMS_PER_PEER = 32
"""Serving streams that one peer may hold open: one for holdings, one for chunks, and questions, with some to spare."""

MAX_GAINED = 4096
"""Chunks named in one Gained, its limit on the wire."""

MEMBER_QUESTIONS = Rate(per_s=100.0, burst=500.0)
"""Rate of one member's questions, and of its requests to hear which chunks we hold (Want). An honest member asks about
four for a version, or 16 if the manifest has 64 MiB, and otherwise one every few seconds. The smallest models publish
ten versions a second, which needs 40. Answers to a member that asks more often are delayed to this rate."""

STRANGER_QUESTIONS = Rate(per_s=5.0, burst=50.0)
"""The same for one stranger. Joining takes three, and nobody guesses an invite's token at five tries a second."""

STRANGERS_QUESTIONS = Rate(per_s=100.0, burst=500.0)
"""The same for all strangers together: a hundredth of a core."""

QUESTION_RATE = "question_rate"
"""The budget of questions, by the name under which refusals are reported."""

FEW_BITS = 64
"""Number of bits up to which taking them out of a bitmap one by one is quicker than looking through all its bytes."""


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """The answers to peers' questions: our genesis, the newest announcement that we believe, and the peers we know.

    A learner also answers a peer that asks for its `terms`, by the join token that came with the question.
    """

    genesis: bytes
    newest: Callable[[], bytes]
    peers: Callable[[], Sequence[PeerAddresses]]
    terms: Callable[[str], exchange.TellTerms | exchange.NotTold] | None = None


@dataclass(kw_only=True, eq=False)
class _Follower:
    """One EXCHANGE stream: what its peer wants, and what it was told.

    `asked`: whether the peer still waits for its Have. `left`: a message for the reporting task, which `wake` wakes.
    `told` is a bitmap in one integer, so that what is new of 100,000 chunks is found in microseconds.
    """

    peer: PeerId
    frames: FrameStream
    manifest: ManifestHash
    everything: bool
    asked: bool = True
    told: int = 0
    left: exchange.Have | exchange.Gained | None = None
    is_telling: bool = False
    wake: trio.Event = field(default_factory=trio.Event)


@dataclass(kw_only=True)
class Serving:
    """Answer other peers. `start` registers with `transport`, which then runs a task for every stream.

    Args:
        report: called for peers that break the protocol.
        trouble: called with a sentence about each problem of our own disk.
        piece_bytes: bytes of a piece of a manifest, the same for all nodes of the swarm.
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
    _chunks: ChunkServer = field(init=False)
    _rates: RateLimit = field(init=False)

    def __post_init__(self) -> None:
        self._rates = RateLimit(
            self.transport, QUESTION_RATE, MEMBER_QUESTIONS, STRANGER_QUESTIONS, STRANGERS_QUESTIONS
        )
        self._chunks = ChunkServer(
            transport=self.transport,
            store=self.store,
            views=self.audiences,
            trouble=lambda text: self.trouble(text),
            recent=self.recent,
            served=self.served,
        )

    @property
    def served_bytes(self) -> int:
        """Bytes of chunks sent to all peers."""
        return sum(served.size_bytes for served in self.served.values())

    def start(self) -> None:
        """Begin to answer."""
        self.transport.handle(exchange.ASK, self._handler(self._answer_questions))
        self.transport.handle(exchange.EXCHANGE, self._handler(self._tell_holdings))
        self.transport.handle(exchange.CHUNKS, self._handler(self._chunks.serve))

    def tell_gained(self, manifest: ManifestHash) -> None:
        """Tell the peers that want `manifest` that more of it is held now, or may be shown."""
        for follower in self._followers:
            if follower.manifest == manifest:
                self._tell(follower)

    def show(self, manifest: ManifestHash, peer: PeerId) -> None:
        """Do the same for `peer` only."""
        for follower in self._followers:
            if follower.peer == peer and follower.manifest == manifest:
                self._tell(follower)

    @property
    def is_busy(self) -> bool:
        """Whether requested chunks are still to be sent."""
        return self._chunks.is_busy

    def tick(self) -> None:
        """Look for uploads that do not move. `ChunkExchange` calls this several times a second."""
        self._chunks.tick()

    def attend(self, manifest: ManifestHash, audience: ExchangeView) -> None:
        """Let `audience` decide from now on how `manifest` is shown, and tell it which peers follow it already."""
        self.audiences[manifest] = audience
        for follower in list(self._followers):
            if follower.manifest == manifest:
                audience.take_note(Followed(peer=follower.peer))

    def dismiss(self, manifest: ManifestHash) -> None:
        """Remove the audience of `manifest`: from now on all held chunks of it are shown to everybody."""
        if self.audiences.pop(manifest, None) is not None:
            self.tell_gained(manifest)

    def _handler(self, serve: Callable[[FrameStream], Awaitable[None]]) -> Callable[[Stream], Awaitable[None]]:
        """Return `serve` as a handler that counts the stream, and reports its faults before they end it."""

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
            await self._rates.keep_to(frames)
            with trio.move_on_after(UPLOAD_TIMEOUT_S) as time_limit:
                await frames.send(self._answer(question))
            if time_limit.cancelled_caught:
                raise StreamBroken(f"{frames.stream.remote} did not take an answer within {UPLOAD_TIMEOUT_S:.0f} s")

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
        """Serve one EXCHANGE stream: this task hears Wants, and another reports what is held and gained."""
        want: exchange.Want | None = await frames.receive(exchange.Want)
        if want is None:
            return
        follower = _Follower(
            peer=frames.stream.remote,
            frames=frames,
            manifest=ManifestHash(want.manifest),
            everything=want.everything,
        )
        self._followers.add(follower)
        self._note(follower, Followed)
        try:
            with first_cause():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_told, follower)
                    while (want := await frames.receive(exchange.Want)) is not None:
                        await self._rates.keep_to(frames)
                        self._switch(follower, want)
                        follower.wake.set()
                    nursery.cancel_scope.cancel()
        finally:
            self._followers.discard(follower)
            self._note(follower, Unfollowed)

    def _switch(self, follower: _Follower, want: exchange.Want) -> None:
        """Take note of a Want. An audience that hears of a new follower may show it chunks in the same turn, so the
        follower is owed its Have before that.
        """
        is_new = follower.manifest != want.manifest
        if is_new:
            self._note(follower, Unfollowed)
        follower.manifest, follower.everything, follower.asked = ManifestHash(want.manifest), want.everything, True
        if is_new:
            self._note(follower, Followed)

    def _note(self, follower: _Follower, change: type[Followed | Unfollowed]) -> None:
        if (audience := self.audiences.get(follower.manifest)) is not None:
            audience.take_note(change(peer=follower.peer))

    async def _keep_told(self, follower: _Follower) -> None:
        """Send what could not be sent at once: a Have for each Want, then Gained until the next Want.

        A Want for the same version again also gets a Have.
        """
        while True:
            follower.wake = trio.Event()
            if (message := follower.left or self._news_for(follower)) is not None:
                follower.left, follower.is_telling = None, True
                await follower.frames.send(message)
                follower.is_telling = False
            else:
                await follower.wake.wait()

    def _tell(self, follower: _Follower) -> None:
        """Report news, at once if the stream has room."""
        while not follower.is_telling and follower.left is None and (news := self._news_for(follower)) is not None:
            follower.left = news
            with suppress(StreamBroken):  # the reporting task finds out as well
                if follower.frames.post([news]):
                    follower.left = None
        if follower.left is not None:
            follower.wake.set()

    def _news_for(self, follower: _Follower) -> exchange.Have | exchange.Gained | None:
        """Return the next message; None if all has been said."""
        while True:
            audience = self.audiences.get(follower.manifest)
            bitmap = self.store.have_bitmap(follower.manifest)
            held = int.from_bytes(bitmap, "little")
            if audience is not None:
                held = audience.select_shown(follower.peer, held)
            if follower.asked:
                follower.asked, follower.told = False, held
                return exchange.Have(
                    manifest=follower.manifest, bitmap=held.to_bytes((held.bit_length() + 7) // 8, "little")
                )
            if not (news := held & ~follower.told):
                return None
            chunks = _lowest_bits(news, MAX_GAINED)
            follower.told |= news & (1 << chunks[-1] + 1) - 1
            if audience is not None and not follower.everything:
                chunks = [chunk for chunk in chunks if not audience.knows(follower.peer, chunk)]
            if chunks:
                return exchange.Gained(chunks=chunks)


@contextmanager
def _counted(counts: Counter[PeerId], peer: PeerId) -> Iterator[None]:
    """Count one more stream of `peer` while the block lasts; peers with none are not remembered."""
    counts[peer] += 1
    try:
        yield
    finally:
        counts[peer] -= 1
        if not counts[peer]:
            del counts[peer]


def _lowest_bits(bitmap: int, limit: int) -> list[int]:
    """Return the indices of the lowest `limit` bits that are set."""
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
