"""Make the chunks of a version from a base and a patch, on several threads.

Neither the patch nor the base's files are trusted: the signer may have made a wrong patch, and a bad disk may have
changed the files.

Invariants:

- A chunk is put only after its bytes were verified against the manifest.
- Memory holds a few segments of the patch and a few chunks for each thread, for any size of the model.
- No thread works any more when `rebuild` has returned or raised.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from protocol.core.digest import cid_of
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import Cid
from protocol.core.limits import MIB
from protocol.patches.chunks import patch_source
from protocol.patches.patch import Rebuilt, apply_patch
from protocol.patches.worker_pool import WorkerPool
from protocol.versions.chunking import source_of
from swarm.store.errors import VersionIncomplete
from swarm.store.version_directory import Version

MAX_THREADS = 8
"""Largest number of threads. Eight write faster than disks do, and the engine on the same machine needs cores."""

PUT_BYTES = 2 * MIB
"""Smallest total size of chunks that are put together. To open a file, note the held chunks and request write-back
takes 0.1 ms, half as long again as writing a small chunk."""


def rebuild(base: Version, target: Version, number: int, num_threads: int | None = None) -> int:
    """Make the chunks that `target` lacks from its patch `number` and the files of `base`. Return the bytes put.

    Uses every core, up to MAX_THREADS, unless `num_threads` is given. Raises PeerError if the patch is invalid or makes
    another version, VersionIncomplete if the disk has lost a part of the base or of the patch, and OSError.
    """
    manifest = target.manifest
    put = 0
    try:
        with ExitStack() as opened:
            files = [
                source_of(opened.enter_context((base.directory / entry.name).open("rb")), entry.name)
                for entry in base.manifest.files
            ]
            patch = patch_source(manifest, manifest.patches[number], lambda cid: _chunk(target, cid))
            pool = opened.enter_context(WorkerPool(num_threads or min(MAX_THREADS, os.cpu_count() or 1)))
            pieces = apply_patch(files, patch, {entry.name: entry.size for entry in manifest.files}, pool)
            for done in pool.in_order(_put_jobs(target, pieces)):
                put += done.num_bytes
                for piece in done.used_up:
                    piece.release()
    except PeerError:
        if bad := base.verify():
            why = f"{len(bad)} chunks of version {base.signed.version} have gone bad on this disk."
            raise VersionIncomplete(f"{why} The node fetches them again when it needs them.") from None
        raise
    return put


@dataclass(frozen=True, kw_only=True)
class _Done:
    """The result for some chunks: the bytes put, and the pieces that no later chunk needs."""

    num_bytes: int
    used_up: Sequence[Rebuilt]


def _put_jobs(target: Version, pieces: Iterator[Rebuilt]) -> Iterator[Callable[[], _Done]]:
    """Yield jobs that put the chunks of each file. Each has at least PUT_BYTES, except for the last of a file.

    `pieces` must go through each file from beginning to end.
    """
    manifest = target.manifest
    chunks = {entry.name: entry.chunks for entry in manifest.files}
    missing = set(target.missing())
    for file, of_file in groupby(pieces, key=lambda piece: piece.file):
        cutter = _Cutter(of_file)
        some: dict[int, list[memoryview]] = {}
        used_up: list[Rebuilt] = []
        reached = 0
        for number, index in enumerate(chunks[file], 1):
            size = manifest.chunks[index].size
            parts, ended = cutter.cut(size)
            used_up += ended
            reached += size
            if index in missing:
                missing.remove(index)
                some[index] = parts
            if reached >= PUT_BYTES or number == len(chunks[file]):
                yield partial(_put, target, some, used_up)
                some, used_up, reached = {}, [], 0


def _put(target: Version, chunks: Mapping[int, Sequence[memoryview]], used_up: Sequence[Rebuilt]) -> _Done:
    """Verify and put chunks. Raise PeerError if one is not the chunk that the manifest names."""
    for index, parts in chunks.items():
        if cid_of(*parts) != target.manifest.chunks[index].name:
            raise PeerError(Fault.BROKEN_PROMISE, f"patch: makes another chunk {index} than the manifest names")
    put = target.write_all(chunks)
    return _Done(num_bytes=sum(target.manifest.chunks[index].size for index in put), used_up=used_up)


class _Cutter:
    """Cuts the pieces of a file into chunks, without copying them."""

    def __init__(self, pieces: Iterator[Rebuilt]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def cut(self, size: int) -> tuple[list[memoryview], list[Rebuilt]]:
        """Return the next `size` bytes, and the pieces that end within them."""
        parts, used_up = [], []
        while size:
            if not self._left:
                self._piece = next(self._pieces)
                self._left = self._piece.data
            part, self._left = self._left[:size], self._left[size:]
            parts.append(part)
            size -= len(part)
            if not self._left:
                used_up.append(self._piece)
        return parts, used_up


def _chunk(target: Version, cid: Cid) -> bytes:
    index = target.index_of(cid)
    data = target.read(index) if index is not None else None
    if data is None:
        raise VersionIncomplete(f"A chunk of a patch to version {target.signed.version} is missing. Fetch it first.")
    return data
