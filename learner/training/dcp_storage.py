"""Store torch.distributed.checkpoint's tensors without pickle: a safetensors file from each rank, and an index.

DCP's own `FileSystemWriter` pickles its metadata and its tensors. Its `HuggingFaceStorageWriter` writes no index when
it writes distributed, so a half-written checkpoint looks like a whole one.

    rank-00000.safetensors   the slices of rank 0, by the name of the tensor that each belongs to
    index                    {name: {"dtype", "shape", "slices": [{"file", "start", "offsets", "sizes"}]}}, in JSON

Invariants:

- A rank writes only the slices that it holds, one at a time, from a snapshot of them.
- A checkpoint that some number of ranks wrote can be read by any other number.
- Reading executes nothing.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from learner.artifacts.atomic_directory import TensorEntry, header_of, synced
from learner.artifacts.file_digests import HashedWriter
from learner.training.snapshot import Kept

PIECE_BYTES = 1 << 22
"""Bytes that are read from a snapshot together: copied in a millisecond, and enough to hash while writing."""

DTYPES = {"F32": torch.float32, "U8": torch.uint8}
"""All dtypes in a trainer's state."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's piece of a tensor: its first byte in `file`, its `offsets` and `sizes` in the whole tensor."""

    file: str
    start: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of a checkpoint: `dtype` as safetensors calls it, and where its slices are."""

    dtype: str
    shape: tuple[int, ...]
    slices: tuple[Slice, ...]

    @property
    def is_whole(self) -> bool:
        """Whether its slices make up the tensor."""
        return sum(prod(piece.sizes) for piece in self.slices) == prod(self.shape)


Index = Mapping[str, Listed]


class _OfOne:
    """The base of writer and reader, each of which is made for the directory of one checkpoint."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: no state is kept from one checkpoint to the next."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: an object is made with its directory, never by name."""
        return False


class TensorFilesWriter(_OfOne, StorageWriter):
    """Writes into `directory`, which exists. Afterwards `index` is set on rank 0, and `written` on each rank: the file
    that it wrote and the digests of its blocks.

    `kept` holds this rank's slices by the names of their tensors. Those that other ranks write are released.
    """

    def __init__(self, directory: Path, kept: Mapping[str, Kept]) -> None:
        self.index: dict[str, Listed] = {}
        self.written: tuple[str, list[str]] = "", []
        self._directory = directory
        self._kept = kept

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the directory exists already."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Assign a file to every rank."""
        return [replace(plan, storage_data=f"rank-{number:05d}.safetensors") for number, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's slices. Raises OSError."""
        entries = [_entry(item) for item in plan.items]
        header = header_of(entries)
        starts = [len(header) + sum(entry.size_bytes for entry in entries[:i]) for i in range(len(entries))]
        for name in self._kept.keys() - {item.index.fqn for item in plan.items}:
            self._kept[name].release()
        with synced(self._directory / plan.storage_data) as file, HashedWriter(file) as writer:
            writer.write(header)
            buffer = np.empty(PIECE_BYTES, np.uint8)
            for item in plan.items:
                _write(writer, self._kept[item.index.fqn], buffer)
            file.flush()
        self.written = plan.storage_data, writer.digests
        done: Future[list[WriteResult]] = Future()
        done.set_result(
            [
                WriteResult(index=item.index, size_in_bytes=entry.size_bytes, storage_data=(plan.storage_data, start))
                for item, entry, start in zip(plan.items, entries, starts, strict=True)
            ]
        )
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Fill the index with the place of every slice."""
        places = {(one.index.fqn, tuple(one.index.offset or ())): one.storage_data for some in results for one in some}
        for name, found in metadata.state_dict_metadata.items():
            assert isinstance(found, TensorStorageMetadata), "the state is tensors alone"
            slices = [
                Slice(
                    file=places[name, tuple(chunk.offsets)][0],
                    start=places[name, tuple(chunk.offsets)][1],
                    offsets=tuple(chunk.offsets),
                    sizes=tuple(chunk.sizes),
                )
                for chunk in found.chunks
                if prod(chunk.sizes)
            ]
            self.index[name] = Listed(
                dtype=NAMES[found.properties.dtype], shape=tuple(found.size), slices=tuple(slices)
            )


def _write(writer: HashedWriter, kept: Kept, buffer: NDArray[np.uint8]) -> None:
    """Write all of `kept` through `buffer`, so that training may wait for the copy of a piece, never for the disk."""
    step = len(buffer) // kept.dtype.itemsize
    for first in range(0, kept.numel, step):
        with kept.reading(first, min(first + step, kept.numel)) as values:
            piece = buffer[: values.nbytes]
            piece[:] = values.view(torch.uint8).numpy()  # numpy copies without starting threads
        writer.write(piece.data)


def _entry(item: Any) -> TensorEntry:
    chunk, dtype = item.tensor_data.chunk, item.tensor_data.properties.dtype
    size_bytes = prod(chunk.sizes) * dtype.itemsize
    return TensorEntry(name=item.index.fqn, dtype=NAMES[dtype], shape=tuple(chunk.sizes), size_bytes=size_bytes)


@dataclass
class TensorFilesReader(_OfOne, StorageReader):
    """Reads from `directory` what `index` lists."""

    directory: Path
    index: Index

    def read_metadata(self, *args: Any) -> Metadata:
        """Return the index in DCP's form."""
        return Metadata(state_dict_metadata={name: _metadata(listed) for name, listed in self.index.items()})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy this rank's part of each slice. Raises OSError."""
        maps: dict[str, mmap.mmap] = {}
        for item in plan.items:
            piece = self._slice(item.storage_index)
            if piece.file not in maps:
                with (self.directory / piece.file).open("rb") as file:
                    maps[piece.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            stored = torch.frombuffer(
                maps[piece.file],
                dtype=DTYPES[self.index[item.storage_index.fqn].dtype],
                count=prod(piece.sizes),
                offset=piece.start,
            ).reshape(piece.sizes)
            for dim, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                stored = stored.narrow(dim, offset, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(stored)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _slice(self, wanted: MetadataIndex) -> Slice:
        offsets = tuple(wanted.offset or ())
        return next(piece for piece in self.index[wanted.fqn].slices if piece.offsets == offsets)


def _metadata(listed: Listed) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=DTYPES[listed.dtype]),
        size=torch.Size(listed.shape),
        chunks=[
            ChunkStorageMetadata(offsets=torch.Size(piece.offsets), sizes=torch.Size(piece.sizes))
            for piece in listed.slices
        ],
    )
