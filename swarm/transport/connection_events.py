"""Who is connected, told to everybody who asked: connection events fanned out to bounded channels.

What always holds: a channel starts with a `PeerConnected` for every peer connected at that moment, and from then on
sees every change in order; a subscriber that falls EVENT_QUEUE behind is closed rather than told half the story.
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
        """The peers connected now."""
        return frozenset(self._connected)

    def subscribe(self) -> trio.MemoryReceiveChannel[ConnectionEvent]:
        """Return a new channel of events, beginning with who is connected."""
        send, receive = trio.open_memory_channel[ConnectionEvent](max(EVENT_QUEUE, 2 * len(self._connected)))
        for event in self._connected.values():
            send.send_nowait(event)
        self._subscribers.append(send)
        return receive

    def connect(self, event: PeerConnected) -> None:
        """Record and tell that a peer is connected."""
        self._connected[event.peer] = event
        self._tell(event)

    def disconnect(self, peer: PeerId) -> None:
        """Record and tell that a peer is gone."""
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
