"""Write the policy as a model directory, shard by shard, and name the chunks of its weights meanwhile.

It is written from a snapshot (`learner.training.snapshot`), on any thread, so training may go on. That takes at most 4
bytes a parameter on a CPU; for a GPU it takes the size of the export on the host. Shards are dealt to ranks in turn,
and their tensors gathered in turn, so that all ranks write at the same time.

Invariants:

- Names, shapes, order and bytes are the same on any number of ranks.
- An export holds the same tensors as the directory, under the same names, with the same other files, so a program that
  served the original can serve the export.
- Besides the model and its snapshot, a rank holds only what is converted together (a tensor, or the experts of one
  layer) and what is being written.
- The directory appears whole or not at all.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from learner.artifacts.atomic_directory import TensorEntry, header_of, json_bytes, synced, write_bytes, write_json
from learner.artifacts.chunk_names import Cuts, chunk_names_of, cuts_of, num_threads
from learner.artifacts.model_directory import CONFIG, WEIGHTS, WEIGHTS_INDEX, BadModel
from learner.trainer_api.requests import ExportDtype
from learner.training.distributed.ranks import Ranks, new_shared_directory
from learner.training.distributed.sharding import gathered, local
from learner.training.model.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Attached, description, entries, link_base
from learner.training.model.merging import merged
from learner.training.model.policy import Policy
from learner.training.model.tensor_mapping import Part, revert
from learner.training.model.weight_writer import DIGEST_BYTES, NotFinite, WeightFile, copied, not_finite
from learner.training.snapshot import Crossing, Kept, Snapshot
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
"""Bytes that a single rank may still have to write when it takes the next unit: enough that no core waits for the
others to end a unit. If tensors are gathered, it would keep a third unit in memory.
"""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Tensors that are gathered and converted together: a part of the model, and the tensors that it becomes in the
    file. `kept` has this rank's slices of the part's targets, in their order.
    """

    part: Part
    dtype: torch.dtype
    entries: tuple[TensorEntry, ...]
    kept: tuple[Kept, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size in the file."""
        return sum(entry.size_bytes for entry in self.entries)


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The content of a new directory: its sorted files, and (on rank 0) the names of chunks that were computed while it
    was written, as `learner.artifacts.chunk_names` takes them.
    """

    files: list[str]
    names: Arrays


def export(policy: Policy, directory: Path, dtype: ExportDtype, max_shard_bytes: int) -> Exported:
    """Write the current weights as a model directory for loaders. See `write_export`."""
    snapshot = take_snapshot(policy, dtype)
    try:
        return write_export(policy, snapshot, directory, dtype, max_shard_bytes)
    finally:
        snapshot.close()


def take_snapshot(
    policy: Policy, dtype: ExportDtype, crossing: Crossing | None = None, *, merge: bool = False
) -> Snapshot:
    """Return a snapshot of what an export as `dtype` writes: this rank's slices, for `write_export`."""
    if merge and policy.attached is not None:
        targets = [target for part in policy.parts for target in part.targets]
        return Snapshot(merged(policy, targets, getattr(torch, dtype)), crossing=crossing)
    tensors = _exported(policy)
    dtypes = [_stored_as(tensor, getattr(torch, dtype)) for tensor in tensors]
    return Snapshot([local(tensor.detach()) for tensor in tensors], dtypes, crossing)


def _exported(policy: Policy) -> list[Tensor]:
    """Return the tensors of an export, in the order of its snapshot."""
    if policy.attached is not None:
        parameters = dict(policy.parameters)
        return [parameters[name] for name in sorted(parameters)]  # as `lora.entries` lists them
    return [policy.by_name[target] for part in policy.parts for target in part.targets]


def _stored_as(tensor: Tensor, wanted: torch.dtype) -> torch.dtype:
    return wanted if tensor.is_floating_point() else tensor.dtype


@torch.no_grad()
def write_export(
    policy: Policy,
    snapshot: Snapshot,
    directory: Path,
    dtype: ExportDtype,
    max_shard_bytes: int,
    *,
    merge: bool = False,
) -> Exported:
    """Write a `snapshot` of `take_snapshot` as a model directory for loaders. Call it on all ranks, on any thread. With
    `merge`, which both calls must have, an adapter is in the weights and has no file of its own.

    Equal weights give equal bytes. `directory` must not exist (FileExistsError); it appears whole or not at all.
    Raises OSError, BadModel, Elsewhere.
    """
    ranks = policy.ranks.exporting()
    if policy.attached is not None and not merge:
        return _write_adapter(policy, policy.attached, ranks, snapshot, directory, dtype)
    tensors, kept = policy.by_name, iter(snapshot.kept)
    units = [_unit(part, tensors, getattr(torch, dtype), kept) for part in policy.parts]
    shards = cut_shards(units, max_shard_bytes)
    names = _shard_names(len(shards))
    small = {CONFIG: json_bytes(policy.directory.config_as(dtype)), **policy.directory.companions}
    if len(shards) > 1:
        small[WEIGHTS_INDEX] = json_bytes(_index(shards, names))
    plans = [_plan(name, shard) for name, shard in zip(names, shards, strict=True)]
    with ranks.agreeing():
        try:
            cuts = cuts_of({plan.name: (plan.header, plan.size_bytes) for plan in plans}, small)
        except LayoutError as error:
            raise BadModel(f"{policy.directory.path} cannot be published: {error}") from error
    with new_shared_directory(ranks, directory) as partial:
        with ranks.agreeing():
            if ranks.is_first:
                for name, data in small.items():
                    write_bytes(partial / name, data)
        digests = _write(policy, ranks, plans, cuts, partial)
        with ranks.agreeing():
            found = chunk_names_of(partial, cuts, digests) if ranks.is_first else {}
    return Exported(files=sorted([*small, *names]), names=found)


def _write_adapter(
    policy: Policy, attached: Attached, ranks: Ranks, snapshot: Snapshot, directory: Path, dtype: ExportDtype
) -> Exported:
    """Write the base model's own files, and the adapter beside them."""
    parameters, wanted = dict(policy.parameters), getattr(torch, dtype)
    listed = list(entries(parameters, wanted, DTYPE_NAMES[wanted]))
    with new_shared_directory(ranks, directory) as partial:
        values = [
            gathered(copied(kept, wanted), parameters[name], ranks, 0)
            for (name, _), kept in zip(listed, snapshot.kept, strict=True)
        ]
        with ranks.agreeing():
            for (name, _), tensor in zip(listed, values, strict=True):
                if tensor is not None and not_finite(tensor):
                    raise BadModel(f"{name!r} holds values that are not finite as {dtype}; take an earlier checkpoint")
            if ranks.is_first:
                link_base(policy.directory, partial)
                shutil.copyfile(policy.directory.path / CONFIG, partial / CONFIG)
                for name, data in policy.directory.companions.items():
                    write_bytes(partial / name, data)
                write_json(partial / ADAPTER_CONFIG, description(attached.lora, parameters))
                with synced(partial / ADAPTER_WEIGHTS) as file:
                    file.write(header_of([entry for _, entry in listed]))
                    for tensor in values:
                        assert tensor is not None, "rank 0 has all of each"
                        file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
            files = sorted(file.name for file in partial.iterdir())
    return Exported(files=files, names={})


def cut_shards(units: Sequence[Unit], max_shard_bytes: int) -> list[list[Unit]]:
    """Cut a list of units, in order, into shards of at most `max_shard_bytes`; a larger unit is its own shard."""
    shards: list[list[Unit]] = [[]]
    size = 0
    for unit in units:
        if shards[-1] and size + unit.size_bytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(unit)
        size += unit.size_bytes
    return shards


def _unit(part: Part, tensors: Mapping[str, Tensor], wanted: torch.dtype, kept: Iterator[Kept]) -> Unit:
    dtype = _stored_as(tensors[part.targets[0]], wanted)
    entries = tuple(
        TensorEntry(name=name, dtype=DTYPE_NAMES[dtype], shape=shape, size_bytes=prod(shape) * dtype.itemsize)
        for name, shape in part.shapes.items()
    )
    return Unit(part=part, dtype=dtype, entries=entries, kept=tuple(islice(kept, len(part.targets))))


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
    """A shard to be written."""

    name: str
    header: bytes
    units: Sequence[Unit]

    @property
    def size_bytes(self) -> int:
        return len(self.header) + sum(unit.size_bytes for unit in self.units)


def _plan(name: str, units: Sequence[Unit]) -> _Plan:
    return _Plan(name=name, header=header_of([entry for unit in units for entry in unit.entries]), units=units)


def _write(
    policy: Policy, ranks: Ranks, plans: Sequence[_Plan], cuts: Cuts, directory: Path
) -> dict[str, NDArray[np.uint8]]:
    """Gather every unit on the rank that its shard was dealt to. That rank writes it while the next one is gathered.
    Returns the digests of each file's pieces.
    """
    with _Writer(directory, cuts, WAITING_BYTES if ranks.count == 1 else 0) as writer:
        for number, unit in _in_turn([plan.units for plan in plans], ranks):
            found = _found(policy, unit, ranks, number % ranks.count)
            if found is not None:
                writer.take(plans[number], unit, found)
        with ranks.agreeing():
            mine = writer.finish()
    empty = {name: np.zeros((len(ends), DIGEST_BYTES), np.uint8) for name, ends in cuts.items()}
    return {name: ranks.combine(mine.get(name, empty[name])) for name in sorted(cuts)}


def _found(policy: Policy, unit: Unit, ranks: Ranks, to: int) -> dict[str, Tensor | Kept] | None:
    """Return on rank `to` the tensors of the file that `unit` becomes; None on the others. A tensor that is whole on
    this rank, and goes out as it is, is converted while it is written.
    """
    like = {target: policy.by_name[target] for target in unit.part.targets}
    if unit.part.converter is None and (ranks.count == 1 or not isinstance(like[unit.part.targets[0]], DTensor)):
        if ranks.number == to:
            return {unit.entries[0].name: unit.kept[0]}
        unit.kept[0].release()
        return None
    # Copies, because a converter may return views of its inputs, and training would change those.
    whole = {
        target: gathered(copied(kept, unit.dtype), like[target], ranks, to)
        for target, kept in zip(unit.part.targets, unit.kept, strict=True)
    }
    if ranks.number != to:
        return None
    found = revert(policy.model, unit.part, {target: one for target, one in whole.items() if one is not None})
    return dict(found)


def _in_turn(shards: Sequence[Sequence[Unit]], ranks: Ranks) -> Iterator[tuple[int, Unit]]:
    """Yield units with their shard's number: from as many shards as there are ranks one unit each, in turn."""
    for first in range(0, len(shards), ranks.count):
        numbers = range(first, min(first + ranks.count, len(shards)))
        columns = ([(number, unit) for unit in shards[number]] for number in numbers)
        yield from (one for one in chain.from_iterable(zip_longest(*columns)) if one is not None)


class _Writer:
    """Writes shards one after the other, each unit while the next one is gathered; `finish` raises what failed. At most
    `waiting_bytes` of a unit may wait when the next is taken.
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

    def take(self, plan: _Plan, unit: Unit, tensors: dict[str, Tensor | Kept]) -> None:
        """Write the next unit of a shard once the previous one is written."""
        if self._failed is None:
            try:
                self._take(plan, unit, tensors)
            except (OSError, NotFinite) as error:
                # Raised later, when all ranks have come through their collectives.
                self._failed = error

    def finish(self) -> dict[str, NDArray[np.uint8]]:
        """Flush everything to the disk. Return the digests of each file's pieces. Raises OSError, BadModel."""
        try:
            if self._failed is not None:
                raise self._failed
            self._close()
        except NotFinite as error:
            raise BadModel(f"{error}, so no node could generate with it; resume from an earlier checkpoint") from error
        return self._digests

    def _take(self, plan: _Plan, unit: Unit, tensors: dict[str, Tensor | Kept]) -> None:
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
