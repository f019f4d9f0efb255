"""A patch as chunks of the manifest that offers it: cutting it, and reading it back.

What always holds: the chunks of the files keep their numbers and their names, so a version is the same with patches and
without; every byte of a patch lies in exactly one piece. Nothing here opens a file.
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
    """Return `tables` with `patches`, by the hash of their base, in that order, each cut, read and hashed.

    A patch is cut as small as a model of its size would be, since that is what travels, unless `chunk_bytes` is given.
    Raises LayoutError when a patch ends before its size, and whatever `read` raises.
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
    """Return how many chunks `with_patches` cuts a patch of this size into."""
    return -(-size_bytes // chunk_size_for(size_bytes))


def patch_source(manifest: Manifest, entry: PatchEntry, chunk: Callable[[Cid], bytes]) -> Source:
    """Return one of the manifest's patches as something to read, given `chunk(cid)`, which returns a verified chunk.

    Reading from the beginning to the end asks for each chunk once, and holds one at a time. `read` raises PeerError
    when the manifest says that a chunk has another size, and whatever `chunk` raises.
    """
    refs = [manifest.chunks[index] for index in entry.chunks]
    starts = [0, *accumulate(ref.size for ref in refs)]
    held: tuple[int, bytes] = (-1, b"")

    def piece(number: int) -> memoryview:
        nonlocal held
        if held[0] != number:
            data = chunk(refs[number].name)
            if len(data) != refs[number].size:
                raise PeerError(Fault.MALFORMED, f"manifest: a chunk of {len(data)} bytes, not {refs[number].size}")
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
