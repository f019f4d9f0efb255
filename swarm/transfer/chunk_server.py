"""Serve the chunks that other peers request (CHUNKS): whose turn it is, and the bytes.

`upload_queue` decides whose turn it is, and which request is refused instead of being kept waiting.

Loops: one task per stream consumes the peer's requests; a second one sends answers, woken by the queue.

Invariants:

- Only bytes that were verified leave this node.
- A peer costs at most one upload at a time.
- An upload that is not taken in time is broken off, so nobody can hold memory for ever.
- A disk that fails costs the chunk, not the node.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio

from protocol.core.codec import decode
from protocol.core.digest import as_cid
from protocol.core.ids import Cid, ManifestHash, PeerId
from protocol.versions import exchange
from swarm.store import ChunkStore, StoreError
from swarm.transfer import upload_queue as uploads
from swarm.transfer.audience import Asked, Begun, ExchangeView, Idle, Note, Sent
from swarm.transfer.chunk_cache import RecentChunks
from swarm.transfer.disk_turns import DiskTurns
from swarm.transfer.question_rates import RateLimit
from swarm.transfer.upload_queue import Begin, Drop, Event, Moved, Refuse, Requested, Tick, UploadQueue, Withdrawn
from swarm.transport.error_groups import first_cause
from swarm.transport.event_rate import Rate
from swarm.transport.framing import FrameStream
from swarm.transport.interface import StreamBroken, Transport

UPLOAD_TIMEOUT_S = 120.0
"""Seconds: a 4 MiB chunk while three others share 1 Mbit/s with it. A slower peer has long given up on the chunk."""

MAX_ANSWERS = 64
"""Answers waiting on one CHUNKS stream: eight windows of requests. A peer that leaves more unread is not listening."""

MEMBER_REQUESTS = Rate(per_s=2000.0, burst=4000.0)
"""Requests and cancellations of chunks by one member: 2 Gbit/s in chunks of 128 KiB."""

STRANGER_REQUESTS = Rate(per_s=200.0, burst=400.0)
STRANGERS_REQUESTS = Rate(per_s=1000.0, burst=2000.0)
"""The same for one stranger, and for all strangers together."""

STRANGER_UPLOADS = 4
"""Chunks that all strangers together may wait for, or be sent, at once: a third of MAX_UPLOADS. So members have the
other uploads, however slowly strangers read."""

REQUEST_RATE, UPLOADS = "request_rate", "uploads"
"""Budgets, by the names under which refusals are reported."""

REPEATED_RETRY_MS = 1000
"""Milliseconds until a peer may ask again after it repeated an open request: it should wait for that one. A stranger
without a place gets the same answer."""


@dataclass(kw_only=True)
class Served:
    """Chunks and bytes sent to one peer since this node started."""

    chunks: int = 0
    size_bytes: int = 0


@dataclass(kw_only=True, eq=False)
class _Outlet:
    """One CHUNKS stream: the requests on it without an answer, and the answers to send next."""

    frames: FrameStream
    requested: set[Cid] = field(default_factory=set)
    answers: deque[exchange.ChunkAnswer] = field(default_factory=deque)
    upload: Cid | None = None
    upload_ends_at: float = math.inf
    """The latest end of an upload that no task waits for."""
    ended: bool = False
    wake: trio.Event = field(default_factory=trio.Event)
    peer: PeerId = field(init=False)

    def __post_init__(self) -> None:
        self.peer = self.frames.stream.remote

    def answer(self, answer: exchange.ChunkAnswer) -> None:
        self.requested.discard(Cid(answer.cid))
        self.answers.append(answer)
        self.wake.set()

    def begin(self, cid: Cid) -> None:
        """Have a task send this chunk."""
        self.upload = cid
        self.wake.set()

    def end(self) -> None:
        """Note that the peer ended its side; answers that it is still owed follow."""
        self.ended = True
        self.wake.set()


@dataclass(kw_only=True)
class ChunkServer:
    """Answer requests for chunks. `views`: the versions that are fetched or seeded here, which get notes of events.

    `trouble` is called with a sentence about problems of our own disk.
    """

    transport: Transport
    store: ChunkStore
    views: Mapping[ManifestHash, ExchangeView]
    trouble: Callable[[str], None]
    recent: RecentChunks
    served: dict[PeerId, Served] = field(default_factory=dict)
    _outlets: dict[tuple[PeerId, Cid], _Outlet] = field(default_factory=dict)
    _uploads: UploadQueue = field(init=False)
    _rates: RateLimit = field(init=False)
    _disk: DiskTurns = field(default_factory=DiskTurns)

    def __post_init__(self) -> None:
        self._uploads = UploadQueue(
            num_holders=self._num_holders, is_promised=self._is_promised, num_held=self._num_held
        )
        self._rates = RateLimit(self.transport, REQUEST_RATE, MEMBER_REQUESTS, STRANGER_REQUESTS, STRANGERS_REQUESTS)

    @property
    def is_busy(self) -> bool:
        """Whether requested chunks are still to be sent."""
        return bool(self._outlets)

    def tick(self) -> None:
        """Look for uploads that do not move."""
        self._queue(Tick())
        now = trio.current_time()
        for outlet in self._outlets.values():
            if now > outlet.upload_ends_at:
                outlet.wake.set()
        self._note_idleness()

    async def serve(self, frames: FrameStream) -> None:
        """Serve one CHUNKS stream: this task hears requests and cancellations, and another sends answers."""
        outlet = _Outlet(frames=frames)
        try:
            with first_cause():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_answering, outlet)
                    while (body := await frames.receive_each(partial(self._take_at_once, outlet))) is not None:
                        await self._rates.keep_to(frames)
                        self._take(outlet, decode(exchange.ChunkRequest, body, frames.limit))
                    outlet.end()
        finally:
            self._forget(outlet)

    def _take_at_once(self, outlet: _Outlet, body: bytes) -> bool:
        """Handle a request unless its peer asks too often; return whether it was handled."""
        request = decode(exchange.ChunkRequest, body, outlet.frames.limit)
        if len(outlet.answers) >= MAX_ANSWERS // 2 or not self._rates.admits(outlet.peer):
            return False
        self._take(outlet, request)
        return True

    def _take(self, outlet: _Outlet, request: exchange.ChunkRequest) -> None:
        cid = as_cid(request.cid)
        match request:
            case exchange.Request():
                self._request(outlet, cid)
            case exchange.Cancel() if cid in outlet.requested and cid != outlet.upload:
                self._queue(Withdrawn(peer=outlet.peer, cid=cid))
            case exchange.Cancel():
                pass  # the chunk is on its way, or was answered before we read this

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
        """Return whether one more chunk may be on its way to `peer`, which may be a stranger."""
        if self.transport.is_trusted(peer):
            return True
        return sum(not self.transport.is_trusted(other) for other, _ in self._outlets) < STRANGER_UPLOADS

    def _queue(self, event: Event) -> None:
        """Report an event to the queue, and perform the effects."""
        for effect in self._uploads.handle(event, trio.current_time()):
            peer, cid = effect.peer, effect.cid
            match effect:
                case Begin():
                    outlet = self._outlets[peer, cid]
                    self._note(cid, partial(_begun, peer))
                    if not self._start(outlet, cid):
                        outlet.begin(cid)
                case Refuse(retry_s=retry_s):
                    self._outlets.pop((peer, cid)).answer(exchange.Busy(cid=cid, retry_after_ms=round(retry_s * 1000)))
                case Drop():
                    self._outlets.pop((peer, cid)).answer(exchange.Missing(cid=cid))

    async def _keep_answering(self, outlet: _Outlet) -> None:
        """Send answers, and uploads in their turn, until the peer has ended its side and is owed nothing."""
        while True:
            outlet.wake = trio.Event()
            if trio.current_time() > outlet.upload_ends_at:
                raise _not_taken(outlet.peer)
            if outlet.answers:
                answers = list(outlet.answers)
                outlet.answers.clear()
                ends_at = min(outlet.upload_ends_at, trio.current_time() + UPLOAD_TIMEOUT_S)
                with trio.move_on_at(ends_at) as time_limit:
                    await outlet.frames.send_together(answers)
                if time_limit.cancelled_caught:
                    raise _not_taken(outlet.peer)
            elif outlet.upload is not None and outlet.upload_ends_at == math.inf:
                await self._upload(outlet, outlet.upload)
            elif outlet.ended and not outlet.requested:
                return
            else:
                await outlet.wake.wait()

    def _start(self, outlet: _Outlet, cid: Cid) -> bool:
        """Send a chunk that is in memory, without a task; return False if that is impossible."""
        if (data := self.recent.get(cid)) is None:
            return False

        def done() -> None:
            if outlet.upload == cid:  # otherwise its stream was given up a moment ago
                outlet.upload_ends_at = math.inf
                self._sent(outlet, cid, len(data))

        parts = exchange.chunk_head(cid, len(data)), data
        outlet.upload, outlet.upload_ends_at = cid, trio.current_time() + UPLOAD_TIMEOUT_S
        with suppress(StreamBroken):  # the task that hears requests finds out as well
            if outlet.frames.start(parts, partial(self._moved, outlet.peer), done):
                return True
        outlet.upload_ends_at = math.inf
        return False

    def _moved(self, peer: PeerId, size: int) -> None:
        self._queue(Moved(peer=peer, size=size))

    async def _upload(self, outlet: _Outlet, cid: Cid) -> None:
        data = await self._read(cid)
        if data is None:
            self._uploaded(outlet, cid)
            outlet.answer(exchange.Missing(cid=cid))
            return
        with trio.move_on_after(UPLOAD_TIMEOUT_S) as time_limit:
            await outlet.frames.send_bytes(
                exchange.chunk_head(cid, len(data)),
                data,
                note_progress=partial(self._moved, outlet.peer),
            )
        if time_limit.cancelled_caught:
            raise _not_taken(outlet.peer)
        self._sent(outlet, cid, len(data))

    def _sent(self, outlet: _Outlet, cid: Cid, size: int) -> None:
        served = self.served.setdefault(outlet.peer, Served())
        served.chunks += 1
        served.size_bytes += size
        self._note(cid, lambda chunk: Sent(peer=outlet.peer, chunk=chunk))
        self._uploaded(outlet, cid)

    def _uploaded(self, outlet: _Outlet, cid: Cid) -> None:
        """Note that an upload is over, whether it succeeded or not: its lane is free."""
        outlet.upload = None
        outlet.requested.discard(cid)
        if outlet.ended and not outlet.requested:
            outlet.wake.set()
        del self._outlets[outlet.peer, cid]
        self._queue(uploads.Sent(peer=outlet.peer))
        self._note_idleness()

    def _note_idleness(self) -> None:
        if self._uploads.idle:
            for audience in list(self.views.values()):
                audience.take_note(Idle())

    def _forget(self, outlet: _Outlet) -> None:
        """Drop what was requested on a stream that is over."""
        upload, outlet.upload = outlet.upload, None
        for cid in outlet.requested - {upload}:
            self._queue(Withdrawn(peer=outlet.peer, cid=cid))
        if upload is not None:
            self._uploaded(outlet, upload)

    async def _read(self, cid: Cid) -> bytes | memoryview | None:
        if (data := self.recent.get(cid)) is not None:
            return data
        try:
            return await self._disk.run(self.store.size_of(cid) or 0, self.store.get, cid)
        except (StoreError, OSError) as error:
            self.trouble(f"A chunk that the store holds cannot be read: {error}")
            return None

    def _find(self, cid: Cid) -> tuple[ExchangeView, int] | None:
        for audience in self.views.values():
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


def _not_taken(peer: PeerId) -> StreamBroken:
    return StreamBroken(f"{peer} did not take a chunk within {UPLOAD_TIMEOUT_S:.0f} s")


def _begun(peer: PeerId, chunk: int) -> Note:
    return Begun(peer=peer, chunk=chunk)
