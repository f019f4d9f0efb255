"""Cut a patch into chunks of the manifest that lists it, and read it back.

Nothing here opens a file.

Invariants:

- The chunks of the files keep their numbers and their names, so a version is the same with patches and without.
- Every byte of a patch lies in exactly one piece.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import accumulate, pairwise

from protocol.core.digest import cid_of
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import Cid, ManifestHash
from protocol.versions.chunking import Source, Tables, chunk_size_for, even_cuts, exactly
from protocol.versions.manifest import ChunkRef, Manifest, PatchEntry


def with_patches(tables: Tables, patches: Mapping[ManifestHash, Source], *, chunk_bytes: int | None = None) -> Tables:
    """Return `tables` with `patches` added in their order, each cut, read and hashed. The keys are the bases' hashes.

    By default a patch is cut like a model of its size, since only the patch travels; `chunk_bytes` overrides this.
    Raises LayoutError if a patch ends before its size, and any error of `read`.
    """
    chunks = list(tables.chunks)
    numbers = {chunk.name: number for number, chunk in enumerate(chunks)}
    entries = list(tables.patches)
    for base, source in patches.items():
        listed = []
        for start, end in pairwise((0, *even_cuts(0, source.size, chunk_bytes or chunk_size_for(source.size)))):
            name = cid_of(exactly(source, start, end))
            if name not in numbers:
                numbers[name] = len(chunks)
                chunks.append(ChunkRef(cid=name, size=end - start))
            listed.append(numbers[name])
        entries.append(PatchEntry(base=base, size=source.size, chunks=listed))
    return replace(tables, chunks=chunks, patches=entries)


def num_patch_chunks(size_bytes: int) -> int:
    """Return the number of chunks into which `with_patches` cuts a patch of this size."""
    return -(-size_bytes // chunk_size_for(size_bytes))


def patch_source(manifest: Manifest, entry: PatchEntry, chunk: Callable[[Cid], bytes]) -> Source:
    """Return one of the manifest's patches as a source. `chunk(cid)` must return a verified chunk.

    Reading from the beginning to the end requests each chunk once, and holds one at a time. `read` raises PeerError if
    the manifest states another size for a chunk, and any error of `chunk`.
    """
    refs = [manifest.chunks[index] for index in entry.chunks]
    starts = [0, *accumulate(ref.size for ref in refs)]
    held: tuple[int, bytes] = (-1, b"")

    def piece(number: int) -> memoryview:
        nonlocal held
        if held[0] != number:
            data = chunk(refs[number].name)
            if len(data) != refs[number].size:
                raise PeerError(
                    Fault.MALFORMED, f"manifest: a chunk has {len(data)} bytes, not the stated {refs[number].size}"
                )
            held = number, data
        return memoryview(held[1])

    def read(offset: int, size: int) -> bytes | memoryview:
        parts, end = [], min(offset + size, entry.size)
        while offset < end:
            number = bisect_right(starts, offset) - 1
            part = piece(number)[offset - starts[number] : end - starts[number]]
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    return Source(name=f"patch from {entry.base.hex()[:8]}", size=entry.size, read=read)
