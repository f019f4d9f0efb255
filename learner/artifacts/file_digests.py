"""Hash files in blocks: while they are written, and again before their contents are trusted.

Hashing runs in parallel with writing, and on all cores when reading. No torch.

Invariants:

- The digests are of the bytes as they were handed to the disk, so a file that reads back differently is detected and
  named.
- Memory holds READ_BYTES for each thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from learner.artifacts.chunk_names import num_threads
from learner.artifacts.regular_file import open_file

BLOCK_BYTES = 64 * 1024 * 1024
"""Bytes for each digest: small enough to occupy all cores, and only 16,000 digests for a terabyte."""

READ_BYTES = 1024 * 1024

INLINE_BYTES = 64 * 1024
"""A smaller write is hashed faster than another thread wakes up."""


class HashedWriter:
    """A context manager that writes to `file` from beginning to end; `digests` are complete when it exits."""

    def __init__(self, file: BinaryIO) -> None:
        self.digests: list[str] = []
        self._file = file
        self._hash = sha256()
        self._room = BLOCK_BYTES
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> HashedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        if self._room < BLOCK_BYTES:
            self._end_block()

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data`; the caller may change it afterwards. Raises OSError."""
        view = memoryview(data).cast("B")
        if len(view) < INLINE_BYTES:
            self._update(view)
            self._file.write(view)
            return
        hashing = self._thread.submit(self._update, view)
        try:
            self._file.write(view)
        finally:
            hashing.result()

    def _update(self, view: memoryview) -> None:
        while view:
            some, view = view[: self._room], view[self._room :]
            self._hash.update(some)
            self._room -= len(some)
            if self._room == 0:
                self._end_block()

    def _end_block(self) -> None:
        self.digests.append(self._hash.hexdigest())
        self._hash, self._room = sha256(), BLOCK_BYTES


def num_blocks(size_bytes: int) -> int:
    """Return how many digests a file of this size has."""
    return -(-size_bytes // BLOCK_BYTES)


def damaged_block(path: Path, digests: Sequence[str], part: int = 0, parts: int = 1) -> int | None:
    """Return the first block of the file that differs from what was written; None when none does. Raises OSError.

    Checks every `parts`-th block, beginning with number `part`.
    """
    numbers = range(part, len(digests), parts)
    with ThreadPoolExecutor(num_threads()) as threads:
        found = threads.map(lambda number: _digest(path, number) == digests[number], numbers)
        return next((number for number, sound in zip(numbers, found, strict=True) if not sound), None)


def _digest(path: Path, number: int) -> str:
    digest, left = sha256(), BLOCK_BYTES
    with path.open("rb") as file:
        file.seek(number * BLOCK_BYTES)
        while left and (some := file.read(min(READ_BYTES, left))):
            digest.update(some)
            left -= len(some)
    return digest.hexdigest()


SAMPLES, SAMPLE_BYTES = 64, 4096
"""Pieces of each file, and bytes of a piece; the first and last bytes are included. Together a quarter of a MiB, read
in milliseconds."""


class Digest(Protocol):
    """The part of a hashlib object that is used here."""

    def update(self, data: bytes, /) -> None: ...


def add_samples(digest: Digest, file: Path) -> None:
    """Add to a digest what distinguishes large files without reading them whole: name, size, and pieces spread over
    the file. Raises OSError.

    A fine-tuned model's weights differ nearly everywhere, so they give another digest. A file that somebody changed on
    purpose in a few places may give the same digest.
    """
    size = file.stat().st_size
    digest.update(f"{file.name} {size}\n".encode())
    with open_file(file) as opened:
        for offset in np.linspace(0, max(0, size - SAMPLE_BYTES), SAMPLES, dtype=np.int64):
            digest.update(os.pread(opened.fileno(), SAMPLE_BYTES, int(offset)))
