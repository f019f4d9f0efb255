"""Name a directory's chunks: from their writer, from memory for unchanged files, or else by hashing.

A version of an adapter has its base model's files as hard links, so only the first version reads them.

A writer reports names as arrays: `files` uint64 (F, 5), the four numbers that identify a file (device, inode, size in
bytes, time of last change in ns) and its number of pieces; `ends` uint64 [P], where the pieces end; `digests` uint8
(P, 32), their SHA-256.

Invariants:

- A name is the hash of the bytes as they were read, unless the same file (same four numbers) was hashed before or its
  writer hashed what it wrote.
- Memory holds one chunk for each thread, whatever the size of the model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.core.digest import CID_PREFIX, cid_of
from protocol.core.ids import Cid
from protocol.core.pipe import Arrays
from protocol.versions.chunking import FilePlan, Source, Tables, exactly, plan_files, tables_of
from protocol.versions.manifest import is_safe_file_name

Identity = tuple[int, int, int, int]
Piece = tuple[Identity, int, int]
Cuts = Mapping[str, tuple[int, ...]]
"""Where the pieces of each weight file end, in bytes."""


def num_threads() -> int:
    """Return how many threads to hash with: this process's share of the cores, at most 8. Hashing releases the
    interpreter's lock and does at least half a GB a second and core; eight threads outrun a disk.
    """
    return max(1, min(8, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def cuts_of(weights: Mapping[str, tuple[bytes, int]], others: Mapping[str, bytes]) -> Cuts:
    """Return where a directory's weight files will be cut.

    Raises LayoutError for a directory that could not be published.

    Args:
        weights: header and size in bytes of each weight file, by file name.
        others: contents of all other files, by file name.
    """
    small = {name: (data, len(data)) for name, data in others.items() if is_safe_file_name(name)}
    sources = [Source(name=name, size=size, read=_reader(data)) for name, (data, size) in {**weights, **small}.items()]
    return {plan.source.name: plan.cuts for plan in plan_files(sources) if plan.source.name in weights}


def _reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, size: data[offset : offset + size]


def chunk_names_of(directory: Path, cuts: Cuts, digests: Mapping[str, NDArray[np.uint8]]) -> Arrays:
    """Return names of files just written, for `ChunkNames.learn`; `digests` (P, 32) for each file. Raises OSError."""
    files = sorted(cuts)
    return {
        "files": np.array([(*_identity(directory / name), len(cuts[name])) for name in files], np.uint64),
        "ends": np.array([end for name in files for end in cuts[name]], np.uint64),
        "digests": np.concatenate([digests[name] for name in files]),
    }


@dataclass(kw_only=True)
class ChunkNames:
    """Names that the last publication used, by file identity and range of bytes."""

    _known: dict[Piece, Cid] = field(default_factory=dict)

    def learn(self, names: Arrays) -> None:
        """Take over the names of files that a writer has just written and hashed; `names` may be empty."""
        if not names:
            return
        pieces = iter(zip(names["ends"].tolist(), names["digests"], strict=True))
        for *identity, count in names["files"].tolist():
            some = list(islice(pieces, count))
            for (start, end), (_, digest) in zip(pairwise((0, *(end for end, _ in some))), some, strict=True):
                place = (identity[0], identity[1], identity[2], identity[3]), start, end
                self._known[place] = Cid(CID_PREFIX + digest.tobytes())

    def describe(self, sources: Sequence[Source], directory: Path, look: Callable[[], None] = lambda: None) -> Tables:
        """Return `protocol.versions.chunking.describe` of `sources`, the files of `directory`.

        Calls `look` between chunks; it may raise to stop. Raises LayoutError, OSError.
        """
        plans = plan_files(sources)
        identities = {plan.source.name: _identity(directory / plan.source.name) for plan in plans}
        wanted = [(plan, start, end) for plan in plans for start, end in plan.pieces]
        places = [(identities[plan.source.name], start, end) for plan, start, end in wanted]
        unknown = [place not in self._known for place in places]
        with closing(_hashes([piece for piece, new in zip(wanted, unknown, strict=True) if new], look)) as hashed:
            names = [next(hashed) if new else self._known[place] for place, new in zip(places, unknown, strict=True)]
        self._known = dict(zip(places, names, strict=True))  # other files are deleted, or will be
        return tables_of(plans, lambda plan, start, end: self._known[identities[plan.source.name], start, end])


def _hashes(pieces: Sequence[tuple[FilePlan, int, int]], look: Callable[[], None]) -> Generator[Cid]:
    """Yield the names of these pieces in order. When `look` raises, pieces not yet begun are not hashed."""
    threads = ThreadPoolExecutor(num_threads())
    try:
        for cid in threads.map(_hash, pieces):
            look()
            yield cid
    finally:
        threads.shutdown(cancel_futures=True)


def _hash(piece: tuple[FilePlan, int, int]) -> Cid:
    plan, start, end = piece
    return cid_of(exactly(plan.source, start, end))


def _identity(path: Path) -> Identity:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
