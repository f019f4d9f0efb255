"""Cutting a model directory's files into chunks, and putting them together again.

Weight files are cut at tensor boundaries: a tensor larger than the chunk size is cut again into equal pieces, small
neighbours are packed together, and the header is cut apart from them, so that a header or a frozen tensor that did
not change keeps its content id from version to version. Other files are cut at the chunk size. What always holds:
every byte of every file lies in exactly one piece, no piece is larger than the chunk size, and the cuts depend on
names, shapes and sizes alone, never on values. Nothing here opens a file; the caller gives a way to read.
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
"""Below so many bytes of model, chunks of this size; the reasons are in `chunk_size_for`."""

MAX_CUT_BYTES = 4 * MIB
"""3.4 s on a 10 Mbit/s uplink: what one slow peer can delay, and what one lost transfer costs."""

PIECE_ALIGN_BYTES = 64
"""Pieces of one tensor begin at multiples of this inside it, so no element of any dtype is ever cut in two."""

WEIGHT_SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file to publish: its plain name, its size in bytes, and a way to read it.

    `read_into(offset, view)` fills `view` and returns how many bytes there were. Who reads much uses memory again with
    it: to be given 2 MiB by the kernel each time takes ten times as long as reading them.
    """

    name: str
    size: int
    read: Read
    read_into: Callable[[int, memoryview], int] | None = None


def source_of(file: BinaryIO, name: str) -> Source:
    """An open file as a source, which several threads may read at once."""
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

    `cuts` are the ends of the pieces, ascending; the last is the file's size. An empty file has no pieces. `table` is
    there for weight files.
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
    """The tables of a manifest, fitting each other."""

    files: list[FileEntry]
    chunks: list[ChunkRef]
    tensors: list[TensorEntry]
    patches: list[PatchEntry] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ChunkLocation:
    """Where a chunk belongs: file number `file` of the manifest, at byte `offset`."""

    file: int
    offset: int


def chunk_size_for(total_bytes: int) -> int:
    """Return the chunk size in bytes, a power of two, for a model of `total_bytes`.

    Cutting F bytes into chunks of c costs F h / c of overhead (h per chunk: header, HAVE to the neighbours, REQUEST)
    and (N - 1) c of filling and draining the pipeline, for a peer passes a chunk on to all others before the next one
    counts; the sum is least at c = sqrt(F h / (N - 1)). Measured for eight peers and 64 MiB on emulated links, last
    peer over bound: 1.12 with 256 KiB and 1.09 with 128 KiB; with a round trip of 30 ms and rates times 0.4, 1.17 and
    1.10. Half the size takes an eighth to a quarter more of the processor, so it is not smaller still. Few sizes, so
    that a model which grows a little keeps the chunks that it had.
    """
    return next((size for below, size in CHUNK_SIZES if total_bytes < below), MAX_CUT_BYTES)


def plan_files(sources: Iterable[Source], *, chunk_bytes: int | None = None) -> list[FilePlan]:
    """Return how to cut `sources`, ordered by name; `chunk_bytes` is chosen by their total size when left out.

    Reads the headers of weight files, and the index of a sharded directory. Raises LayoutError for a file that may not
    travel or is not what its name says, a tensor that is in two files, and an index that names what is not there.
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
    """Return the manifest's tables, given `cid(plan, start, end)`, which names a piece."""
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
    """Return, for every chunk of the manifest's table, all places it belongs to; the inverse of cutting.

    A chunk that no file lists, such as a patch's, has none: the version is complete without it.
    """
    places: list[list[ChunkLocation]] = [[] for _ in manifest.chunks]
    for number, entry in enumerate(manifest.files):
        offset = 0
        for index in entry.chunks:
            places[index].append(ChunkLocation(file=number, offset=offset))
            offset += manifest.chunks[index].size
    return places


def file_chunks(manifest: Manifest | Tables) -> list[int]:
    """Return the chunks that the files list, ascending, each once: what makes a version complete."""
    return sorted({index for entry in manifest.files for index in entry.chunks})


def changed_chunks(old: Manifest, new: Manifest | Tables) -> list[int]:
    """Return the chunks of the files of `new` (indices into its table) that a peer holding those of `old` lacks."""
    held = {old.chunks[index].cid for index in file_chunks(old)}
    return [index for index in file_chunks(new) if new.chunks[index].cid not in held]


def _plan(source: Source, chunk_bytes: int) -> FilePlan:
    if not source.name.endswith(WEIGHT_SUFFIX):
        return FilePlan(source=source, cuts=tuple(even_cuts(0, source.size, chunk_bytes)), table=None)
    table = read_table(source.name, source.size, source.read)
    cuts = [*even_cuts(0, table.header_bytes, chunk_bytes), *_tensor_cuts(table, chunk_bytes)]
    return FilePlan(source=source, cuts=tuple(cuts), table=table)


def _tensor_cuts(table: Table, chunk_bytes: int) -> Iterator[int]:
    packed, reached = table.header_bytes, table.header_bytes  # [packed, reached) waits for more small neighbours
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
    """Yield the ends of pieces of `chunk_bytes`, and of what is left over."""
    yield from range(start + chunk_bytes, end, chunk_bytes)
    if end > start:
        yield end


def _equal_cuts(start: int, end: int, chunk_bytes: int) -> Iterator[int]:
    """Ends of as few pieces as possible, equal up to alignment: a small remainder costs a request too."""
    num_pieces = -(-(end - start) // chunk_bytes)
    piece = -(-(end - start) // num_pieces)
    return even_cuts(start, end, -(-piece // PIECE_ALIGN_BYTES) * PIECE_ALIGN_BYTES)


def _entries(table: Table | None, number: int) -> Iterator[TensorEntry]:
    for span in table.spans if table else ():
        yield TensorEntry(
            name=span.name, dtype=span.dtype, shape=list(span.shape), file=number, start=span.start, end=span.end
        )


def exactly(source: Source, start: int, end: int) -> bytes | memoryview:
    """Return bytes [start, end) of a file. Raises LayoutError when it has become shorter than it was."""
    data = source.read(start, end - start)
    _require_length(source, start, end, len(data))
    return data


def exactly_in(source: Source, start: int, memory: memoryview) -> bytes | memoryview:
    """Return as many bytes of a file as `memory` has, from `start` on: in `memory`, if the source can. Raises as
    `exactly` does.
    """
    end = start + len(memory)
    if source.read_into is None:
        return exactly(source, start, end)
    _require_length(source, start, end, source.read_into(start, memory))
    return memory


def _require_length(source: Source, start: int, end: int, length: int) -> None:
    if length != end - start:
        raise LayoutError(
            f"{source.name}: ends at byte {start + length} instead of {source.size}; is it still being written?"
        )


def _require_names(names: list[str]) -> None:
    for name in names:
        if not is_safe_file_name(name) or len(name) > MAX_NAME_CHARS:
            raise LayoutError(
                f"{name}: not the name of a model file that may travel (safetensors, json, jinja, txt, model)"
            )
    for name, following in pairwise(names):
        if name == following:
            raise LayoutError(f"{name}: given twice")


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
                f"{source.name}: says that tensor {tensor!r} is in {file}, which is not so; is a shard missing?"
            )
