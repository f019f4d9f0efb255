"""Broadcast by flooding: each node forwards new, valid broadcasts to all its neighbours.

    /volery/gossip/1, one stream per neighbour and direction
    frame = u16 size (big endian) | 8 random id bytes | u8 n | topic (n bytes, UTF-8) | data

Why not gossipsub: there is one announcement per publication, and neighbours are few (all of up to 32 peers, about 10 in
larger swarms). So a flood costs about 10 to 32 KiB per node and message. It reaches all nodes in one pass without
waiting for a mesh to form, and also works for late joiners and for three nodes in a row. py-libp2p's gossipsub lost 88
of 100 messages in a burst. A flood needs only streams and therefore works over any transport.

Invariants:

- Subscribers validate a broadcast before the node delivers or forwards it.
- A node forwards only topics to which it subscribes, because it cannot validate others.
- A frame travels through a node once.
- A node accepts broadcasts of a neighbour no faster than RATE.
- A neighbour's queue drops its oldest broadcast when it is full: broadcasts carry state, so the newest matters.
"""

from __future__ import annotations

import hashlib
import secrets
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.ids import PeerId
from protocol.core.limits import MAX_ANNOUNCEMENT_BYTES
from swarm.transport.connection_events import EventHub
from swarm.transport.event_rate import Bucket, Rate
from swarm.transport.interface import (
    BROADCAST_QUEUE,
    Broadcast,
    BroadcastValidator,
    ConnectionEvent,
    PeerConnected,
    Stream,
    StreamBroken,
    StreamHandler,
    TransportError,
)

GOSSIP_PROTOCOL = "/volery/gossip/1"
ID_BYTES = 8
MAX_TOPIC_BYTES = 255
MAX_FRAME_BYTES = ID_BYTES + 1 + MAX_TOPIC_BYTES + MAX_ANNOUNCEMENT_BYTES

NEIGHBOUR_QUEUE = 256
"""Frames that wait for one neighbour: 256 KiB at most, enough for a status of every peer at the same time."""

SEEN_FRAMES = 16_384
"""Number of remembered frames: minutes of traffic. A broadcast that returns later than that is forwarded again."""

RATE = Rate(per_s=50.0, burst=500.0)
"""Broadcasts accepted from one neighbour. An honest one forwards a few per second; those above the rate are dropped."""

WRITE_DEADLINE_S = 10.0
REOPEN_S = 1.0
"""If a neighbour reads nothing for ten seconds, a new stream is opened a second later, for the frames queued then."""


class Seen:
    """The last SEEN_FRAMES keys."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def add(self, key: bytes) -> bool:
        """Remember the key. Return False if it was known."""
        if key in self._keys:
            return False
        self._keys[key] = None
        if len(self._keys) > SEEN_FRAMES:
            self._keys.popitem(last=False)
        return True


def encode_frame(identifier: bytes, topic: str, data: bytes) -> bytes:
    """Return one frame. Raise LocalProtocolError if topic or data are too large."""
    name = topic.encode()
    if len(data) > MAX_ANNOUNCEMENT_BYTES:
        raise LocalProtocolError(
            f"a broadcast has {len(data)} bytes, but gossip carries at most {MAX_ANNOUNCEMENT_BYTES}"
        )
    if len(name) > MAX_TOPIC_BYTES:
        raise LocalProtocolError(f"a topic has {len(name)} bytes, at most {MAX_TOPIC_BYTES} are allowed")
    body = identifier + bytes([len(name)]) + name + data
    return len(body).to_bytes(2, "big") + body


def decode_body(body: bytes) -> tuple[str, bytes]:
    """Return (topic, data) of a frame whose size field was removed. Raises PeerError."""
    topic_end = ID_BYTES + 1 + (body[ID_BYTES] if len(body) > ID_BYTES else 0)
    if len(body) < topic_end or len(body) <= ID_BYTES:
        raise PeerError(Fault.MALFORMED, f"a broadcast of {len(body)} bytes ends inside its topic")
    if len(body) - topic_end > MAX_ANNOUNCEMENT_BYTES:
        raise PeerError(Fault.OVERSIZED, f"a broadcast carries {len(body) - topic_end} bytes")
    try:
        topic = body[ID_BYTES + 1 : topic_end].decode()
    except UnicodeDecodeError as error:
        raise PeerError(Fault.MALFORMED, "a broadcast's topic is not text") from error
    return topic, body[topic_end:]


def _seen_key(body: bytes) -> bytes:
    """Return the key of a frame. It covers the whole body: with the id alone, a neighbour could block a broadcast by
    sending garbage with its id."""
    return hashlib.sha256(body).digest()[:16]


@dataclass(kw_only=True)
class _Subscription:
    topic: str
    validate: BroadcastValidator
    send: trio.MemorySendChannel[Broadcast]
    receive: trio.MemoryReceiveChannel[Broadcast]


@dataclass(kw_only=True)
class _Neighbour:
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    queue: deque[bytes] = field(default_factory=lambda: deque(maxlen=NEIGHBOUR_QUEUE))
    wake: trio.Event = field(default_factory=trio.Event)

    def offer(self, frame: bytes) -> None:
        self.queue.append(frame)
        self.wake.set()


class Flood:
    """One node's part in the flood.

    Args:
        transport: transport that carries the streams.
        nursery: nursery of the sending tasks, one per neighbour.
        random_id: function that makes ids, injected so that a simulation can be repeated.
    """

    def __init__(
        self,
        transport: Flooding,
        nursery: trio.Nursery,
        random_id: Callable[[], bytes] = lambda: secrets.token_bytes(ID_BYTES),
    ) -> None:
        self._transport = transport
        self._nursery = nursery
        self._random_id = random_id
        self._neighbours: dict[PeerId, _Neighbour] = {}
        self._buckets: dict[PeerId, Bucket] = {}
        self._seen = Seen()
        self._subscriptions: list[_Subscription] = []
        transport.handle(GOSSIP_PROTOCOL, self._receive)

    def add_peer(self, peer: PeerId) -> None:
        """Start forwarding to `peer`. Call this before the peer's connection is announced to subscribers."""
        neighbour = self._neighbours[peer] = _Neighbour()
        self._nursery.start_soon(self._pass_on, peer, neighbour)

    def remove_peer(self, peer: PeerId) -> None:
        """Stop forwarding to `peer`."""
        self._neighbours.pop(peer).scope.cancel()
        self._buckets.pop(peer, None)

    def publish(self, topic: str, data: bytes) -> None:
        """Queue a broadcast for every neighbour. Raise LocalProtocolError if it is too large."""
        frame = encode_frame(self._random_id(), topic, data)
        self._seen.add(_seen_key(frame[2:]))
        for neighbour in self._neighbours.values():
            neighbour.offer(frame)

    def subscribe(self, topic: str, validate: BroadcastValidator) -> trio.MemoryReceiveChannel[Broadcast]:
        """Return a channel of the broadcasts on `topic` that pass `validate`; see `Transport.subscribe`."""
        send, receive = trio.open_memory_channel[Broadcast](BROADCAST_QUEUE)
        self._subscriptions.append(_Subscription(topic=topic, validate=validate, send=send, receive=receive))
        return receive

    async def _pass_on(self, peer: PeerId, neighbour: _Neighbour) -> None:
        """Send the frames queued for `peer`. The stream is opened for the first frame, and again after it breaks."""
        with neighbour.scope:
            while True:
                while not neighbour.queue:
                    neighbour.wake = trio.Event()
                    await neighbour.wake.wait()
                try:
                    await self._send_queued(peer, neighbour)
                except TransportError:
                    await trio.sleep(REOPEN_S)

    async def _send_queued(self, peer: PeerId, neighbour: _Neighbour) -> None:
        stream = await self._transport.open_stream(peer, GOSSIP_PROTOCOL)
        try:
            while True:
                while neighbour.queue:
                    with trio.move_on_after(WRITE_DEADLINE_S) as deadline:
                        await stream.send_all(neighbour.queue.popleft())
                    if deadline.cancelled_caught:
                        raise StreamBroken(f"{peer} read no broadcast for {WRITE_DEADLINE_S:.0f} s")
                neighbour.wake = trio.Event()
                await neighbour.wake.wait()
        finally:
            with trio.CancelScope(shield=True):
                await stream.abort()

    async def _receive(self, stream: Stream) -> None:
        """Read frames from one neighbour until it ends its stream. Raise PeerError on the first malformed one."""
        buffer = bytearray()
        while data := await stream.receive_some(MAX_FRAME_BYTES):
            buffer += data
            while len(buffer) >= 2:
                size = int.from_bytes(buffer[:2], "big")
                if size > MAX_FRAME_BYTES:
                    raise PeerError(Fault.OVERSIZED, f"a broadcast frame announces {size} bytes")
                if len(buffer) < 2 + size:
                    break
                self._on_body(stream.remote, bytes(buffer[2 : 2 + size]))
                del buffer[: 2 + size]

    def _on_body(self, source: PeerId, body: bytes) -> None:
        topic, data = decode_body(body)
        bucket = self._buckets.setdefault(source, Bucket(rate=RATE))
        if not bucket.admit(trio.current_time()) or not self._seen.add(_seen_key(body)):
            return
        subscriptions = [one for one in self._subscriptions if one.topic == topic]
        broadcast = Broadcast(source=source, topic=topic, data=data)
        if not subscriptions or not all(one.validate(broadcast) for one in subscriptions):
            return
        for subscription in subscriptions:
            self._deliver(subscription, broadcast)
        frame = len(body).to_bytes(2, "big") + body
        for peer, neighbour in self._neighbours.items():
            if peer != source:
                neighbour.offer(frame)

    def _deliver(self, subscription: _Subscription, broadcast: Broadcast) -> None:
        """Deliver a broadcast; drop the oldest if the channel is full. Forget a subscriber that closed its channel."""
        try:
            try:
                subscription.send.send_nowait(broadcast)
            except trio.WouldBlock:
                subscription.receive.receive_nowait()
                subscription.send.send_nowait(broadcast)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._subscriptions.remove(subscription)


class Flooding(ABC):
    """Base of transports: connection events, handlers and the flood, which are the same for each."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.hub = EventHub()
        self.handlers: dict[str, StreamHandler] = {}
        self.flood = Flood(self, nursery)

    def connected_peers(self) -> frozenset[PeerId]:
        return self.hub.connected_peers()

    def events(self) -> trio.MemoryReceiveChannel[ConnectionEvent]:
        return self.hub.subscribe()

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        self.handlers[protocol] = handler

    async def publish(self, topic: str, data: bytes) -> None:
        self.flood.publish(topic, data)
        await trio.lowlevel.checkpoint()

    async def subscribe(self, topic: str, validate: BroadcastValidator) -> trio.MemoryReceiveChannel[Broadcast]:
        await trio.lowlevel.checkpoint()
        return self.flood.subscribe(topic, validate)

    def note_connected(self, event: PeerConnected) -> None:
        """Start forwarding broadcasts to a peer, then announce its connection."""
        self.flood.add_peer(event.peer)
        self.hub.connect(event)

    def note_disconnected(self, peer: PeerId) -> None:
        """Stop forwarding to `peer` and announce that its last connection is gone."""
        self.flood.remove_peer(peer)
        self.hub.disconnect(peer)

    @abstractmethod
    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        """Open a stream; see `swarm.transport.interface.Transport`."""
