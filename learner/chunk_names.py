"""Names of a directory's chunks: hashed on all cores, and remembered for files that stay as they are.

What always holds: a name is the hash of the bytes as they were read, unless the very file (device, number, size and
time of its last change) was hashed before; memory holds a chunk for each thread, whatever the size of the model. A
version of an adapter has its base model's files as hard links: only the first reads them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from protocol.digest import cid_of
from protocol.ids import Cid
from protocol.layout import FilePlan, Source, Tables, exactly, plan_files, tables_of

THREADS = min(8, os.cpu_count() or 1)
"""Hashing runs without the interpreter's lock at half a GB a second and core; eight outrun a disk."""

Identity = tuple[int, int, int, int]
Piece = tuple[Identity, int, int]


@dataclass(kw_only=True)
class ChunkNames:
    """What was hashed in the last publication, by file and place."""

    _known: dict[Piece, Cid] = field(default_factory=dict)

    def describe(self, sources: Sequence[Source], directory: Path) -> Tables:
        """`protocol.layout.describe` of `sources`, the files of `directory`. Raises LayoutError, OSError."""
        plans = plan_files(sources)
        identities = {plan.source.name: _identity(directory / plan.source.name) for plan in plans}
        wanted = [(plan, start, end) for plan in plans for start, end in plan.pieces]
        places = [(identities[plan.source.name], start, end) for plan, start, end in wanted]
        unknown = [place not in self._known for place in places]
        with ThreadPoolExecutor(THREADS) as threads:
            hashed = threads.map(_hash, (piece for piece, new in zip(wanted, unknown, strict=True) if new))
            names = [next(hashed) if new else self._known[place] for place, new in zip(places, unknown, strict=True)]
        self._known = dict(zip(places, names, strict=True))  # other files are gone, or will be
        return tables_of(plans, lambda plan, start, end: self._known[identities[plan.source.name], start, end])


def _hash(piece: tuple[FilePlan, int, int]) -> Cid:
    plan, start, end = piece
    return cid_of(exactly(plan.source, start, end))


def _identity(path: Path) -> Identity:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
