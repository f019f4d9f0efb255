"""The trainer's durable state on disk: one JSON head beside one safetensors file.

    trainer.json        format, fingerprint of the model, counters, hyperparameters, size of the other file
    state.safetensors   weights/<name>, adamw/<moment>/<name>, warm_start/<moment>/<name>, rng/torch

What always holds: a checkpoint is checked as a whole before any of it is used, so a bad one changes nothing; it is
never pickle. No torch here: what a tensor's name means is the trainer's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from learner.durable import TensorSource, new_directory, read_span, table_of, write_json, write_tensors
from protocol.tensors import LayoutError, Table

FORMAT = 1
"""Goes up when an old trainer could misread a new checkpoint."""

HEAD = "trainer.json"
STATE = "state.safetensors"

DTYPES: dict[str, type[np.generic]] = {"F32": np.float32, "U8": np.uint8}
"""All that a trainer's state is made of."""

Expected = Callable[[str], tuple[str, tuple[int, ...]] | None]
"""Dtype and shape that a tensor of this name must have; None when no such tensor belongs here."""


class BadCheckpoint(Exception):
    """A directory is not a checkpoint that can be restored here; the message names it, what is wrong, and the next
    step.
    """


class CheckpointHead(msgspec.Struct, frozen=True, kw_only=True):
    """What the JSON says; `fingerprint` is `Policy.fingerprint`. Training again is bit-identical with the same torch
    and threads.
    """

    fingerprint: str
    steps: int
    supervised_steps: int
    threads: int
    torch: str
    hyperparameters: dict[str, Any]
    format: int = FORMAT
    state_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose tables were checked; `tensors()` reads them one at a time."""

    head: CheckpointHead
    path: Path
    table: Table

    def tensors(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield names and arrays in memory of their own. Raises OSError."""
        for span in self.table.spans:
            yield span.name, read_span(self.path, span).view(DTYPES[span.dtype]).reshape(span.shape)


def write_checkpoint(directory: Path, head: CheckpointHead, tensors: Sequence[TensorSource]) -> int:
    """Write a new checkpoint, whole or not at all, flushed to the disk; return the bytes of its state file.

    Raises FileExistsError when `directory` is there already, OSError when the disk refuses.
    """
    with new_directory(directory) as partial:
        state_bytes = write_tensors(partial / STATE, tensors)
        write_json(partial / HEAD, msgspec.to_builtins(msgspec.structs.replace(head, state_bytes=state_bytes)))
    return state_bytes


def read_checkpoint(directory: Path, fingerprint: str, expected: Expected, required: set[str]) -> Checkpoint:
    """Open the checkpoint in `directory` and check all of it but the numbers. Raises BadCheckpoint.

    `fingerprint` is that of the loaded model; `required` names tensors that every checkpoint of it has (others may
    be there when `expected` knows them).
    """
    head = _read_head(directory)
    if head.fingerprint != fingerprint:
        raise BadCheckpoint(f"{directory} is a checkpoint of another model; load the model that it was trained from")
    path = directory / STATE
    try:
        table = table_of(path)
    except (OSError, LayoutError) as error:
        raise BadCheckpoint(f"{directory} is half-written or damaged ({error}); restore an older one") from error
    _require_tensors(directory, table, head, expected, required)
    return Checkpoint(head=head, path=path, table=table)


def _read_head(directory: Path) -> CheckpointHead:
    try:
        raw = msgspec.json.decode((directory / HEAD).read_bytes())
        # The format first: a newer one may well have other fields.
        if isinstance(raw, dict) and isinstance(raw.get("format"), int) and raw["format"] > FORMAT:
            raise BadCheckpoint(
                f"{directory} has format {raw['format']}, newer than the {FORMAT} known here; "
                "upgrade this program, or restore a checkpoint that it wrote"
            )
        return msgspec.convert(raw, CheckpointHead)
    except FileNotFoundError:
        raise BadCheckpoint(
            f"{directory} has no {HEAD}: it is no checkpoint, or half-written; restore an older one"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise BadCheckpoint(f"{directory / HEAD} is half-written or damaged ({error}); restore an older one") from error


def _require_tensors(
    directory: Path, table: Table, head: CheckpointHead, expected: Expected, required: set[str]
) -> None:
    size_bytes = table.spans[-1].end if table.spans else table.header_bytes
    if size_bytes != head.state_bytes:
        raise BadCheckpoint(
            f"{directory} is half-written: {STATE} has {size_bytes} bytes, not {head.state_bytes}; restore an older one"
        )
    for span in table.spans:
        if span.dtype not in DTYPES or expected(span.name) != (span.dtype, span.shape):
            raise BadCheckpoint(
                f"{directory} holds {span.name!r}, which does not fit the loaded model; restore an older one"
            )
    missing = required - {span.name for span in table.spans}
    if missing:
        raise BadCheckpoint(f"{directory} lacks {min(missing)!r}; restore an older one")
