"""Adapt a yamux stream to the `Transport` interface, once its protocol is agreed."""

from __future__ import annotations

from collections.abc import Callable

from swarm.libp2p.connection import Connection
from swarm.libp2p.yamux.stream import Meter, YamuxStream
from swarm.transport.interface import StreamBroken


class StreamWire:
    """A stream while its protocol is negotiated: exact reads, nothing buffered."""

    def __init__(self, stream: YamuxStream) -> None:
        self._stream = stream

    async def read(self, n: int) -> bytes:
        data = bytearray()
        while len(data) < n:
            piece = await self._stream.receive_some(n - len(data))
            if not piece:
                raise StreamBroken("the stream ended during negotiation")
            data += piece
        return bytes(data)

    async def write(self, data: bytes) -> None:
        await self._stream.send_all(data)


class Libp2pStream:
    """A stream after negotiation; see `swarm.transport.interface.Stream`. `meter` counts its payload from here on."""

    def __init__(self, stream: YamuxStream, *, connection: Connection, protocol: str, meter: Meter) -> None:
        stream.count_on(meter)
        self._stream = stream
        self._negotiated = stream.num_received
        self.connection = connection
        self.remote = connection.peer
        self.protocol = protocol
        self.send_all = stream.send_all
        self.post = stream.post
        self.start = stream.start
        self.receive_some = stream.receive_some
        self.take_arrived = stream.take_arrived
        self.expect = stream.expect
        self.retain = stream.retain
        self.send_eof = stream.send_eof
        self.aclose = stream.aclose
        self.abort = stream.abort

    @property
    def num_arrived(self) -> int:
        return self._stream.num_arrived - self._negotiated

    @property
    def on_arrival(self) -> Callable[[], bool] | None:
        return self._stream.on_arrival

    @on_arrival.setter
    def on_arrival(self, called: Callable[[], bool] | None) -> None:
        self._stream.on_arrival = called
