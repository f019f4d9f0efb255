"""Save and load the trainer's durable state, through torch.distributed.checkpoint: a JSON head and a file of each rank.

    trainer.json             format, fingerprint of the model, counters, hyperparameters, files, index of the tensors
    rank-00000.safetensors   slices of weights/<name>, adamw/<moment>/<name>, warm_start/<moment>/<name>, and the
                             random state of its rank, rng/<device>/<rank>

Writing goes on beside training, from a snapshot (`learner.training.snapshot`). Tensors on a CPU are written from where
they lie, and the next update copies those that were not written yet (`Saving.keep`): at most 12 bytes a trained
parameter. Tensors of a GPU are copied to the host's memory, which takes as much.

Invariants:

- A checkpoint is checked as a whole, to the last bit, before any of it is used, so a bad one changes nothing.
- The directory appears whole or not at all.
- A checkpoint that some number of ranks wrote can be read by any other number.
- Nothing is pickled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from learner.artifacts.atomic_directory import write_json
from learner.artifacts.file_digests import BLOCK_BYTES, damaged_block, num_blocks
from learner.artifacts.regular_file import read_file
from learner.trainer_api.errors import agreed
from learner.training.background_writing import Writing
from learner.training.dcp_storage import DTYPES, Index, Listed, TensorFilesReader, TensorFilesWriter
from learner.training.distributed.ranks import Ranks, new_shared_directory
from learner.training.distributed.sharding import local
from learner.training.snapshot import Crossing, Snapshot

FORMAT = 2
"""Incremented when an old trainer could misread a new checkpoint. Format 1 had one file, of one process."""

HEAD = "trainer.json"

SEAL = "digest"

DIGEST_BYTES = 32

Expected = Callable[[str], tuple[torch.dtype, tuple[int, ...]] | None]
"""Returns the dtype and shape that a tensor of this name must have; None when no such tensor belongs here."""


class BadCheckpoint(Exception):
    """A directory is not a checkpoint that can be restored here; the message names it, what is wrong, and the next
    step.
    """

    kind = "bad_checkpoint"


class ForeignCheckpoint(BadCheckpoint):
    """The checkpoint is whole, but belongs to another model or another program. Resuming from an older checkpoint would
    not help, and would throw away good work.
    """

    kind = "foreign_checkpoint"


class CheckpointHead(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the JSON head. `fingerprint` is `Policy.fingerprint`; `files` has sizes in bytes; `digests` has
    the SHA-256 of the blocks of each file (`learner.artifacts.file_digests`). Repeated training is bit-identical with
    the same torch, threads, ranks and kind of device.

    The file also has `digest`, in every format: that of everything else in it (`seal`). A checkpoint of an older
    program has neither `digests` nor `digest`; its numbers are trusted.
    """

    fingerprint: str
    steps: int
    supervised_steps: int
    threads: int
    ranks: int
    torch: str
    hyperparameters: dict[str, Any]
    format: int = FORMAT
    files: dict[str, int] = {}
    digests: dict[str, list[str]] = {}
    index: dict[str, Listed] = {}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was checked; its tensors are not loaded yet."""

    head: CheckpointHead
    directory: Path

    @property
    def names(self) -> Set[str]:
        """The names of its tensors."""
        return self.head.index.keys()

    def load(self, state: dict[str, Any], ranks: Ranks) -> None:
        """Copy its tensors into those of `state`, some or all of them. Raises OSError. All ranks take part."""
        try:
            load(
                state,
                storage_reader=TensorFilesReader(self.directory, self.head.index),
                no_dist=ranks.count == 1,
                process_group=ranks.aside,
            )
        except CheckpointException as failure:
            raise _first(failure) from failure


class Saving(Writing):
    """Writes one checkpoint of `state` as it is now. `finish` raises OSError, FileExistsError, Elsewhere."""

    def __init__(
        self,
        directory: Path,
        head: CheckpointHead,
        state: Mapping[str, Tensor],
        ranks: Ranks,
        crossing: Crossing | None = None,
    ) -> None:
        """Take the snapshot, for a directory that does not exist yet. Does not wait for a disk.

        The tensors may be changed after `keep`.
        """
        super().__init__(directory, Snapshot([local(tensor) for tensor in state.values()], crossing=crossing))
        self.size_bytes = 0
        """Bytes of its files, once it is done."""
        self._head, self._ranks = head, ranks
        self._state = {name: _outline(tensor, ranks) for name, tensor in state.items()}

    def _write(self) -> None:
        try:
            with new_shared_directory(self._ranks.beside(), self.directory) as partial:
                self.size_bytes = self._fill(partial)
        except CheckpointException as failure:
            raise _first(failure) from failure
        finally:
            self._state = {}

    def _fill(self, partial: Path) -> int:
        writer = TensorFilesWriter(partial, dict(zip(self._state, self._snapshot.kept, strict=True)))
        save(self._state, storage_writer=writer, no_dist=self._ranks.count == 1, process_group=self._ranks.aside)
        with self._ranks.beside().agreeing():
            files = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
        digests = self._digests(files, *writer.written)
        with self._ranks.beside().agreeing():
            if self._ranks.is_first:
                index = dict(sorted(writer.index.items()))
                head = msgspec.structs.replace(self._head, files=files, digests=digests, index=index)
                write_json(partial / HEAD, seal(msgspec.to_builtins(head)))
        return sum(files.values())

    def _digests(self, files: Mapping[str, int], mine: str, known: Sequence[str]) -> dict[str, list[str]]:
        """Return the digests of all ranks' files. This rank wrote the file `mine`, whose digests are `known`."""
        found = {}
        for name, size_bytes in files.items():
            blocks = np.zeros((num_blocks(size_bytes), DIGEST_BYTES), np.uint8)
            if name == mine:
                blocks[:] = np.frombuffer(bytes.fromhex("".join(known)), np.uint8).reshape(-1, DIGEST_BYTES)
            found[name] = [block.tobytes().hex() for block in self._ranks.beside().combine(blocks)]
        return found


def _outline(tensor: Tensor, ranks: Ranks) -> Any:
    """Return its dtype, its shape and how it is cut, without its memory, which only the snapshot may keep alive."""
    empty = torch.empty_like(local(tensor), device="meta")
    if not isinstance(tensor, DTensor):
        return empty
    return DTensor.from_local(
        empty, ranks.host_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def _first(failure: CheckpointException) -> Exception:
    """Return the original error of the first rank that failed."""
    error = next(iter(failure.failures.values()))[0]
    return agreed(error) if isinstance(error, Exception) else RuntimeError(str(failure))


def seal(head: dict[str, Any]) -> dict[str, Any]:
    """Return `head` with its own digest, so that a flipped bit in it is detected."""
    rest = {name: value for name, value in head.items() if name != SEAL}
    return {**rest, SEAL: sha256(msgspec.json.encode(rest)).hexdigest()}


def read_checkpoint(
    directory: Path, fingerprint: str, expected: Expected, required: Set[str], ranks: Ranks
) -> Checkpoint:
    """Open the checkpoint in `directory` and check all of it, each rank a part of its bytes. Raises BadCheckpoint.

    `fingerprint` is that of the loaded model. `required` names tensors that every checkpoint of it has; others are
    allowed if `expected` knows them.
    """
    head = _read_head(directory)
    if head.fingerprint != fingerprint:
        raise ForeignCheckpoint(
            f"{directory} is a checkpoint of another model, or of other low-rank adapters on it; load the model that "
            "it was trained from, with lora_rank, lora_alpha and lora_targets as they were"
        )
    for name, size_bytes in head.files.items():
        found = (directory / name).stat().st_size if (directory / name).is_file() else None
        if found != size_bytes:
            raise BadCheckpoint(
                f"{directory} is half-written: {name} has {found or 0} bytes, not {size_bytes}; restore an older one"
            )
    _require_tensors(directory, head.index, head.files, expected, required)
    _require_bytes(directory, head.digests, ranks)
    return Checkpoint(head=head, directory=directory)


def _require_bytes(directory: Path, digests: Mapping[str, Sequence[str]], ranks: Ranks) -> None:
    for name, blocks in digests.items():
        try:
            block = damaged_block(directory / name, blocks, ranks.number, ranks.count)
        except OSError as error:
            raise BadCheckpoint(f"{directory / name} cannot be read ({error}); restore an older one") from error
        if block is not None:
            place = f"somewhere in the {BLOCK_BYTES >> 20} MiB from byte {block * BLOCK_BYTES} on"
            raise BadCheckpoint(
                f"{directory / name} is damaged: {place} the disk does not give back what was written; "
                "restore an older one"
            )


def _read_head(directory: Path) -> CheckpointHead:
    try:
        raw = msgspec.json.decode(read_file(directory / HEAD))
        if isinstance(raw, dict) and SEAL in raw and seal(raw) != raw:
            raise BadCheckpoint(
                f"{directory / HEAD} is damaged: the disk does not give back what was written; restore an older one"
            )
        # Check the format before everything else, because another format may have other fields.
        found = raw.get("format") if isinstance(raw, dict) else None
        if isinstance(found, int) and found > FORMAT:
            raise ForeignCheckpoint(
                f"{directory} has format {found}, newer than the {FORMAT} known here; "
                "upgrade this program, or restore a checkpoint that it wrote"
            )
        if isinstance(found, int) and found < FORMAT:
            raise ForeignCheckpoint(
                f"{directory} has format {found}, older than the {FORMAT} known here; resume with the program that "
                "wrote it, or start again from the last version that it published"
            )
        return msgspec.convert(raw, CheckpointHead)
    except FileNotFoundError:
        raise BadCheckpoint(
            f"{directory} has no {HEAD}: it is no checkpoint, or half-written; restore an older one"
        ) from None
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise BadCheckpoint(f"{directory / HEAD} is half-written or damaged ({error}); restore an older one") from error


def _require_tensors(
    directory: Path, index: Index, files: Mapping[str, int], expected: Expected, required: Set[str]
) -> None:
    for name, listed in index.items():
        if listed.dtype not in DTYPES or expected(name) != (DTYPES[listed.dtype], listed.shape):
            raise BadCheckpoint(
                f"{directory} holds {name!r}, which does not fit the loaded model; restore an older one"
            )
        if not listed.is_whole or any(piece.file not in files for piece in listed.slices):
            raise BadCheckpoint(f"{directory} lacks a part of {name!r}; restore an older one")
    missing = required - index.keys()
    if missing:
        raise BadCheckpoint(f"{directory} lacks {min(missing)!r}; restore an older one")


warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
