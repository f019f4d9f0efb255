"""Simulate a network in memory: named nodes, and links that can be cut, slowed, corrupted or frozen.

    network = MemoryNetwork()
    async with network.node("a") as a, network.node("b", listens=False) as b:
        await b.dial(a.addresses())

The network has no clock of its own: time passes only where a fault hook sleeps, and in a dial to an address of
`swallow`. So with trio's MockClock nothing depends on the speed of the machine.

Invariants:

- It keeps all promises of `Transport`: it passes `swarm.testing.transport_conformance`.
- Streams have real windows, so back-pressure is real.
- The broadcast is the same flood that libp2p nodes use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from protocol.core.errors import PeerError
from protocol.core.ids import PeerId
from protocol.reach import Reach, ReachKind
from swarm.transport.flood import Flooding
from swarm.transport.interface import (
    DIAL_TIMEOUT_S,
    STREAM_OPEN_TIMEOUT_S,
    DialFailed,
    PeerConnected,
    Refusal,
    Stream,
    StreamBroken,
    StreamRefused,
    Traffic,
    TransportError,
)
from swarm.transport.reach_evidence import ReachEvidence

WINDOW_BYTES = 256 * 1024
"""Bytes in flight in one direction of a stream, as on a new yamux stream."""


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Bytes on their way from one node to another, as a fault hook gets them."""

    source: PeerId
    target: PeerId
    protocol: str
    data: bytes


FaultHook = Callable[[Transfer], Awaitable[bytes]]
"""A function that returns the bytes that arrive instead. It may sleep, also for ever (a frozen peer). If it raises
StreamBroken, that stream breaks."""


class MemoryNetwork:
    """The nodes of one network and the links between them."""

    def __init__(self) -> None:
        self._nodes: dict[PeerId, MemoryTransport] = {}
        self._names: dict[str, PeerId] = {}
        self._links: dict[frozenset[PeerId], _Link] = {}
        self._blocked: set[frozenset[PeerId]] = set()
        self._swallowed: set[str] = set()
        self._faults: dict[tuple[PeerId, PeerId], FaultHook] = {}

    @asynccontextmanager
    async def node(
        self, name: str, *, listens: bool = True, peer_id: PeerId | None = None
    ) -> AsyncIterator[MemoryTransport]:
        """Add a node named `name` while the scope lasts. Its peer id is made from the name unless given."""
        identity = peer_id or PeerId(f"12D3KooWMemory{name}")
        if identity in self._nodes or name in self._names:
            raise ValueError(f"there is already a node {name!r}")
        try:
            async with trio.open_nursery() as nursery:
                transport = MemoryTransport(self, name, identity, listens, nursery)
                self._nodes[identity] = transport
                self._names[name] = identity
                try:
                    yield transport
                finally:
                    del self._nodes[identity], self._names[name]
                    for link in [link for ends, link in self._links.items() if identity in ends]:
                        link.cut("the peer closed the connection")
                    transport.hub.close()
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise

    def cut(self, one: PeerId, other: PeerId) -> None:
        """Break the connection between two nodes, if there is one. They may dial again."""
        link = self._links.get(frozenset((one, other)))
        if link is not None:
            link.cut("the connection was lost: the link was cut")

    def block(self, one: PeerId, other: PeerId) -> None:
        """Cut the link and refuse dials until `unblock`: a partition."""
        self._blocked.add(frozenset((one, other)))
        self.cut(one, other)

    def unblock(self, one: PeerId, other: PeerId) -> None:
        """Let the two dial each other again."""
        self._blocked.discard(frozenset((one, other)))

    def swallow(self, address: str) -> None:
        """Drop everything that is sent to this address from now on: a dial gets no answer, as behind most routers."""
        self._swallowed.add(address)

    def set_fault(self, source: PeerId, target: PeerId, hook: FaultHook | None) -> None:
        """Pass everything that `source` sends to `target` through `hook`. None removes the hook."""
        if hook is None:
            self._faults.pop((source, target), None)
        else:
            self._faults[source, target] = hook

    # For the transports.

    def has_fault(self, source: PeerId, target: PeerId) -> bool:
        """Return whether a hook, which may take time, handles what `source` sends to `target`."""
        return (source, target) in self._faults

    async def pass_through(self, transfer: Transfer) -> bytes:
        """Return the bytes that arrive of `transfer`."""
        hook = self._faults.get((transfer.source, transfer.target))
        return transfer.data if hook is None else await hook(transfer)

    def connect(self, dialler: MemoryTransport, addresses: Sequence[str]) -> PeerId:
        """Connect `dialler` to the peer that `addresses` name. Raises DialFailed."""
        wanted, names = _parse(addresses)
        ends = frozenset((dialler.peer_id, wanted))
        if ends in self._links:
            return wanted
        failures: list[str] = []
        for name in names:
            target = self._nodes.get(self._names.get(name, PeerId("")))
            if (
                target is None
                or not target.addresses()
                or frozenset((dialler.peer_id, target.peer_id)) in self._blocked
            ):
                failures.append(f"/memory/{name}: no node answers")
            elif target is dialler:
                failures.append(f"/memory/{name} is this node itself")
            elif target.peer_id != wanted:
                failures.append(f"/memory/{name}: {target.peer_id} answered instead of {wanted}")
            else:
                self._links[ends] = _Link(self._links, dialler, target)
                return wanted
        raise DialFailed("; ".join(failures))

    def has_no_answer(self, addresses: Sequence[str]) -> bool:
        """Return whether a failed dial to `addresses` takes the whole timeout."""
        return not self._swallowed.isdisjoint(addresses)

    def link(self, one: PeerId, other: PeerId) -> _Link | None:
        """Return the connection between two nodes, or None."""
        return self._links.get(frozenset((one, other)))


class MemoryTransport(Flooding):
    """A node's transport in memory; see `swarm.transport.interface.Transport`. `MemoryNetwork.node` makes it."""

    def __init__(
        self, network: MemoryNetwork, name: str, peer_id: PeerId, listens: bool, nursery: trio.Nursery
    ) -> None:
        super().__init__(nursery)
        self.peer_id = peer_id
        self.network = network
        self.counts: dict[PeerId, Traffic] = {}
        self.dialled: set[PeerId] = set()
        self._trusted: set[PeerId] = set()
        self._refused: list[Refusal] = []
        self._addresses = [f"/memory/{name}/p2p/{peer_id}"] if listens else []
        self._nursery = nursery

    def addresses(self) -> list[str]:
        return list(self._addresses)

    async def dial(self, addresses: Sequence[str], *, named_by_others: bool = False) -> PeerId:
        await trio.lowlevel.checkpoint()
        try:
            peer = self.network.connect(self, addresses)
        except DialFailed:
            if self.network.has_no_answer(addresses):
                await trio.sleep(DIAL_TIMEOUT_S)
            raise
        self.dialled.add(peer)
        return peer

    async def disconnect(self, peer: PeerId) -> None:
        await trio.lowlevel.checkpoint()
        link = self.network.link(self.peer_id, peer)
        if link is not None:
            link.cut("the peer closed the connection")

    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        await trio.lowlevel.checkpoint()
        link = self.network.link(self.peer_id, peer)
        if link is None:
            raise StreamRefused(f"{peer} is not connected")
        try:
            with trio.fail_after(STREAM_OPEN_TIMEOUT_S):
                await self.network.pass_through(
                    Transfer(source=self.peer_id, target=peer, protocol=protocol, data=protocol.encode())
                )
        except (trio.TooSlowError, StreamBroken) as error:
            raise StreamRefused(f"{peer} opened no stream for {protocol}: {error or 'no answer'}") from error
        return link.open(self, protocol)

    def limit_rates(self, *, upload_bits_per_s: float | None, download_bits_per_s: float | None) -> None:
        """Do nothing: bytes in memory take no time."""

    def traffic(self) -> dict[PeerId, Traffic]:
        return dict(self.counts)

    def total_traffic(self) -> Traffic:
        counts = self.counts.values()
        return Traffic(sent=sum(one.sent for one in counts), received=sum(one.received for one in counts))

    def trust(self, peer: PeerId) -> None:
        self._trusted.add(peer)

    def distrust(self, peer: PeerId) -> None:
        self._trusted.discard(peer)

    def is_trusted(self, peer: PeerId) -> bool:
        return peer in self._trusted or peer in self.dialled

    def expect(self, origins: Mapping[PeerId, str], awaited: Collection[PeerId] = ()) -> None:
        """Do nothing, because this transport has places for all peers."""

    def origins(self) -> dict[PeerId, str]:
        return {peer: f"memory {peer}" for peer in self.connected_peers() if peer in self._trusted}

    def reached(self) -> Reach:
        return Reach(kind=ReachKind.DIRECTLY if self.addresses() else ReachKind.NOT, addresses=self.addresses())

    def take_carried(self) -> Mapping[tuple[PeerId, PeerId], int]:
        return {}

    def reach_evidence(self) -> ReachEvidence:
        return ReachEvidence()

    def may_dial(self, address: str) -> bool:
        return True

    def note_refusal(self, budget: str, who: str) -> None:
        self._refused.append(Refusal(budget=budget, times=1, who=who, who_times=1))

    def refusals(self) -> list[Refusal]:
        told, self._refused = self._refused, []
        return told

    # For links and streams.

    def accept(self, stream: MemoryStream) -> None:
        """Run the handler for a stream that a peer opened."""
        self._nursery.start_soon(self._serve, stream)

    def count(self, peer: PeerId, *, sent: int = 0, received: int = 0) -> None:
        """Add to the traffic with `peer`."""
        before = self.counts.get(peer, Traffic())
        self.counts[peer] = Traffic(sent=before.sent + sent, received=before.received + received)

    async def _serve(self, stream: MemoryStream) -> None:
        try:
            await self.handlers[stream.protocol](stream)
        except (TransportError, PeerError):
            stream.break_both("the peer aborted the stream")
        except BaseException:  # also on cancellation, as in libp2p
            stream.break_both("the peer aborted the stream")
            raise
        else:
            await stream.aclose()


class _Link:
    """One connection. Both ends know it from its creation until it is cut."""

    def __init__(
        self, links: dict[frozenset[PeerId], _Link], dialler: MemoryTransport, target: MemoryTransport
    ) -> None:
        self.streams: set[MemoryStream] = set()
        self._links = links
        self._ends = (dialler, target)
        for end, other, dialled in ((dialler, target, True), (target, dialler, False)):
            end.count(other.peer_id)
            address = f"/memory/{other.peer_id}"
            end.note_connected(PeerConnected(peer=other.peer_id, dialled=dialled, remote_address=address))

    def open(self, opener: MemoryTransport, protocol: str) -> MemoryStream:
        """Return the opener's end of a new stream. Raises StreamRefused."""
        other = self._ends[0] if self._ends[1] is opener else self._ends[1]
        if self._links.get(frozenset((opener.peer_id, other.peer_id))) is not self:
            raise StreamRefused(f"{other.peer_id} is not connected")
        if protocol not in other.handlers:
            raise StreamRefused(f"{other.peer_id} opened no stream for {protocol}: it does not support the protocol")
        out, back = _Pipe(), _Pipe()
        near = MemoryStream(self, opener, other.peer_id, protocol, outgoing=out, incoming=back)
        far = MemoryStream(self, other, opener.peer_id, protocol, outgoing=back, incoming=out)
        self.streams |= {near, far}
        other.accept(far)
        return near

    def cut(self, reason: str) -> None:
        """Break all streams and notify both ends."""
        one, other = self._ends
        if self._links.pop(frozenset((one.peer_id, other.peer_id)), None) is None:
            return
        for stream in list(self.streams):
            stream.break_both(reason)
        for end, gone in ((one, other), (other, one)):
            end.note_disconnected(gone.peer_id)


class _Pipe:
    """One direction of a stream."""

    def __init__(self) -> None:
        self.ended = False
        self.num_arrived = 0
        self._buffer = bytearray()
        self._broken: str | None = None
        self._abandoned = False
        self._changed = trio.Event()

    async def send(self, data: bytes, note_progress: Callable[[int], None] | None = None) -> None:
        """Add `data`, waiting for room. Raises StreamBroken."""
        view = memoryview(data)
        while view:
            self._require_sendable()
            room = len(view) if self._abandoned else WINDOW_BYTES - len(self._buffer)
            if not self._abandoned:
                self._buffer += view[:room]
            taken = len(view[:room])
            self.num_arrived += taken
            view = view[room:]
            self._tell()
            if view:
                if note_progress is not None and taken:
                    note_progress(taken)
                await self._changed.wait()
        self._require_whole()

    def post(self, data: bytes) -> bool:
        """Add `data` if there is room; otherwise return False. Raises StreamBroken."""
        self._require_sendable()
        if self._abandoned:
            return True
        if len(data) > WINDOW_BYTES - len(self._buffer):
            return False
        self._buffer += data
        self.num_arrived += len(data)
        self._tell()
        return True

    async def receive(self, max_bytes: int) -> bytes:
        """Wait for data, then remove and return up to `max_bytes`; b"" at the end. Raises StreamBroken."""
        while not self._buffer and not self.ended and self._broken is None and not self._abandoned:
            await self._changed.wait()
        return self.take(max_bytes)

    def take(self, max_bytes: int) -> bytes:
        """Remove and return up to `max_bytes` that are here. Raises StreamBroken."""
        if self._abandoned:
            raise StreamBroken("the stream was closed here")
        if not self.ended:
            self._require_whole()
        data = bytes(self._buffer[:max_bytes])
        del self._buffer[:max_bytes]
        self._tell()
        return data

    def end(self) -> None:
        """Mark the end: nothing more follows."""
        self.ended = True
        self._tell()

    def abandon(self) -> None:
        """Discard all data from now on, because it is not read any more."""
        self._abandoned = True
        self._buffer.clear()
        self._tell()

    def break_(self, reason: str, *, keep_complete: bool) -> None:
        """Break the pipe for both ends. With `keep_complete`, data that arrived completely stays readable."""
        self._broken = self._broken or reason
        if not (keep_complete and self.ended):
            self.ended = False
            self._buffer.clear()
        self._tell()

    def _require_sendable(self) -> None:
        self._require_whole()
        if self.ended:
            raise StreamBroken("this side has already sent its end")

    def _require_whole(self) -> None:
        if self._broken is not None:
            raise StreamBroken(self._broken)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class MemoryStream:
    """One end of a stream; see `swarm.transport.interface.Stream`."""

    def __init__(
        self,
        link: _Link,
        owner: MemoryTransport,
        remote: PeerId,
        protocol: str,
        *,
        outgoing: _Pipe,
        incoming: _Pipe,
    ) -> None:
        self.remote = remote
        self.protocol = protocol
        self._link = link
        self._owner = owner
        self._outgoing = outgoing
        self._incoming = incoming
        self._closed = False
        self._sends = False
        self.on_arrival: Callable[[], bool] | None = None
        """Never called: this transport always wakes the task that waits."""

    async def send_all(self, *parts: bytes | memoryview, note_progress: Callable[[int], None] | None = None) -> None:
        await trio.lowlevel.checkpoint()
        data = b"".join(parts)
        transfer = Transfer(source=self._owner.peer_id, target=self.remote, protocol=self.protocol, data=data)
        self._sends = True
        try:
            arriving = await self._owner.network.pass_through(transfer)
            await self._outgoing.send(arriving, note_progress)
        except StreamBroken as error:
            self.break_both(str(error))
            raise
        finally:
            self._sends = False
        self._owner.count(self.remote, sent=len(data))

    @property
    def num_arrived(self) -> int:
        return self._incoming.num_arrived

    def take_arrived(self, max_bytes: int) -> bytes:
        data = self._incoming.take(max_bytes)
        self._owner.count(self.remote, received=len(data))
        return data

    def start(
        self, parts: Sequence[bytes | memoryview], note_progress: Callable[[int], None], done: Callable[[], None]
    ) -> bool:
        return False

    def post(self, data: bytes) -> bool:
        if self._sends or self._owner.network.has_fault(self._owner.peer_id, self.remote):
            return False
        if not self._outgoing.post(data):
            return False
        self._owner.count(self.remote, sent=len(data))
        return True

    async def receive_some(self, max_bytes: int) -> bytes:
        if max_bytes < 1:
            raise ValueError("max_bytes must be at least 1")
        await trio.lowlevel.checkpoint()
        data = await self._incoming.receive(max_bytes)
        self._owner.count(self.remote, received=len(data))
        return data

    def expect(self, size: int) -> None:
        """Do nothing, because wake-ups cost nothing here."""

    def retain(self, size: int) -> None:
        """Do nothing, because this transport does not count held bytes."""

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        self._outgoing.end()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._outgoing.end()
            self._incoming.abandon()
            self._link.streams.discard(self)
        await trio.lowlevel.checkpoint()

    async def abort(self) -> None:
        self.break_both("the peer aborted the stream", keep_complete=False)
        await trio.lowlevel.checkpoint()

    def break_both(self, reason: str, *, keep_complete: bool = True) -> None:
        """Break both directions, at both ends."""
        self._closed = True
        self._outgoing.break_(reason, keep_complete=keep_complete)
        self._incoming.break_(reason, keep_complete=keep_complete)
        self._link.streams.discard(self)


def _parse(addresses: Sequence[str]) -> tuple[PeerId, list[str]]:
    peers: set[str] = set()
    names: list[str] = []
    for address in addresses:
        match address.split("/"):
            case ["", "memory", name, "p2p", peer] if peer:
                peers.add(peer)
                names.append(name)
            case _:
                raise DialFailed(f"{address!r} is not /memory/NAME/p2p/PEER")
    if len(peers) != 1:
        raise DialFailed(f"the addresses name {len(peers)} peers: {', '.join(addresses) or 'none'}")
    return PeerId(peers.pop()), names
