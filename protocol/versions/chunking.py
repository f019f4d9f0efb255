"""Cut a model directory's files into chunks, and put them together again.

Weight files are cut at tensor boundaries. A tensor larger than the chunk size is cut into equal pieces, small adjacent
tensors are packed together, and the header is a piece of its own. So a header or a frozen tensor that did not change
keeps its content id from version to version. Other files are cut at the chunk size. Nothing here opens a file; the
caller supplies a way to read.

Invariants:

- Every byte of every file lies in exactly one piece.
- No piece is larger than the chunk size.
- The cuts depend on names, shapes and sizes alone, never on values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import BinaryIO

from protocol.core.ids import Cid
from protocol.core.limits import KIB, MAX_NAME_CHARS, MIB
from protocol.versions.manifest import ChunkRef, FileEntry, Manifest, PatchEntry, TensorEntry, is_safe_file_name
from protocol.versions.safetensors_header import LayoutError, Read, Table, read_table

CHUNK_SIZES = (
    (16 * MIB, 64 * KIB),
    (256 * MIB, 128 * KIB),
    (2 * 1024 * MIB, 512 * KIB),
    (8 * 1024 * MIB, MIB),
    (64 * 1024 * MIB, 2 * MIB),
)
"""Pairs (size of a model, size of its chunks) in bytes: the chunk size for models below that size. `chunk_size_for` has
the reasons."""

MAX_CUT_BYTES = 4 * MIB
"""Largest chunk that is cut. It takes 3.4 s on a 10 Mbit/s uplink: one slow peer delays others, and one lost transfer
costs, as long as this."""

PIECE_ALIGN_BYTES = 64
"""Pieces of one tensor begin at multiples of this inside it, so no element of any dtype is cut in two."""

WEIGHT_SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file to publish: its plain name, its size in bytes, and a way to read it.

    `read_into(offset, view)` fills `view` and returns the number of bytes read. With it a caller reuses memory: to get
    2 MiB of new memory from the kernel takes ten times as long as reading them.
    """

    name: str
    size: int
    read: Read
    read_into: Callable[[int, memoryview], int] | None = None


def source_of(file: BinaryIO, name: str) -> Source:
    """Return an open file as a source, which several threads may read at once."""
    handle = file.fileno()
    size = os.fstat(handle).st_size
    return Source(
        name=name,
        size=size,
        read=lambda offset, size: os.pread(handle, size, offset),
        read_into=lambda offset, view: os.preadv(handle, [view], offset),
    )


@dataclass(frozen=True, kw_only=True)
class FilePlan:
    """How one file is cut.

    `cuts` are the ends of the pieces, ascending; the last is the file's size. An empty file has no pieces. Weight files
    have a `table`.
    """

    source: Source
    cuts: tuple[int, ...]
    table: Table | None

    @property
    def pieces(self) -> Iterator[tuple[int, int]]:
        """(start, end) of every piece, in order."""
        return pairwise((0, *self.cuts))


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The tables of a manifest, consistent with each other."""

    files: list[FileEntry]
    chunks: list[ChunkRef]
    tensors: list[TensorEntry]
    patches: list[PatchEntry] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ChunkLocation:
    """A place of a chunk: file number `file` of the manifest, at byte `offset`."""

    file: int
    offset: int


def chunk_size_for(total_bytes: int) -> int:
    """Return the chunk size in bytes, a power of two, for a model of `total_bytes`.

    F bytes in chunks of c cost F h / c of overhead (h per chunk: header, HAVE to the neighbours, REQUEST). They also
    cost (N - 1) c to fill and drain the pipeline, because a peer relays a chunk to all others before the next one
    counts. The sum is smallest at c = sqrt(F h / (N - 1)). It was measured for eight peers and 64 MiB on emulated
    links, as the last peer's time over the bound: 1.12 with 256 KiB and 1.09 with 128 KiB. With a round trip of 30 ms
    and rates times 0.4 it was 1.17 and 1.10. Half the size takes an eighth to a quarter more processor time, so chunks
    are not smaller still. There are few sizes, so that a model that grows a little keeps its chunks.
    """
    return next((size for below, size in CHUNK_SIZES if total_bytes < below), MAX_CUT_BYTES)


def plan_files(sources: Iterable[Source], *, chunk_bytes: int | None = None) -> list[FilePlan]:
    """Return how to cut `sources`, ordered by name. By default `chunk_bytes` follows from their total size.

    Reads the headers of weight files, and the index of a sharded directory. Raises LayoutError for a file that may not
    be published or does not have the format of its name, for a tensor in two files, and for an index that names a
    missing tensor.
    """
    ordered = sorted(sources, key=lambda source: source.name)
    if chunk_bytes is None:
        chunk_bytes = chunk_size_for(sum(source.size for source in ordered))
    if chunk_bytes % PIECE_ALIGN_BYTES:
        raise LayoutError(f"a chunk size of {chunk_bytes} bytes is not a multiple of {PIECE_ALIGN_BYTES}")
    _require_names([source.name for source in ordered])
    plans = [_plan(source, chunk_bytes) for source in ordered]
    homes = _tensor_homes(plans)
    for plan in plans:
        if plan.source.name.endswith(INDEX_SUFFIX):
            _require_index(plan.source, homes)
    return plans


def tables_of(plans: Sequence[FilePlan], cid: Callable[[FilePlan, int, int], Cid]) -> Tables:
    """Return the manifest's tables. `cid(plan, start, end)` returns the content id of a piece."""
    numbers: dict[Cid, int] = {}
    tables = Tables(files=[], chunks=[], tensors=[])
    for number, plan in enumerate(plans):
        listed: list[int] = []
        for start, end in plan.pieces:
            name = cid(plan, start, end)
            if name not in numbers:
                numbers[name] = len(tables.chunks)
                tables.chunks.append(ChunkRef(cid=name, size=end - start))
            listed.append(numbers[name])
        tables.files.append(FileEntry(name=plan.source.name, size=plan.source.size, chunks=listed))
        tables.tensors.extend(_entries(plan.table, number))
    return tables


def placements(manifest: Manifest) -> list[list[ChunkLocation]]:
    """Return all places of every chunk in the manifest's table. This is the inverse of cutting.

    A chunk that no file lists, such as one of a patch, has none: the version is complete without it.
    """
    places: list[list[ChunkLocation]] = [[] for _ in manifest.chunks]
    for number, entry in enumerate(manifest.files):
        offset = 0
        for index in entry.chunks:
            places[index].append(ChunkLocation(file=number, offset=offset))
            offset += manifest.chunks[index].size
    return places


def file_chunks(manifest: Manifest | Tables) -> list[int]:
    """Return the indices of the files' chunks, ascending, each once. A complete version has all of them."""
    return sorted({index for entry in manifest.files for index in entry.chunks})


def changed_chunks(old: Manifest, new: Manifest | Tables) -> list[int]:
    """Return the chunks of the files of `new` (indices into its table) that a peer with those of `old` lacks."""
    held = {old.chunks[index].cid for index in file_chunks(old)}
    return [index for index in file_chunks(new) if new.chunks[index].cid not in held]


def _plan(source: Source, chunk_bytes: int) -> FilePlan:
    if not source.name.endswith(WEIGHT_SUFFIX):
        return FilePlan(source=source, cuts=tuple(even_cuts(0, source.size, chunk_bytes)), table=None)
    table = read_table(source.name, source.size, source.read)
    cuts = [*even_cuts(0, table.header_bytes, chunk_bytes), *_tensor_cuts(table, chunk_bytes)]
    return FilePlan(source=source, cuts=tuple(cuts), table=table)


def _tensor_cuts(table: Table, chunk_bytes: int) -> Iterator[int]:
    packed, reached = table.header_bytes, table.header_bytes  # [packed, reached) waits for more small tensors
    for span in table.spans:
        if span.end - packed > chunk_bytes and reached > packed:
            yield reached
            packed = reached
        if span.end - span.start > chunk_bytes:
            yield from _equal_cuts(span.start, span.end, chunk_bytes)
            packed = span.end
        reached = span.end
    if reached > packed:
        yield reached


def even_cuts(start: int, end: int, chunk_bytes: int) -> Iterator[int]:
    """Yield the ends of pieces of `chunk_bytes`, and of the remainder."""
    yield from range(start + chunk_bytes, end, chunk_bytes)
    if end > start:
        yield end


def _equal_cuts(start: int, end: int, chunk_bytes: int) -> Iterator[int]:
    """Return the ends of as few pieces as possible, equal up to alignment, since a small remainder also costs a
    request."""
    num_pieces = -(-(end - start) // chunk_bytes)
    piece = -(-(end - start) // num_pieces)
    return even_cuts(start, end, -(-piece // PIECE_ALIGN_BYTES) * PIECE_ALIGN_BYTES)


def _entries(table: Table | None, number: int) -> Iterator[TensorEntry]:
    for span in table.spans if table else ():
        yield TensorEntry(
            name=span.name, dtype=span.dtype, shape=list(span.shape), file=number, start=span.start, end=span.end
        )


def exactly(source: Source, start: int, end: int) -> bytes | memoryview:
    """Return bytes [start, end) of a file. Raise LayoutError if it has become shorter."""
    data = source.read(start, end - start)
    _require_length(source, start, end, len(data))
    return data


def exactly_in(source: Source, start: int, memory: memoryview) -> bytes | memoryview:
    """Return as many bytes of a file as `memory` has, from `start` on; in `memory` if the source can read into it.

    Raises LayoutError if the file has become shorter.
    """
    end = start + len(memory)
    if source.read_into is None:
        return exactly(source, start, end)
    _require_length(source, start, end, source.read_into(start, memory))
    return memory


def _require_length(source: Source, start: int, end: int, length: int) -> None:
    if length != end - start:
        raise LayoutError(
            f"{source.name}: ends at byte {start + length} instead of {source.size}. Is it still being written?"
        )


def _require_names(names: list[str]) -> None:
    for name in names:
        if not is_safe_file_name(name) or len(name) > MAX_NAME_CHARS:
            raise LayoutError(
                f"{name}: only files with plain names that end in .safetensors, .json, .jinja, .txt or .model may be "
                "published"
            )
    for name, following in pairwise(names):
        if name == following:
            raise LayoutError(f"{name}: the file was given twice")


def _tensor_homes(plans: list[FilePlan]) -> dict[str, str]:
    homes: dict[str, str] = {}
    for plan in plans:
        for span in plan.table.spans if plan.table else ():
            if span.name in homes:
                raise LayoutError(f"{plan.source.name}: tensor {span.name!r} is in {homes[span.name]} as well")
            homes[span.name] = plan.source.name
    return homes


def _require_index(source: Source, homes: dict[str, str]) -> None:
    try:
        weight_map = json.loads(bytes(exactly(source, 0, source.size)))["weight_map"]
        named = {str(tensor): str(file) for tensor, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LayoutError(f"{source.name}: not the index of a sharded model: {error!r}") from error
    for tensor, file in named.items():
        if homes.get(tensor) != file:
            raise LayoutError(
                f"{source.name}: says that tensor {tensor!r} is in {file}, but it is not there. Is a shard missing?"
            )
