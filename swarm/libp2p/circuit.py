"""Carry a connection to a peer over a stream that a relay has joined to one of the peer's streams.

Invariants:

- To the layers above it behaves like a TCP connection.
- The relay sees only ciphertext.
- Closing it closes the stream, and not the connection to the relay.
"""

from __future__ import annotations

from libp2p.abc import IRawConnection
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import ConnectionClosedError
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from swarm.libp2p.sockets.tcp import RECEIVE_BYTES
from swarm.transport.interface import Stream, StreamBroken


class CircuitConnection(IRawConnection):
    """`read(n)` returns exactly `n` bytes. One task may write while another reads.

    The stream may be set later, before any other method is called.
    """

    def __init__(self, stream: Stream | None, *, is_initiator: bool) -> None:
        self.is_initiator = is_initiator
        self.receive_bytes = RECEIVE_BYTES
        self.stream = stream
        self._buffer = bytearray()

    def hurry(self) -> None:
        """Do nothing: no reader here waits for more than what has arrived."""

    async def read(self, n: int | None = None) -> bytes:
        """Return exactly `n` bytes, or all that have arrived, at least one. Cancelling loses nothing."""
        while len(self._buffer) < (n or 1):
            self._buffer += await self._receive()
        taken = bytes(self._buffer[:n])
        del self._buffer[:n]
        return taken

    async def write(self, data: bytes | memoryview) -> None:
        """Send all of `data`. Raises ConnectionClosedError. After a cancelled write the connection cannot be used."""
        try:
            await self._joined.send_all(bytes(data))
        except StreamBroken as error:
            raise ConnectionClosedError(f"the circuit broke: {error}", transport="circuit") from error

    async def close(self) -> None:
        """Close the stream; what was written still arrives."""
        await self._joined.aclose()

    def get_remote_address(self) -> tuple[str, int] | None:
        return None

    def get_transport_addresses(self) -> list[Multiaddr]:
        return []

    def get_connection_type(self) -> ConnectionType:
        return ConnectionType.RELAYED

    @property
    def _joined(self) -> Stream:
        assert self.stream is not None, "the circuit has no stream yet: the first write asks the relay for it"
        return self.stream

    async def _receive(self) -> bytes:
        try:
            data = await self._joined.receive_some(self.receive_bytes)
        except StreamBroken as error:
            raise ConnectionClosedError(f"the circuit broke: {error}", transport="circuit") from error
        if not data:
            raise ConnectionClosedError("the peer hung up", transport="circuit")
        return data
