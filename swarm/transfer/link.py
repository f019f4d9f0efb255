"""Converse with one peer: a control stream says what the peer holds, and a data stream carries requested chunks.

The data stream is opened when first needed, and kept for the next version.

Loops: `run` keeps the control stream, on which `_hear_holdings` consumes Have and Gained. `_tell_wants` is woken when
another version is wanted, `_carry` when there is something to request, and `_exchange_chunks` consumes answers.

Invariants:

- When a conversation ends, no request is outstanding at that peer.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import trio

from protocol.core.codec import decode
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import Cid, ManifestHash, PeerId
from protocol.core.limits import MAX_CHUNKS
from protocol.versions import exchange
from swarm.transfer.audience import ExchangedVersion
from swarm.transfer.chunk_picker import Broke, Event, Missing, PeerGained, PeerHas, Refused, Returned
from swarm.transfer.fetch import VersionFetch
from swarm.transport.error_groups import first_cause
from swarm.transport.framing import FrameStream, open_frames
from swarm.transport.interface import Report, StreamBroken, StreamRefused, Transport

BREAK_GRACE_S = 0.5
"""Seconds after a data stream broke. If its connection is gone as well, which shows by then, the peer broke no promise.
"""

REOPEN_DELAY_S = 1.0
"""Seconds before a control stream is opened again: short enough for a version. The pause doubles with each refusal in a
row, up to REFUSED_MOST_S: a peer may exchange no chunks at all."""

REFUSED_MOST_S = 8.0
"""Seconds. Shorter than a fetch waits (`swarm.transfer.exchange.STARVED_S`): a peer may only have begun to serve."""

FAULT_PAUSE_S = 30.0
"""Seconds of the same pause after the peer broke the protocol: it will do so again, and each time is reported."""

SPARE_HAVES = 4
"""Haves beyond one for each Want before a peer counts as flooding us: honest peers send none. Each costs us 0.1 ms, or
0.3 s if there are 500,000 chunks."""


class LinkOwner(Protocol):
    """The parts of its exchange (`swarm.transfer.exchange.ChunkExchange`) that a link uses."""

    @property
    def transport(self) -> Transport: ...

    @property
    def report(self) -> Report: ...

    @property
    def fetching(self) -> VersionFetch | None: ...

    def version_for(self, peer: PeerId) -> ExchangedVersion | None:
        """Return the version about which `peer` must tell us."""

    def version_named(self, manifest: ManifestHash) -> ExchangedVersion | None:
        """Return the version with this manifest, if it is fetched or seeded here."""

    def feed(self, event: Event, of: VersionFetch | None) -> None:
        """Give `event` to the plan of `of`, if that is still fetched, and perform the effects."""

    def forget_peer(self, link: PeerLink) -> None:
        """Forget what this peer holds."""

    async def store_chunk(self, fetch: VersionFetch, chunk: int, data: memoryview, peer: PeerId) -> None:
        """Store a chunk that came from `peer`, and report the result to the plan."""

    def store_now(self, fetch: VersionFetch, chunk: int, data: memoryview, peer: PeerId) -> None:
        """Do the same in this turn, if `can_store_now` allows it."""

    def can_store_now(self, fetch: VersionFetch, size: int) -> bool:
        """Return whether the disk takes `size` bytes at once."""


@dataclass(kw_only=True, slots=True)
class _Owed:
    """A request without an answer. After a Cancel one answer is still due: the chunk, or Missing."""

    fetch: VersionFetch
    chunk: int
    wanted: bool = True
    cancelled: bool = False


@dataclass(kw_only=True, eq=False)
class PeerLink:
    """Ask one connected peer for holdings and chunks, and receive its answers."""

    peer: PeerId
    owner: LinkOwner
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

    def request(self, fetch: VersionFetch, chunk: int) -> None:
        """Request a chunk, at the next `flush`."""
        cid = fetch.chunk(chunk).name
        if (owed := self.owed.get(cid)) is not None:  # cancelled a moment ago: its one answer is still due
            owed.wanted = True
            return
        self.owed[cid] = _Owed(fetch=fetch, chunk=chunk)
        self.outbox.append(exchange.Request(cid=cid))

    def cancel(self, cid: Cid, *, wanted: bool) -> None:
        """Cancel a request at the next `flush`; `wanted` says whether the chunk may come all the same."""
        if (owed := self.owed.get(cid)) is not None:
            owed.wanted = wanted
            if not owed.cancelled:
                owed.cancelled = True
                self.outbox.append(exchange.Cancel(cid=cid))

    def flush(self) -> None:
        """Send requests and cancellations: at once if there is a stream with room, else once there is."""
        if self.outbox and self.data is not None:
            with suppress(StreamBroken):  # it ends the conversation elsewhere
                if self.data.post(self.outbox):
                    self.outbox = []
        if self.outbox:
            self.asking.set()

    def break_off(self) -> None:
        """Drop all requests, and end the data stream that carried them."""
        if self.owed:
            self.forget()
            self.carrier.cancel()

    def hang_up(self) -> None:
        """Stop asking this peer until it has said again what it holds."""
        if self.talks:
            self.talks = False
            self.forget()
            self.owner.forget_peer(self)

    def forget(self) -> None:
        """Drop all requests. An answer that still comes over the data stream belongs to none of them."""
        self.owed.clear()
        self.outbox.clear()
        self.data = None

    def has_heard(self) -> bool:
        """Return whether bytes have come since the last call."""
        before, self.heard_bytes = self.heard_bytes, 0 if self.data is None else self.data.received_bytes
        return self.heard_bytes != before

    async def run(self) -> None:
        """Converse with the peer, again and again, until `scope` is cancelled."""
        with self.scope:
            refused_s = REOPEN_DELAY_S
            while True:
                pause = REOPEN_DELAY_S
                try:
                    with first_cause():
                        await self._converse()
                except StreamBroken:
                    refused_s = REOPEN_DELAY_S
                except StreamRefused:
                    pause, refused_s = refused_s, min(2 * refused_s, REFUSED_MOST_S)
                except PeerError as error:
                    self.owner.report(self.peer, error.fault, error.detail)
                    pause = FAULT_PAUSE_S
                await trio.sleep(pause)

    async def _converse(self) -> None:
        stream = await self.owner.transport.open_stream(self.peer, exchange.EXCHANGE)
        async with open_frames(stream, exchange.MAX_HAVE_BYTES) as frames, trio.open_nursery() as nursery:
            self.talks, self.haves_left, self.gains_left = True, SPARE_HAVES, MAX_CHUNKS
            try:
                nursery.start_soon(self._tell_wants, frames)
                nursery.start_soon(self._carry)
                await self._hear_holdings(frames)
            finally:
                self.hang_up()
                nursery.cancel_scope.cancel()

    async def _tell_wants(self, frames: FrameStream) -> None:
        told: ExchangedVersion | None = None
        while True:
            self.wanted = trio.Event()
            if (subject := self.owner.version_for(self.peer)) is not None and subject is not told:
                told = subject
                self.haves_left += 1
                await frames.send(exchange.Want(manifest=subject.hash, everything=subject.wants_everything))
            else:
                await self.wanted.wait()

    async def _hear_holdings(self, frames: FrameStream) -> None:
        about: ExchangedVersion | None = None

        def hear(body: bytes) -> bool:
            nonlocal about
            frame = decode(exchange.ExchangeFrame, body, frames.limit)
            if not self.talks:  # the peer was unlinked just as this frame came
                return False
            match frame:
                case exchange.Have(manifest=manifest, bitmap=bitmap):
                    about = self.owner.version_named(ManifestHash(manifest))
                    self.haves_left -= 1
                    self.gains_left = MAX_CHUNKS
                    if about is not None:
                        self.gains_left = about.num_chunks
                        chunks = _indices(bitmap, about.num_chunks)
                        about.hear(PeerHas(peer=self.peer, chunks=chunks))
                case exchange.Gained(chunks=gained):
                    self.gains_left -= max(1, len(gained))
                    if about is not None:
                        known = tuple(chunk for chunk in gained if chunk < about.num_chunks)
                        about.hear(PeerGained(peer=self.peer, chunks=known))
            if self.haves_left < 0 or self.gains_left < 0:
                raise PeerError(Fault.OVERSIZED, "repeats what it holds without being asked")
            return True

        await frames.receive_each(hear)

    async def _carry(self) -> None:
        """Keep a data stream while there is something to request, and replace a broken one when there is again."""
        while True:
            while not self.outbox:
                self.asking = trio.Event()
                await self.asking.wait()
            with trio.CancelScope() as self.carrier:
                try:
                    with first_cause():
                        await self._exchange_chunks()
                    continue
                except (StreamBroken, StreamRefused):
                    await trio.sleep(BREAK_GRACE_S)
                except PeerError as error:
                    self.owner.report(self.peer, error.fault, error.detail)
                self.forget()
                self.owner.feed(Broke(peer=self.peer), self.owner.fetching)

    async def _exchange_chunks(self) -> None:
        """Send requests and receive chunks over one stream, until the peer ends it in good order."""
        stream = await self.owner.transport.open_stream(self.peer, exchange.CHUNKS)
        async with open_frames(stream, exchange.MAX_CHUNK_FRAME_BYTES) as frames, trio.open_nursery() as nursery:
            self.data, self.heard_bytes = frames, 0
            self.flush()
            nursery.start_soon(self._send_requests, frames)
            try:
                while (answer := await frames.receive_each(self._take_at_once)) is not None:
                    if self.data is not frames:
                        raise StreamBroken("an answer came on a data stream whose requests were dropped")
                    if (chunk := exchange.split_chunk(answer)) is not None:
                        await self._take_chunk(*chunk)
                    else:
                        await self._take_answer(decode(exchange.ChunkAnswer, answer, frames.limit))
            finally:
                self.data = None
            if self.owed:
                raise StreamBroken(f"{self.peer} ended a data stream without answering")
            nursery.cancel_scope.cancel()

    async def _send_requests(self, frames: FrameStream) -> None:
        while True:
            if self.outbox:
                messages, self.outbox = self.outbox, []
                await frames.send_together(messages)
            else:
                self.asking = trio.Event()
                await self.asking.wait()

    def _take_at_once(self, answer: bytes) -> bool:
        """Take a chunk that need not wait for the disk; return whether it was taken."""
        if (chunk := exchange.split_chunk(answer)) is None or (owed := self.owed.get(chunk[0])) is None:
            return False
        if not self.owner.can_store_now(owed.fetch, len(chunk[1])):
            return False
        owed = self._settle(chunk[0])
        self.owner.store_now(owed.fetch, owed.chunk, chunk[1], self.peer)
        return True

    async def _take_chunk(self, cid: Cid, data: memoryview) -> None:
        owed = self._settle(cid)
        await self.owner.store_chunk(owed.fetch, owed.chunk, data, self.peer)

    async def _take_answer(self, answer: exchange.ChunkAnswer) -> None:
        if isinstance(answer, exchange.Chunk):
            await self._take_chunk(Cid(answer.cid), memoryview(answer.data))
            return
        owed = self._settle(Cid(answer.cid))
        event: Event | None = None
        match answer:
            case exchange.Busy(retry_after_ms=retry) if owed.wanted:
                event = Refused(peer=self.peer, chunk=owed.chunk, retry_at=trio.current_time() + retry / 1000)
            case exchange.Missing() if owed.wanted:
                event = (Returned if owed.cancelled else Missing)(peer=self.peer, chunk=owed.chunk)
        if event is not None:
            self.owner.feed(event, owed.fetch)

    def _settle(self, cid: Cid) -> _Owed:
        """Return the answered request."""
        if (owed := self.owed.pop(cid, None)) is None:
            raise PeerError(Fault.BROKEN_PROMISE, "answered a request that was not made")
        return owed


def _indices(bitmap: bytes, count: int) -> frozenset[int]:
    """Return the chunks that a Have marks, among `count` chunks."""
    return frozenset(
        index
        for byte_index, byte in enumerate(bitmap)
        if byte
        for index in range(8 * byte_index, min(8 * byte_index + 8, count))
        if byte >> index % 8 & 1
    )
