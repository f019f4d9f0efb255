"""The policy written out as a model directory, shard by shard, the chunks of its weights named on the way.

What always holds: names, shapes, order and bytes are the same on any number of ranks; an export holds the very tensors
that the directory held, under the same names, with the same other files, so whatever served the original can serve
the export; beside the model no rank holds more than is converted together, a tensor or the experts of one layer, and
what is just being written. The directory appears whole or not at all.

Shards are dealt to ranks in turn, and their tensors gathered in turn, so that all ranks write at the same time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, zip_longest
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from learner.artifacts.atomic_directory import TensorEntry, header_of, json_bytes, synced, write_bytes, write_json
from learner.artifacts.chunk_names import Cuts, cuts_of, num_threads, told
from learner.artifacts.model_directory import CONFIG, WEIGHTS, WEIGHTS_INDEX, BadModel
from learner.trainer_api.requests import ExportDtype
from learner.training.distributed.ranks import Ranks, new_shared_directory
from learner.training.distributed.sharding import whole
from learner.training.model.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Attached, description, entries, link_base
from learner.training.model.policy import Policy
from learner.training.model.tensor_mapping import Part, revert
from learner.training.model.weight_writer import DIGEST_BYTES, NotFinite, WeightFile, not_finite
from protocol.core.pipe import Arrays
from protocol.versions.safetensors_header import LayoutError

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

WAITING_BYTES = 1 << 25
"""Of what one rank alone has not yet written, when it takes the next unit: enough that no core waits for the others to
end a unit. Where tensors are gathered it would keep a third unit in memory.
"""


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


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What a new directory holds: its files, sorted, and the names of chunks that were computed while it was written,
    as `learner.artifacts.chunk_names` takes them (on rank 0).
    """

    files: list[str]
    names: Arrays


def export(policy: Policy, directory: Path, dtype: ExportDtype, max_shard_bytes: int) -> Exported:
    """Write the current weights as a model directory that loaders take.

    Equal weights give equal bytes. `directory` must not exist (FileExistsError); it appears whole or not at all.
    Raises OSError, BadModel, Elsewhere. All ranks take part.
    """
    if policy.attached is not None:
        return _export_adapter(policy, policy.attached, directory, dtype)
    tensors = policy.by_name
    shards = cut_shards([_unit(part, tensors, getattr(torch, dtype)) for part in policy.parts], max_shard_bytes)
    names = _shard_names(len(shards))
    small = {CONFIG: json_bytes(policy.directory.config_as(dtype)), **policy.directory.companions}
    if len(shards) > 1:
        small[WEIGHTS_INDEX] = json_bytes(_index(shards, names))
    plans = [_plan(name, shard) for name, shard in zip(names, shards, strict=True)]
    with policy.ranks.agreeing():
        try:
            cuts = cuts_of({plan.name: (plan.header, plan.size_bytes) for plan in plans}, small)
        except LayoutError as error:
            raise BadModel(f"{policy.directory.path} cannot be published: {error}") from error
    with new_shared_directory(policy.ranks, directory) as partial:
        with policy.ranks.agreeing():
            if policy.ranks.is_first:
                for name, data in small.items():
                    write_bytes(partial / name, data)
        digests = _write(policy, plans, cuts, partial, tensors)
        with policy.ranks.agreeing():
            found = told(partial, cuts, digests) if policy.ranks.is_first else {}
    return Exported(files=sorted([*small, *names]), names=found)


def _export_adapter(policy: Policy, attached: Attached, directory: Path, dtype: ExportDtype) -> Exported:
    """The base model's own files, and the adapter beside them."""
    parameters, wanted = dict(policy.parameters), getattr(torch, dtype)
    listed = list(entries(parameters, wanted, DTYPE_NAMES[wanted]))
    with new_shared_directory(policy.ranks, directory) as partial:
        values = [whole(parameters[name], wanted).cpu().contiguous().reshape(-1) for name, _ in listed]
        with policy.ranks.agreeing():
            for (name, _), flat in zip(listed, values, strict=True):
                if not_finite(flat):
                    raise BadModel(f"{name!r} holds values that are not finite as {dtype}; take an earlier checkpoint")
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
            files = sorted(file.name for file in partial.iterdir())
    return Exported(files=files, names={})


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


def _unit(part: Part, tensors: Mapping[str, Tensor], wanted: torch.dtype) -> Unit:
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


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """A shard that is to be written."""

    name: str
    header: bytes
    units: Sequence[Unit]

    @property
    def size_bytes(self) -> int:
        return len(self.header) + sum(unit.size_bytes for unit in self.units)


def _plan(name: str, units: Sequence[Unit]) -> _Plan:
    return _Plan(name=name, header=header_of([entry for unit in units for entry in unit.entries]), units=units)


def _write(
    policy: Policy, plans: Sequence[_Plan], cuts: Cuts, directory: Path, tensors: Mapping[str, Tensor]
) -> dict[str, NDArray[np.uint8]]:
    """Gather every unit on all ranks, one after the other; whoever the shard was dealt to writes it meanwhile. Returns
    the digests of each file's pieces.
    """
    ranks = policy.ranks
    with _Writer(directory, cuts, WAITING_BYTES if ranks.count == 1 else 0) as writer:
        for number, unit in _in_turn([plan.units for plan in plans], ranks):
            found = {target: _gathered(tensors[target], unit) for target in unit.part.targets}
            if number % ranks.count == ranks.number:
                writer.take(plans[number], unit, revert(policy.model, unit.part, found))
            found.clear()
        with ranks.agreeing():
            mine = writer.finish()
    empty = {name: np.zeros((len(ends), DIGEST_BYTES), np.uint8) for name, ends in cuts.items()}
    return {name: ranks.combine(mine.get(name, empty[name])) for name in sorted(cuts)}


def _gathered(tensor: Tensor, unit: Unit) -> Tensor:
    """All of `tensor`; where it is here already, and goes out as it is, the writing converts it."""
    if unit.part.converter is None and not isinstance(tensor, DTensor):
        return tensor.detach()
    return whole(tensor, unit.dtype)


def _in_turn(shards: Sequence[Sequence[Unit]], ranks: Ranks) -> Iterator[tuple[int, Unit]]:
    """Units with their shard's number: of as many shards as there are ranks one unit each, again and again."""
    for first in range(0, len(shards), ranks.count):
        numbers = range(first, min(first + ranks.count, len(shards)))
        columns = ([(number, unit) for unit in shards[number]] for number in numbers)
        yield from (one for one in chain.from_iterable(zip_longest(*columns)) if one is not None)


class _Writer:
    """Writes shards one after the other, one unit behind; what fails is raised by `finish`. So many bytes of a unit may
    be waiting when the next is taken.
    """

    def __init__(self, directory: Path, cuts: Cuts, waiting_bytes: int) -> None:
        self._directory, self._cuts, self._waiting_bytes = directory, cuts, waiting_bytes
        self._threads = ThreadPoolExecutor(num_threads())
        self._file: WeightFile | None = None
        self._name = ""
        self._digests: dict[str, NDArray[np.uint8]] = {}
        self._failed: OSError | NotFinite | None = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        if self._file is not None:
            self._file.close()

    def take(self, plan: _Plan, unit: Unit, tensors: dict[str, Tensor]) -> None:
        """Write the next unit of a shard once the one before is written."""
        if self._failed is None:
            try:
                self._take(plan, unit, tensors)
            except (OSError, NotFinite) as error:
                # Later, when all ranks have come through their collectives.
                self._failed = error

    def finish(self) -> dict[str, NDArray[np.uint8]]:
        """Flush everything to the disk; return the digests of each file's pieces. Raises OSError, BadModel."""
        try:
            if self._failed is not None:
                raise self._failed
            self._close()
        except NotFinite as error:
            raise BadModel(f"{error}, so no node could generate with it; go on from an earlier checkpoint") from error
        return self._digests

    def _take(self, plan: _Plan, unit: Unit, tensors: dict[str, Tensor]) -> None:
        if self._file is None or plan.name != self._name:
            self._close()
            self._name = plan.name
            self._file = WeightFile(self._directory / plan.name, plan.header, self._cuts[plan.name], self._threads)
        self._file.settle(self._waiting_bytes)
        for entry in unit.entries:
            self._file.add(entry.name, tensors.pop(entry.name), unit.dtype)

    def _close(self) -> None:
        if self._file is not None:
            self._digests[self._name] = self._file.finish()
        self._file = None
