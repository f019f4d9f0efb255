"""Fetching one version at a time from whichever peers hold its chunks.

With every connected peer there is one conversation: a control stream that tells what it holds, and data streams for
what the scheduler asks of it, opened when first needed and kept for the next version. What always holds: the
scheduler decides and this file performs; a chunk is verified before it is stored, announced or relayed; when a
conversation ends, nothing is outstanding at that peer, and when a fetch ends, nothing of it is outstanding anywhere;
a peer that sends wrong bytes is reported and not asked again for this version.

Loops: `run` consumes connection events; a conversation consumes Have and Gained, and is woken when another version is
wanted; each request is a task of its conversation, and the scheduler's window bounds how many there are.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from protocol import exchange
from protocol.errors import Fault, LocalProtocolError, PeerError
from protocol.ids import PeerId
from protocol.manifest import ChunkRef, SignedManifest
from swarm.causes import first_cause
from swarm.framing import FrameStream, abort, framed
from swarm.reputation import Report
from swarm.scheduler import (
    Arrived,
    Ask,
    Complete,
    Corrupt,
    Event,
    Failed,
    FetchPlan,
    Ignore,
    Missing,
    PeerGained,
    PeerGone,
    PeerHas,
    Refused,
    Tick,
)
from swarm.store import ChunkStore, StoreError
from swarm.transport import PeerConnected, PeerDisconnected, StreamBroken, StreamRefused, Transport

CHUNK_TIMEOUT_S = 20.0
SLOWEST_BYTES_PER_S = 64 * 1024
"""A chunk may take so long, and in addition its size at this rate: a peer slower than that is better not asked."""

BREAK_GRACE_S = 0.5
"""After a data stream broke: if its connection is gone as well, which shows by then, the peer broke no promise."""

REOPEN_DELAY_S = 1.0
"""Before a control stream is opened again: short enough for a version, and no spinning on a peer that refuses."""

FAULT_PAUSE_S = 30.0
"""The same after the peer broke the protocol: it will again, and each time is reported."""

TICK_S = 0.2
"""How often peers that were busy are looked at again."""

STARVED_S = 10.0
"""How long a fetch waits while nobody here holds what is missing: a peer that reconnects is back by then."""


class Starved(Exception):
    """Nobody who is connected, and whom we would still ask, holds the missing chunks."""


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """Bytes that one fetch took, by the peer they came from."""

    by_peer: dict[PeerId, int]


@dataclass(kw_only=True, eq=False)
class _Fetch:
    signed: SignedManifest
    plan: FetchPlan
    done: trio.Event = field(default_factory=trio.Event)
    failure: Exception | None = None
    fed_at: float = field(default_factory=trio.current_time)
    by_peer: dict[PeerId, int] = field(default_factory=dict)
    requests: dict[tuple[PeerId, int], trio.CancelScope] = field(default_factory=dict)

    def chunk(self, index: int) -> ChunkRef:
        return self.signed.manifest.chunks[index]

    def fail(self, error: Exception) -> None:
        """End the fetch with `error`; the first one counts."""
        self.failure = self.failure or error
        self.done.set()

    def cancel_requests(self, peer: PeerId | None = None) -> None:
        """Give up what is outstanding at `peer`, or anywhere."""
        for (asked, _), scope in self.requests.items():
            if peer in (None, asked):
                scope.cancel()


@dataclass(kw_only=True, eq=False)
class _Link:
    """One connected peer. `requests` is where its requests run, None while there is no conversation."""

    peer: PeerId
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    requests: trio.Nursery | None = None
    idle: list[FrameStream] = field(default_factory=list)
    wanted: trio.Event = field(default_factory=trio.Event)


@dataclass(kw_only=True)
class Distribution:
    """See the module's paragraph.

    Args:
        gained: told the manifest after each chunk that was stored.
        report: told of faults.
        rng: breaks the scheduler's ties.
    """

    transport: Transport
    store: ChunkStore
    gained: Callable[[SignedManifest], None]
    report: Report
    rng: random.Random = field(default_factory=random.Random)
    fetched_bytes: int = 0
    _links: dict[PeerId, _Link] = field(default_factory=dict)
    _fetch: _Fetch | None = None

    async def run(self) -> None:
        """Keep a conversation with every connected peer, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick)
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

    async def fetch(self, signed: SignedManifest) -> Fetched:
        """Fetch every missing chunk of `signed` and return once the store holds them all.

        The store must have begun the version. Cancel to give up: what has arrived stays. Raises Starved, what the
        store raises, or PeerError when the manifest itself is wrong; and LocalProtocolError while another is fetched.
        """
        if self._fetch is not None:
            raise LocalProtocolError("one version is fetched at a time")
        fetch = _Fetch(signed=signed, plan=FetchPlan(self.store.missing(signed.hash), self.rng))
        self._fetch = fetch
        try:
            for link in self._links.values():
                link.wanted.set()
            self._feed(Tick(), of=fetch)
            await fetch.done.wait()
        finally:
            self._fetch = None
            fetch.cancel_requests()
        if fetch.failure is not None:
            raise fetch.failure
        return Fetched(by_peer=fetch.by_peer)

    def _feed(self, event: Event, *, of: _Fetch | None) -> None:
        """Give `event` to the plan of `of`, if that is still what is fetched, and perform what follows."""
        if of is None or of is not self._fetch:
            return
        for effect in of.plan.handle(event, trio.current_time()):
            match effect:
                case Ask(peer=peer, chunk=chunk):
                    self._begin_request(self._links[peer], of, chunk)
                case Ignore(peer=peer, corrupt=corrupt):
                    fault = Fault.CORRUPT_CHUNK if corrupt else Fault.BROKEN_PROMISE
                    self.report(peer, fault, f"while fetching version {of.signed.version}")
                    of.cancel_requests(peer)
                case Complete():
                    of.done.set()
        if not of.plan.starved:
            of.fed_at = trio.current_time()

    async def _tick(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            if (fetch := self._fetch) is not None:
                self._feed(Tick(), of=fetch)
                self._look_for_hunger(fetch)

    def _look_for_hunger(self, fetch: _Fetch) -> None:
        if trio.current_time() - fetch.fed_at > STARVED_S:
            missing, total = len(fetch.plan.missing), len(fetch.signed.manifest.chunks)
            fetch.fail(Starved(f"nobody here whom we may ask holds {missing} of its {total} chunks."))

    # Conversations.

    def _unlink(self, peer: PeerId) -> None:
        if (link := self._links.get(peer)) is not None:
            self._hang_up(link)
            del self._links[peer]
            link.scope.cancel()

    def _hang_up(self, link: _Link) -> None:
        """Nothing can be asked of this peer until it has said again what it holds."""
        if link.requests is not None and self._links.get(link.peer) is link:
            link.requests = None
            self._feed(PeerGone(peer=link.peer), of=self._fetch)

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
        try:
            async with framed(stream, exchange.MAX_HAVE_BYTES) as frames, trio.open_nursery() as nursery:
                link.requests = nursery
                try:
                    nursery.start_soon(self._tell_wants, link, frames)
                    await self._hear_holdings(link, frames)
                finally:
                    self._hang_up(link)
                    nursery.cancel_scope.cancel()
        finally:
            idle, link.idle = link.idle, []
            for kept in idle:
                await abort(kept.stream)

    async def _tell_wants(self, link: _Link, frames: FrameStream) -> None:
        told: _Fetch | None = None
        while True:
            link.wanted = trio.Event()
            if (fetch := self._fetch) is not None and fetch is not told:
                told = fetch
                await frames.send(exchange.Want(manifest=fetch.signed.hash))
            else:
                await link.wanted.wait()

    async def _hear_holdings(self, link: _Link, frames: FrameStream) -> None:
        about: _Fetch | None = None
        while (frame := await frames.receive(exchange.ExchangeFrame)) is not None:
            if link.requests is None:  # unlinked in the moment in which this frame came
                return
            match frame:
                case exchange.Have(manifest=manifest, bitmap=bitmap):
                    fetch = self._fetch
                    about = fetch if fetch is not None and fetch.signed.hash == manifest else None
                    if about is not None:
                        chunks = _indices(bitmap, len(about.signed.manifest.chunks))
                        self._feed(PeerHas(peer=link.peer, chunks=chunks), of=about)
                case exchange.Gained(chunks=chunks) if about is not None:
                    count = len(about.signed.manifest.chunks)
                    self._feed(PeerGained(peer=link.peer, chunks=tuple(c for c in chunks if c < count)), of=about)
                case exchange.Gained():
                    pass

    # Requests.

    def _begin_request(self, link: _Link, fetch: _Fetch, chunk: int) -> None:
        # The plan only asks peers that said what they hold, and hears that one is gone before its nursery is.
        assert link.requests is not None
        scope = fetch.requests[link.peer, chunk] = trio.CancelScope()
        link.requests.start_soon(self._request, link, fetch, chunk, scope)

    async def _request(self, link: _Link, fetch: _Fetch, chunk: int, scope: trio.CancelScope) -> None:
        """Ask for one chunk and tell the plan how it went, unless the request was given up meanwhile."""
        try:
            with scope:
                event = await self._obtain(link, fetch, chunk)
        finally:
            if fetch.requests.get((link.peer, chunk)) is scope:
                del fetch.requests[link.peer, chunk]
        if not scope.cancelled_caught and event is not None:
            self._feed(event, of=fetch)

    async def _obtain(self, link: _Link, fetch: _Fetch, chunk: int) -> Event | None:
        try:
            answer = await self._exchange(link, fetch.chunk(chunk))
        except trio.TooSlowError:
            return Failed(peer=link.peer, chunk=chunk)
        except (StreamBroken, StreamRefused):
            await trio.sleep(BREAK_GRACE_S)
            return Failed(peer=link.peer, chunk=chunk)
        except PeerError as error:
            self.report(link.peer, error.fault, error.detail)
            return Failed(peer=link.peer, chunk=chunk)
        match answer:
            case exchange.Chunk(data=data):
                return await self._store(fetch, chunk, data, link.peer)
            case exchange.Busy(retry_after_ms=retry):
                return Refused(peer=link.peer, chunk=chunk, retry_at=trio.current_time() + retry / 1000)
            case exchange.Missing():
                return Missing(peer=link.peer, chunk=chunk)

    async def _exchange(self, link: _Link, chunk: ChunkRef) -> exchange.ChunkAnswer:
        with trio.fail_after(CHUNK_TIMEOUT_S + chunk.size / SLOWEST_BYTES_PER_S):
            async with self._data_stream(link) as frames:
                await frames.send(exchange.Request(cid=chunk.cid))
                answer: exchange.ChunkAnswer | None = await frames.receive(exchange.ChunkAnswer)
                if answer is None:
                    raise StreamBroken(f"{link.peer} ended a data stream without answering")
                if answer.cid != chunk.cid:
                    raise PeerError(Fault.BROKEN_PROMISE, "answered a request for one chunk with another")
                return answer

    @asynccontextmanager
    async def _data_stream(self, link: _Link) -> AsyncIterator[FrameStream]:
        """A data stream on which nothing is outstanding; kept if that is still so afterwards."""
        if link.idle:
            frames = link.idle.pop()
        else:
            stream = await self.transport.open_stream(link.peer, exchange.CHUNKS)
            frames = FrameStream(stream, exchange.MAX_CHUNK_FRAME_BYTES)
        try:
            yield frames
        except BaseException:
            await abort(frames.stream)
            raise
        link.idle.append(frames)

    async def _store(self, fetch: _Fetch, chunk: int, data: bytes, peer: PeerId) -> Event | None:
        try:
            await trio.to_thread.run_sync(self.store.put, fetch.signed.hash, chunk, data)
        except PeerError as error:
            if error.fault is Fault.CORRUPT_CHUNK:
                return Corrupt(peer=peer, chunk=chunk)
            fetch.fail(error)  # the right bytes, of which the manifest is wrong: not this peer's fault
            return None
        except (StoreError, OSError) as error:
            fetch.fail(error)
            return None
        self.fetched_bytes += len(data)
        fetch.by_peer[peer] = fetch.by_peer.get(peer, 0) + len(data)
        self.gained(fetch.signed)
        return Arrived(peer=peer, chunk=chunk)


def _indices(bitmap: bytes, count: int) -> frozenset[int]:
    """The chunks that a Have marks, of the `count` that there are."""
    return frozenset(
        index
        for byte_index, byte in enumerate(bitmap)
        if byte
        for index in range(8 * byte_index, min(8 * byte_index + 8, count))
        if byte >> index % 8 & 1
    )
