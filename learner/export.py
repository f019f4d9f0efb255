"""The policy written out as a model directory, shard by shard.

What always holds: names, shapes, order and bytes are the same on any number of ranks; an export holds the very tensors
that the directory held, under the same names, with the same other files, so whatever served the original can serve
the export; beside the model no rank holds more than is converted together, a tensor or the experts of one layer, and
what is just being written. The directory appears whole or not at all.

Shards are dealt to ranks in turn, and their tensors gathered in turn, so that all ranks write at the same time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, zip_longest
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learner.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Attached, description, entries, link_base
from learner.correspondence import Part, revert
from learner.directories import CONFIG, WEIGHTS, WEIGHTS_INDEX
from learner.durable import TensorEntry, header_of, synced, write_bytes, write_json
from learner.policy import Policy
from learner.ranks import Ranks, new_shared_directory
from learner.requests import ExportDtype
from learner.sharding import whole

DTYPE_NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What is gathered and converted together: a part of the model, and the tensors that it becomes in the file."""

    part: Part
    dtype: torch.dtype
    entries: tuple[TensorEntry, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return sum(entry.size_bytes for entry in self.entries)


def export(policy: Policy, directory: Path, dtype: ExportDtype, max_shard_bytes: int) -> list[str]:
    """Write the current weights as a model directory that loaders take, and return its file names.

    Equal weights give equal bytes. `directory` must not exist (FileExistsError); it appears whole or not at all.
    Raises OSError. All ranks take part.
    """
    if policy.attached is not None:
        return _export_adapter(policy, policy.attached, directory, dtype)
    tensors = dict(policy.tensors())
    shards = cut_shards([_unit(part, tensors, getattr(torch, dtype)) for part in policy.parts], max_shard_bytes)
    names = _shard_names(len(shards))
    with new_shared_directory(policy.ranks, directory) as partial:
        with policy.ranks.agreeing():
            if policy.ranks.is_first:
                write_json(partial / CONFIG, policy.directory.config_as(dtype))
                for name, data in policy.directory.companions.items():
                    write_bytes(partial / name, data)
                if len(shards) > 1:
                    write_json(partial / WEIGHTS_INDEX, _index(shards, names))
        _write(policy, shards, [partial / name for name in names], tensors)
        return sorted(file.name for file in partial.iterdir())


def _export_adapter(policy: Policy, attached: Attached, directory: Path, dtype: ExportDtype) -> list[str]:
    """The base model's own files, and the adapter beside them."""
    parameters, wanted = dict(policy.parameters), getattr(torch, dtype)
    listed = list(entries(parameters, wanted, DTYPE_NAMES[wanted]))
    with new_shared_directory(policy.ranks, directory) as partial:
        values = [whole(parameters[name], wanted).cpu().contiguous().reshape(-1) for name, _ in listed]
        with policy.ranks.agreeing():
            if policy.ranks.is_first:
                link_base(policy.directory, partial)
                shutil.copyfile(policy.directory.path / CONFIG, partial / CONFIG)
                for name, data in policy.directory.companions.items():
                    write_bytes(partial / name, data)
                write_json(partial / ADAPTER_CONFIG, description(attached.lora, parameters))
                with synced(partial / ADAPTER_WEIGHTS) as file:
                    file.write(header_of([entry for _, entry in listed]))
                    for flat in values:
                        file.write(flat.view(torch.uint8).numpy().data)
        return sorted(file.name for file in partial.iterdir())


def cut_shards(units: Sequence[Unit], max_shard_bytes: int) -> list[list[Unit]]:
    """Cut a list of units, in order, into shards of at most `max_shard_bytes`; a larger unit is a shard of its own."""
    shards: list[list[Unit]] = [[]]
    size = 0
    for unit in units:
        if shards[-1] and size + unit.size_bytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(unit)
        size += unit.size_bytes
    return shards


def _unit(part: Part, tensors: dict[str, Tensor], wanted: torch.dtype) -> Unit:
    stored = tensors[part.targets[0]].dtype
    dtype = wanted if stored.is_floating_point else stored
    entries = tuple(
        TensorEntry(name=name, dtype=DTYPE_NAMES[dtype], shape=shape, size_bytes=prod(shape) * dtype.itemsize)
        for name, shape in part.shapes.items()
    )
    return Unit(part=part, dtype=dtype, entries=entries)


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return [WEIGHTS]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _index(shards: Sequence[Sequence[Unit]], names: Sequence[str]) -> dict[str, object]:
    places = {
        entry.name: name for shard, name in zip(shards, names, strict=True) for unit in shard for entry in unit.entries
    }
    total = sum(unit.size_bytes for shard in shards for unit in shard)
    return {"metadata": {"total_size": total}, "weight_map": places}


def _write(policy: Policy, shards: list[list[Unit]], paths: list[Path], tensors: dict[str, Tensor]) -> None:
    """Gather every unit on all ranks, one after the other; whoever the shard was dealt to writes it meanwhile."""
    with _Writer() as writer:
        for number, unit in _in_turn(shards, policy.ranks):
            found = {target: whole(tensors[target], unit.dtype) for target in unit.part.targets}
            if number % policy.ranks.count == policy.ranks.number:
                writer.take(paths[number], shards[number], unit, revert(policy.model, unit.part, found))
        with policy.ranks.agreeing():
            writer.finish()


def _in_turn(shards: Sequence[Sequence[Unit]], ranks: Ranks) -> Iterator[tuple[int, Unit]]:
    """Units with their shard's number: of as many shards as there are ranks one unit each, again and again."""
    for first in range(0, len(shards), ranks.count):
        numbers = range(first, min(first + ranks.count, len(shards)))
        columns = ([(number, unit) for unit in shards[number]] for number in numbers)
        yield from (one for one in chain.from_iterable(zip_longest(*columns)) if one is not None)


class _Writer:
    """Writes shards one after the other on a thread of its own, one unit behind; what fails is raised by `finish`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None
        self._file = -1
        self._path: Path | None = None
        self._failed: OSError | None = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self._close()

    def take(self, path: Path, shard: Sequence[Unit], unit: Unit, tensors: dict[str, Tensor]) -> None:
        """Write the next unit of the shard at `path` once the one before is written."""
        self._settle()
        if self._failed is None:
            self._pending = self._thread.submit(self._write, path, shard, unit, tensors)

    def finish(self) -> None:
        """Flush everything to the disk. Raises OSError."""
        self._settle()
        if self._failed is not None:
            raise self._failed
        self._sync()

    def _settle(self) -> None:
        pending, self._pending = self._pending, None
        try:
            if pending is not None:
                pending.result()
        except OSError as error:
            # Later, when all ranks have come through their collectives.
            self._failed = error

    def _write(self, path: Path, shard: Sequence[Unit], unit: Unit, tensors: dict[str, Tensor]) -> None:
        if path != self._path:
            self._sync()
            self._path = path
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            self._append(header_of([entry for unit in shard for entry in unit.entries]))
        for entry in unit.entries:
            flat = tensors.pop(entry.name).cpu().contiguous().reshape(-1)
            self._append(flat.view(torch.uint8).numpy())

    def _append(self, data: bytes | NDArray[np.uint8]) -> None:
        view = memoryview(data)  # type: ignore[arg-type]  # numpy's arrays are buffers
        while view:
            view = view[os.write(self._file, view) :]

    def _sync(self) -> None:
        if self._file >= 0:
            os.fsync(self._file)
        self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
