"""Measure the links of an emulated network, to check them against their settings.

    probe.py sink                     one side of `rate_mbit`: counts received bytes
    probe.py source ADDRESS           the other: sends as fast as it can
    probe.py echo                     one side of `round_trip_ms`
    probe.py ping ADDRESS             the other

Invariants:

- Bytes are counted after the connection's slow start, so a rate is that of the link.
- The serving side says that it is ready before the other side is started.
"""

from __future__ import annotations

import socket
import statistics
import struct
import subprocess
import sys
import time
from contextlib import suppress

from benchmarks.network.emulation import Network

PORT = 5999
WARM_UP_S = 2.0
"""Slow start, its overshoot of the queue, and the repair of that: bytes behind a gap count when it is filled."""

PINGS = 21
BYTES_RECEIVED, BYTES_RECEIVED_AT = struct.Struct("=Q"), 128
"""`tcpi_bytes_received` in the kernel's `struct tcp_info` (linux/tcp.h, since 4.1)."""


def rate_mbit(network: Network, sender: str, receiver: str, *, span_s: float) -> float:
    """Return the Mbit/s of payload over one TCP connection from `sender` to `receiver`, counted for `span_s`."""
    with _start(network, receiver, "sink", str(span_s)) as sink:
        _line(sink)
        with _start(network, sender, "source", network.address(receiver)) as source:
            rate = float(_line(sink))
            source.kill()
    return rate


def round_trip_ms(network: Network, one: str, other: str) -> float:
    """Return the median time of a byte from `one` to `other` and back over TCP."""
    with _start(network, other, "echo") as echo:
        _line(echo)
        with _start(network, one, "ping", network.address(other)) as ping:
            return float(_line(ping))


def _start(network: Network, node: str, *arguments: str) -> subprocess.Popen[str]:
    command = network.inside(node, [sys.executable, "-m", "benchmarks.network.probe", *arguments])
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _say(word: object) -> None:
    print(word, flush=True)


def sink(span_s: float) -> None:
    with socket.create_server(("", PORT)) as server:
        _say("ready")
        connection, _ = server.accept()
        with connection:
            _drain(connection, WARM_UP_S)
            _say(_drain(connection, span_s))


def _drain(connection: socket.socket, span_s: float) -> float:
    """Read for `span_s`; return the Mbit/s received, by the kernel's count: ours lags while we wait for a core."""
    before, began = _received(connection), time.monotonic()
    while (elapsed := time.monotonic() - began) < span_s:
        connection.recv(1 << 18)
    return (_received(connection) - before) * 8 / 1e6 / elapsed


def _received(connection: socket.socket) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED.size + BYTES_RECEIVED_AT)
    return int(BYTES_RECEIVED.unpack_from(info, BYTES_RECEIVED_AT)[0])


def source(address: str) -> None:
    with socket.create_connection((address, PORT)) as connection:
        while True:
            connection.sendall(bytes(65536))


def echo() -> None:
    with socket.create_server(("", PORT)) as server:
        _say("ready")
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(64):
                connection.sendall(data)


def ping(address: str) -> None:
    times = []
    with socket.create_connection((address, PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PINGS):
            began = time.monotonic()
            connection.sendall(b"x")
            connection.recv(64)
            times.append(time.monotonic() - began)
    _say(statistics.median(times) * 1000)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sink", span]:
            sink(float(span))
        case ["source", address]:
            with suppress(BrokenPipeError, ConnectionResetError):
                source(address)
        case ["echo"]:
            echo()
        case ["ping", address]:
            ping(address)
