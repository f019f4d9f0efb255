"""Send connection events to all subscribers, each through a bounded channel.

Invariants:

- A channel starts with a `PeerConnected` for every peer that is connected at that moment. Then it gets every change in
  order.
- A subscriber that falls EVENT_QUEUE events behind is closed, so that it never misses an event unnoticed.
"""

from __future__ import annotations

import trio

from protocol.core.ids import PeerId
from swarm.transport.interface import EVENT_QUEUE, ConnectionEvent, PeerConnected, PeerDisconnected


class EventHub:
    """The connected peers of one node."""

    def __init__(self) -> None:
        self._connected: dict[PeerId, PeerConnected] = {}
        self._subscribers: list[trio.MemorySendChannel[ConnectionEvent]] = []

    def connected_peers(self) -> frozenset[PeerId]:
        """Return the peers that are connected now."""
        return frozenset(self._connected)

    def subscribe(self) -> trio.MemoryReceiveChannel[ConnectionEvent]:
        """Return a new channel of events. It begins with the peers that are connected."""
        send, receive = trio.open_memory_channel[ConnectionEvent](max(EVENT_QUEUE, 2 * len(self._connected)))
        for event in self._connected.values():
            send.send_nowait(event)
        self._subscribers.append(send)
        return receive

    def connect(self, event: PeerConnected) -> None:
        """Record that a peer is connected, and notify the subscribers."""
        self._connected[event.peer] = event
        self._tell(event)

    def disconnect(self, peer: PeerId) -> None:
        """Record that a peer is gone, and notify the subscribers."""
        del self._connected[peer]
        self._tell(PeerDisconnected(peer=peer))

    def close(self) -> None:
        """End all channels."""
        for subscriber in self._subscribers:
            subscriber.close()
        self._subscribers.clear()

    def _tell(self, event: ConnectionEvent) -> None:
        for subscriber in list(self._subscribers):
            try:
                subscriber.send_nowait(event)
            except (trio.WouldBlock, trio.BrokenResourceError):
                subscriber.close()
                self._subscribers.remove(subscriber)
