"""Make and apply exact patches, which turn the files of one version (the base) into those of another (the target).

A patch goes through the target's files in order of name, and through each from its first byte to its last, one segment
at a time. It encodes a tensor as the difference from the base's tensor of the same name, dtype and shape. That tensor
may lie in any file, so sharding and the order of tensors may change. A tensor without such a counterpart is encoded as
the difference from zeros. Bytes outside tensors (a weight file's header, all of any other file) are treated as a tensor
named after the file. Nothing here opens a file. docs/reference/protocol.md, "Patches", specifies the bytes.

Invariants:

- The base's files and the patch give the target's files byte for byte.
- The patch, its pieces and their order do not depend on the number of threads.
- Neither end has more than a few segments per thread in memory, for any size of the model.
- A patch proves nothing: a node that applies one checks every chunk that it rebuilt against the signed manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from protocol.core.codec import Count, Label, Message, decode, encode
from protocol.core.errors import Fault, PeerError
from protocol.core.limits import KIB, MAX_FILE_BYTES, MAX_FILES, MAX_PATCH_HEAD_BYTES, PATCH_SEGMENT_BYTES
from protocol.patches.byte_streams import number, take_number
from protocol.patches.segment_decoder import Segment, SegmentReader
from protocol.patches.segment_encoder import SegmentEncoder
from protocol.patches.segment_format import Buffer, Scratch, malformed
from protocol.patches.worker_pool import Shelf, WorkerPool
from protocol.versions.chunking import WEIGHT_SUFFIX, FilePlan, Source, exactly, exactly_in, plan_files
from protocol.versions.safetensors_header import LENGTH_BYTES, MAX_HEADER_BYTES, LayoutError, Span, Table, read_table

MAGIC = b"volery patch 1\n"
"""The first bytes of every patch. The digit is the version of the format."""

WINDOW_BYTES = 64 * KIB
"""Bytes of a patch that are read at a time. A segment consists of about fifty small parts, and each read takes 5 us."""

PLAIN = "U8"
"""The dtype that stands for bytes outside tensors."""


class PatchFile(msgspec.Struct, frozen=True, array_like=True):
    """One file of the target. Its first `plain` bytes hold no tensors: a weight file's header, or all of the file."""

    name: Label
    size: Annotated[int, Meta(ge=0, le=MAX_FILE_BYTES)]
    plain: Count


class PatchHead(Message, frozen=True, kw_only=True):
    """The part after the magic: the target's files, in the order of their segments."""

    files: Annotated[list[PatchFile], Meta(max_length=MAX_FILES)]


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """Bytes of the target: those of `file` from `offset` on.

    `data` belongs to the receiver. When it no longer needs it, it may call `release`, once; then later pieces reuse the
    memory.
    """

    file: str
    offset: int
    data: memoryview
    release: Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Bytes of a file that are encoded alike: one tensor, or bytes outside tensors. `base` is as long; None: zeros."""

    dtype: str
    start: int
    end: int
    base: tuple[Source, int] | None

    def segments(self) -> Iterator[tuple[int, int]]:
        """Yield (start, size) of each segment, in order, counted from the beginning of the file."""
        for start in range(self.start, self.end, PATCH_SEGMENT_BYTES):
            yield start, min(PATCH_SEGMENT_BYTES, self.end - start)

    def base_of(self, start: int, memory: memoryview) -> Buffer | None:
        """Return the base's bytes for the segment at `start`, as many as `memory` has. They may be in `memory`."""
        if self.base is None:
            return None
        source, offset = self.base
        return exactly_in(source, offset + start - self.start, memory)


class _Base:
    """The base's files: the places of the tensors and plain bytes with which runs of the target are compared."""

    def __init__(self, plans: Iterable[FilePlan]) -> None:
        self._tensors: dict[tuple[str, str, tuple[int, ...]], tuple[Source, int]] = {}
        self._plain: dict[tuple[str, int], tuple[Source, int]] = {}
        for plan in plans:
            self._plain[plan.source.name, _plain_bytes(plan)] = plan.source, 0
            for span in plan.table.spans if plan.table else ():
                self._tensors[span.name, span.dtype, span.shape] = plan.source, span.start

    def plain(self, file: PatchFile) -> _Run:
        """Return the run of bytes at the beginning of `file` that hold no tensors."""
        return _Run(dtype=PLAIN, start=0, end=file.plain, base=self._plain.get((file.name, file.plain)))

    def tensor(self, span: Span) -> _Run:
        """Return the run of one tensor of the target."""
        base = self._tensors.get((span.name, span.dtype, span.shape))
        return _Run(dtype=span.dtype, start=span.start, end=span.end, base=base)


def encode_patch(base: Iterable[Source], target: Iterable[Source], pool: WorkerPool | None = None) -> Generator[bytes]:
    """Yield the bytes of the patch from the files `base` to the files `target`, about a segment at a time.

    The threads of `pool`, by default the caller's own, read and compare segments. The caller may stop early if the
    patch grows too long to be useful. Raises LayoutError for files that cannot be published, or become shorter
    meanwhile, and any error of `read`.
    """
    known, plans = _Base(plan_files(base)), plan_files(target)
    files = [PatchFile(plan.source.name, plan.source.size, _plain_bytes(plan)) for plan in plans]
    head = encode(PatchHead(files=files))
    yield MAGIC + number(len(head)) + head
    yield from (pool or WorkerPool()).in_order(_comparisons(known, plans, files))


def _comparisons(known: _Base, plans: Sequence[FilePlan], files: Sequence[PatchFile]) -> Iterator[Callable[[], bytes]]:
    """Yield a job for each segment of a patch."""
    shelf = Shelf(_Comparer)

    def compare(run: _Run, source: Source, start: int, size: int) -> bytes:
        with shelf.borrowed() as comparer:
            return comparer.compare(run, source, start, size)

    for plan, file in zip(plans, files, strict=True):
        for run in (known.plain(file), *map(known.tensor, plan.table.spans if plan.table else ())):
            for start, size in run.segments():
                yield partial(compare, run, plan.source, start, size)


class _Comparer:
    """Reads and compares segments, in memory that it reuses. Two threads must not use one at the same time."""

    def __init__(self) -> None:
        self._encoder = SegmentEncoder()
        self._old, self._new = _memory(), _memory()

    def compare(self, run: _Run, target: Source, start: int, size: int) -> bytes:
        """Return the encoded segment of `target` at `start`, which belongs to `run`."""
        old = run.base_of(start, self._old[:size])
        return self._encoder.encode(run.dtype, old, exactly_in(target, start, self._new[:size]))


def _memory() -> memoryview:
    """Return memory for one segment."""
    return np.empty(PATCH_SEGMENT_BYTES, np.uint8).data


def apply_patch(
    base: Iterable[Source], patch: Source, sizes: Mapping[str, int], pool: WorkerPool | None = None
) -> Generator[Rebuilt]:
    """Yield all bytes of the target's files, in order, given the base's files and a patch.

    The caller's thread reads the patch. The threads of `pool`, by default the caller's own, read and change the base.
    `sizes` maps the names of the target's files to their sizes in the manifest; no other file is ever yielded. After an
    error, all pieces that were yielded are invalid. Raises PeerError if the patch is invalid or does not fit this base
    or this target, LayoutError if a file has become shorter, and any error of `read`.
    """
    with _layout_blamed():
        known = _Base(plan_files(base))
    yield from (pool or WorkerPool()).in_order(_Application(known, patch, sizes).jobs())


class _Place:
    """A segment of the target, in memory from `shelf`. Its base is read into that memory once, at the first access."""

    def __init__(self, run: _Run, start: int, size: int, shelf: Shelf[memoryview]) -> None:
        self.start = start
        self._run = run
        self._size = size
        self._shelf = shelf
        self._memory: memoryview | None = None

    def base(self) -> Buffer | None:
        """Return the base's bytes; None stands for zeros."""
        return None if self._run.base is None else self.filled()

    def filled(self) -> memoryview:
        """Return the base's bytes, or zeros, in memory that may be changed."""
        if self._memory is not None:
            return self._memory[: self._size]
        self._memory = self._shelf.take()
        data = self._memory[: self._size]
        base = self._run.base_of(self.start, data)
        if base is not data:  # numpy copies without the interpreter's lock
            np.copyto(np.frombuffer(data, np.uint8), 0 if base is None else np.frombuffer(base, np.uint8))
        return data

    def release(self) -> None:
        """Give the memory back to the shelf."""
        if self._memory is not None:
            self._shelf.put(self._memory)
            self._memory = None


class _Application:
    """One patch that is being applied: the base, and how far the patch was read."""

    def __init__(self, base: _Base, patch: Source, sizes: Mapping[str, int]) -> None:
        self._base = base
        self._patch = patch
        self._sizes = sizes
        self._reached = 0
        self._window = memoryview(b"")  # bytes of the patch that were read and not yet taken
        self._scratches = Shelf(Scratch)
        self._reader = SegmentReader(self._scratches)
        self._memory = Shelf(_memory)

    def jobs(self) -> Iterator[Callable[[], Rebuilt]]:
        """Yield a job for each segment, after reading its part of the patch."""
        for file in self._head().files:
            plain = self._segments(file, self._base.plain(file))
            if file.name.endswith(WEIGHT_SUFFIX):
                yield from self._weights(file, plain)
            else:
                yield from plain
        if left := self._patch.size - self._reached:
            raise malformed(f"{left} bytes are left over")

    def _weights(self, file: PatchFile, header: Iterator[Callable[[], Rebuilt]]) -> Iterator[Callable[[], Rebuilt]]:
        """Yield a job for each segment of a weight file. The header is made here, because it lists the tensors that
        follow."""
        octets = bytearray()
        for job in header:
            piece = job()
            octets += piece.data
            yield partial(_itself, piece)
        for span in _table(file, bytes(octets)).spans:
            yield from self._segments(file, self._base.tensor(span))

    def _segments(self, file: PatchFile, run: _Run) -> Iterator[Callable[[], Rebuilt]]:
        for start, size in run.segments():
            place = _Place(run, start, size, self._memory)
            segment = self._reader.read(run.dtype, size, self._take, place.base)
            yield partial(self._rebuild, file, place, segment)

    def _rebuild(self, file: PatchFile, place: _Place, segment: Segment) -> Rebuilt:
        data = place.filled()
        with self._scratches.borrowed() as scratch:
            segment.make(data, scratch)
        return Rebuilt(file=file.name, offset=place.start, data=data, release=place.release)

    def _head(self) -> PatchHead:
        if bytes(self._take(len(MAGIC))) != MAGIC:
            raise PeerError(Fault.INCOMPATIBLE, "patch: it does not begin as a patch of version 1 does")
        length = take_number(self._take)
        if length > MAX_PATCH_HEAD_BYTES:
            raise PeerError(Fault.OVERSIZED, f"patch: a head of {length} bytes, at most {MAX_PATCH_HEAD_BYTES} allowed")
        head: PatchHead = decode(PatchHead, self._take(length), MAX_PATCH_HEAD_BYTES)
        # Compared as lists, not dicts: a file that is listed twice would be written twice.
        if sorted((file.name, file.size) for file in head.files) != sorted(self._sizes.items()):
            raise malformed("its files are not those of the manifest")
        for file in head.files:
            _require_plain(file)
        return head

    def _take(self, size: int) -> Buffer:
        if size > self._patch.size - self._reached:
            raise malformed(f"ends at byte {self._patch.size}, within a part of {size} bytes")
        if size > len(self._window):
            end = min(self._patch.size, self._reached + max(size, WINDOW_BYTES))
            self._window = memoryview(exactly(self._patch, self._reached, end))
        self._reached += size
        taken, self._window = self._window[:size], self._window[size:]
        return taken


def _itself(piece: Rebuilt) -> Rebuilt:
    return piece


def _plain_bytes(plan: FilePlan) -> int:
    return plan.table.header_bytes if plan.table else plan.source.size


def _require_plain(file: PatchFile) -> None:
    if file.name.endswith(WEIGHT_SUFFIX):
        if file.plain > min(file.size, LENGTH_BYTES + MAX_HEADER_BYTES):
            raise PeerError(Fault.OVERSIZED, f"patch: a header of {file.plain} bytes in {file.name} is too long")
    elif file.plain != file.size:
        raise malformed(f"{file.name} has no tensors, so all of its {file.size} bytes are plain, not {file.plain}")


def _table(file: PatchFile, header: bytes) -> Table:
    with _layout_blamed():
        table = read_table(file.name, file.size, lambda offset, size: header[offset : offset + size])
    if table.header_bytes != file.plain:
        raise malformed(f"the header of {file.name} has {table.header_bytes} bytes, not {file.plain}")
    return table


@contextmanager
def _layout_blamed() -> Iterator[None]:
    """Turn a LayoutError into a PeerError: a bad layout of verified files is the fault of the peer that signed them."""
    try:
        yield
    except LayoutError as error:
        raise malformed(str(error)) from error
