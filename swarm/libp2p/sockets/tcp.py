"""Provide TCP connections for libp2p's security transports that wake their reader once per message, not per segment.

At 50 Mbit/s a segment of 1.4 KB comes every 0.2 ms, and waking a Python task for each costs most of a core. So a reader
that knows how much is on its way says so (`expect`). The kernel then reports the socket as readable only from so many
bytes on (SO_RCVLOWAT).

Invariants:

- A reader waits only for bytes that the peer has begun to send, so they do come. `hurry` ends the wait for a peer that
  sends very slowly.
- If nothing is expected, nothing is delayed: a small message on an idle connection is read when it arrives.
- Few unsent bytes wait in the kernel (TCP_NOTSENT_LOWAT). So what to send next is decided late, and a small message
  never waits behind a queue that we cannot see.
- A peer that takes nothing for `WRITE_DEADLINE_S` is gone.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

import trio
from libp2p.abc import IRawConnection
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import ConnectionClosedError
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from swarm.libp2p.sockets.addresses import from_socket
from swarm.libp2p.sockets.link_rate import Pace

RECEIVE_BYTES = 256 * 1024
"""Bytes asked of the socket in one read: several frames of the muxer, and few system calls."""

STRANGER_RECEIVE_BYTES = 32 * 1024
"""The same for a stranger's connection: for each of them it is in memory twice, once encrypted."""

NOT_SENT_BYTES = 64 * 1024
"""Unsent bytes that the kernel holds before it takes more: 10 ms at 50 Mbit/s. With 16 KiB, as trio sets, we would wake
four times as often, and the kernel would have nothing to send until we do."""

MIN_NOT_SENT_BYTES = 8 * 1024
"""The same where the link is slow."""

NOT_SENT_S = 0.04
"""Seconds that unsent bytes should wait in the kernel at most. A request waits behind them, and is more urgent. With
64 KiB a request took 0.8 s to leave over a link of 10 Mbit/s that carried three chunks."""

MIN_EXPECTED_BYTES = 2 * 1024
"""Bytes. Fewer are not waited for: they come in one or two segments."""

MAX_EXPECTED_BYTES = 64 * 1024
"""Bytes waited for at once, however many are expected: half of the receive buffer that Linux starts with. A higher mark
would also fix the window into which the peer may send."""

WRITE_DEADLINE_S = 30.0
"""Seconds until the next byte must be taken. A connection that takes none for so long counts as dead."""

RETRY_MS, TCP_RTO_MAX_MS = 1000, 44
"""Milliseconds that TCP waits at most before it resends lost bytes, and the option for it (linux/tcp.h, since 6.15;
Python has no name for it). The kernel accepts no less than 1000. By default the wait doubles each time, so that a cable
pulled for five seconds costs up to ten."""


class TcpConnection(IRawConnection):
    """Read and write one socket; `read(n)` returns exactly `n` bytes. One task may write while another reads."""

    def __init__(self, stream: trio.SocketStream, *, is_initiator: bool) -> None:
        self.is_initiator = is_initiator
        self.receive_bytes = RECEIVE_BYTES
        self.remote = from_socket(stream.socket.getpeername())
        self.local = from_socket(stream.socket.getsockname())
        self._stream = stream
        self._fd = stream.socket.fileno()
        self._buffer = bytearray()
        self._expected = 1
        self._low_water = 1
        self.pace = Pace()
        """How fast the link takes bytes."""
        self._not_sent = 0
        self._rest: memoryview | None = None
        self._began_at = self._moved_at = 0.0
        self._written = 0
        self._limit_not_sent(NOT_SENT_BYTES)
        if sys.platform == "linux":
            with suppress(OSError):
                stream.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, RETRY_MS)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

    @property
    def is_paced(self) -> bool:
        """Whether a cap holds now. Then only `read` and `write` keep to it, since they may wait."""
        return False

    def expect(self, size: int) -> None:
        """Say that `size` more bytes are on their way. The next `read(None)` may wait for them."""
        self._expected = size

    def hurry(self) -> None:
        """Wake a reader that waits for more than one byte, if at least one has arrived."""
        self._set_low_water(1)

    async def read(self, n: int | None = None) -> bytes:
        """Return exactly `n` bytes, or all that have arrived, at least one. Cancelling loses nothing."""
        if n is None and not self._buffer:
            expected, self._expected = self._expected, 1
            return await self._receive(expected)
        while len(self._buffer) < (1 if n is None else n):
            self._buffer += await self._receive((n or 1) - len(self._buffer))
        taken = bytes(self._buffer[:n])
        del self._buffer[:n]
        return taken

    @property
    def arrived(self) -> bytes:
        """Bytes that were received and not read yet, as far as a task has waited for them."""
        return bytes(self._buffer)

    async def wait_first(self) -> None:
        """Wait until the peer has sent something. No byte of it is lost."""
        if not self._buffer:
            self._buffer += await self._receive(1)

    async def write(self, data: bytes | memoryview) -> None:
        """Send all of `data`. Raises ConnectionClosedError. After a cancelled write the connection cannot be used."""
        view, sent = memoryview(data), 0
        began = trio.current_time()
        while sent < len(view):
            # Not through trio, as in `_receive`: most writes are taken at once, or after one wait.
            if taken := self._send(view[sent:]):
                sent += taken
            else:
                await self._wait_to_write()
        self._note_written(sent, began, trio.current_time())

    # Without waiting, for callers that learn when the socket is ready.

    def fileno(self) -> int:
        """The socket's number; -1 once it is closed."""
        return self._fd

    def read_into(self, memory: memoryview) -> int:
        """Read once into `memory` what has arrived; return how many bytes. Raises ConnectionClosedError."""
        if self._buffer:  # what came with the handshake
            size = min(len(self._buffer), len(memory))
            memory[:size] = self._buffer[:size]
            del self._buffer[:size]
            return size
        try:
            size = os.readv(self._fd, [memory[: self.receive_bytes]])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionClosedError(f"the connection was reset: {error}", transport="tcp") from error
        if not size:
            raise ConnectionClosedError("the peer hung up", transport="tcp")
        return size

    def await_more(self, size: int) -> None:
        """Make the socket ready to read when `size` bytes are there, or many of them."""
        self._set_low_water(min(size, MAX_EXPECTED_BYTES) if size >= MIN_EXPECTED_BYTES else 1)

    def write_now(self, data: memoryview) -> bool:
        """Send `data`; return False if a part is kept for `write_rest`. Raises ConnectionClosedError."""
        assert self._rest is None
        self._began_at = self._moved_at = trio.current_time()
        self._written = len(data)
        if sent := self._send(data):
            data = data[sent:]
        if data:
            self._rest = memoryview(bytes(data))
            return False
        self._note_written(self._written, self._began_at, self._began_at)
        return True

    def write_rest(self) -> bool:
        """Go on sending when there is room; return False while something is left. Raises ConnectionClosedError."""
        if self._rest is None:
            return True
        if sent := self._send(self._rest):
            self._moved_at = trio.current_time()
            self._rest = self._rest[sent:]
        if self._rest:
            return False
        self._rest = None
        self._note_written(self._written, self._began_at, self._moved_at)
        return True

    @property
    def takes_nothing(self) -> bool:
        """Whether bytes have waited for so long that the connection counts as dead."""
        return self._rest is not None and trio.current_time() - self._moved_at > WRITE_DEADLINE_S

    def _send(self, data: memoryview) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionClosedError(f"the connection was reset: {error}", transport="tcp") from error

    def _note_written(self, size: int, began: float, ended: float) -> None:
        """Adjust how many unsent bytes the kernel holds to the measured rate, so that they wait NOT_SENT_S at most."""
        if self.pace.wrote(size, began, ended):
            wanted = self.pace.within(NOT_SENT_S, MIN_NOT_SENT_BYTES, NOT_SENT_BYTES)
            if not wanted / 2 < self._not_sent < wanted * 2:
                self._limit_not_sent(wanted)

    async def close(self) -> None:
        """Close at once."""
        self._fd = -1  # the number may belong to another file at once
        await trio.aclose_forcefully(self._stream)

    def get_remote_address(self) -> tuple[str, int]:
        return self.remote.host, self.remote.port

    def get_transport_addresses(self) -> list[Multiaddr]:
        return [Multiaddr(str(self.remote))]

    def get_connection_type(self) -> ConnectionType:
        return ConnectionType.DIRECT

    async def _receive(self, expected: int) -> bytes:
        """Wait for at least one byte, or until `expected` are there."""
        try:
            while True:
                size = await self._wait_for(expected)
                try:
                    # Not through trio: that would be another turn of its scheduler, and we have just had one.
                    data = os.read(self._stream.socket.fileno(), size)
                    break
                except BlockingIOError:  # a readable socket need not have bytes
                    pass
        except (OSError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(f"the connection was reset: {error}", transport="tcp") from error
        if not data:
            raise ConnectionClosedError("the peer hung up", transport="tcp")
        return data

    async def _wait_to_write(self) -> None:
        with trio.move_on_after(WRITE_DEADLINE_S) as time_limit:
            try:
                await trio.lowlevel.wait_writable(self._stream.socket)
            except (OSError, trio.ClosedResourceError) as error:
                raise ConnectionClosedError(f"the connection was closed: {error}", transport="tcp") from error
        if time_limit.cancelled_caught:
            raise ConnectionClosedError(f"the peer took nothing for {WRITE_DEADLINE_S:.0f} s", transport="tcp")

    async def _wait_for(self, size: int) -> int:
        """Wait until `size` bytes can be read, the peer hung up, or `hurry` was called; return how many to read."""
        self.await_more(size)
        await trio.lowlevel.wait_readable(self._stream.socket)
        return self.receive_bytes

    def _limit_not_sent(self, size: int) -> None:
        self._not_sent = size
        with suppress(OSError, AttributeError):  # where the system has no such option, its own default stays
            self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size)

    def _set_low_water(self, size: int) -> None:
        """Set from how many bytes on the kernel reports the socket as readable."""
        if size != self._low_water:
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._low_water = size
