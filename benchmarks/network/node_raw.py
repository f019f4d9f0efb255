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

from benchmarks.network.program_end import Assignment, ProgramEnd

PORT = 6882
CHUNK_BYTES = 1 << 20
"""The same size as ours for the measured payload."""

ASKED = b"?"
REDIAL_S = 0.05
"""Pause before a source that is still starting is dialled again."""


def give(task: Assignment, program_end: ProgramEnd) -> Path:
    """Send the file once a peer asks for it."""
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with socket.create_server((task.address, PORT)) as server, task.payload.open("rb", buffering=0) as file:
        connection, _ = server.accept()
        with connection:
            program_end.ready()
            program_end.wait_go()
            connection.recv(len(ASKED))
            while size := file.readinto(buffer):
                connection.sendall(buffer[:size])
            program_end.wait_end()
    return task.payload


def take(task: Assignment, program_end: ProgramEnd) -> Path:
    """Fetch the file; return its path."""
    target = task.directory / task.payload.name
    digests = digests_of(task.payload)
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with connected(task.addresses[0]) as connection, target.open("wb", buffering=0) as file:
        program_end.ready()
        program_end.wait_go()
        connection.sendall(ASKED)
        for number, (size, digest) in enumerate(digests):
            chunk = buffer[:size]
            fill(connection, chunk)
            if sha256(chunk).digest() != digest:
                raise SystemExit(f"chunk {number} differs from the payload")
            file.write(chunk)
        os.fsync(file.fileno())
        program_end.done()
        program_end.wait_end()
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


def play(program_end: ProgramEnd) -> None:
    """Perform one run, from READY to REPORT."""
    file = (give if program_end.assignment.is_source else take)(program_end.assignment, program_end)
    size = {"all": program_end.assignment.payload.stat().st_size}
    program_end.report(
        file, up=size if program_end.assignment.is_source else {}, down={} if program_end.assignment.is_source else size
    )


if __name__ == "__main__":
    play(ProgramEnd())
