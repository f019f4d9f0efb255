"""Measure a bare copy: one TCP connection, SHA-256 of each chunk at the receiver, and a file. One peer only.

It uses blocking sockets and reuses memory, so only the cost of the bytes themselves is left.

Invariants:

- Nothing is encrypted.
- DONE means that every chunk was hashed and found right, written, and synced to the disk.
"""

from __future__ import annotations

import os
import socket
import time
from hashlib import sha256
from pathlib import Path

from benchmarks.network.line import Assignment, Line

PORT = 6882
CHUNK_BYTES = 1 << 20
"""The same size as ours for the measured payload."""

ASKED = b"?"
REDIAL_S = 0.05
"""Pause before a source that is still starting is dialled again."""


def give(task: Assignment, line: Line) -> Path:
    """Send the file once a peer asks for it."""
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with socket.create_server((task.address, PORT)) as server, task.payload.open("rb", buffering=0) as file:
        connection, _ = server.accept()
        with connection:
            line.ready()
            line.wait_go()
            connection.recv(len(ASKED))
            while size := file.readinto(buffer):
                connection.sendall(buffer[:size])
            line.wait_end()
    return task.payload


def take(task: Assignment, line: Line) -> Path:
    """Fetch the file; return its path."""
    target = task.directory / task.payload.name
    digests = digests_of(task.payload)
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with connected(task.addresses[0]) as connection, target.open("wb", buffering=0) as file:
        line.ready()
        line.wait_go()
        connection.sendall(ASKED)
        for number, (size, digest) in enumerate(digests):
            chunk = buffer[:size]
            fill(connection, chunk)
            if sha256(chunk).digest() != digest:
                raise SystemExit(f"chunk {number} differs from the payload")
            file.write(chunk)
        os.fsync(file.fileno())
        line.done()
        line.wait_end()
    return target


def digests_of(file: Path) -> list[tuple[int, bytes]]:
    """Return the size and SHA-256 of each chunk, as a manifest contains them."""
    with file.open("rb") as opened:
        chunks = iter(lambda: opened.read(CHUNK_BYTES), b"")
        return [(len(chunk), sha256(chunk).digest()) for chunk in chunks]


def connected(address: str) -> socket.socket:
    """Return a connection to the source, as soon as it listens."""
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            time.sleep(REDIAL_S)


def fill(connection: socket.socket, chunk: memoryview) -> None:
    """Receive all of `chunk`."""
    filled = 0
    while filled < len(chunk):
        filled += (taken := connection.recv_into(chunk[filled:]))
        if not taken:
            raise SystemExit("the source closed the connection")


def play(line: Line) -> None:
    """Perform one run, from READY to REPORT."""
    file = (give if line.assignment.is_source else take)(line.assignment, line)
    size = {"all": line.assignment.payload.stat().st_size}
    line.report(file, up=size if line.assignment.is_source else {}, down={} if line.assignment.is_source else size)


if __name__ == "__main__":
    play(Line())
