"""Read what the weight files of a directory hold, and check that its config.json asks for no more.

The check runs before a library reads the config. `learner/artifacts/config_bounds.py` says what a config may ask for.

Invariants:

- A model whose layers each have a tensor is never refused.
- Nothing here takes longer than reading config.json and the headers of the weight files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from learner.artifacts.config_bounds import find_excess

from .errors import Refused

MOST_CONFIG_BYTES = 16 * 1024 * 1024
"""Largest config.json, in bytes. Those of models have some KB, and labels of classifiers some MB."""


MOST_HEADER_BYTES = 100_000_000
"""Bytes; the limit of the safetensors library itself."""


@dataclass(frozen=True)
class Stored:
    """The content of the weight files: the number of tensors and bytes."""

    num_tensors: int
    num_bytes: int


def read_stored(files: Sequence[Path]) -> Stored:
    """Read the headers of the weight files. Raises Refused("bad_model") if a file has none."""
    num_tensors = num_bytes = 0
    for file in files:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > min(size, MOST_HEADER_BYTES):
                raise Refused("bad_model", f"{file} ends inside its header, or this has over {MOST_HEADER_BYTES} bytes")
            try:
                num_tensors += len(json.loads(opened.read(length)).keys() - {"__metadata__"})
            except (ValueError, AttributeError, RecursionError) as error:
                raise Refused("bad_model", f"{file} has no safetensors header: {error}") from error
        num_bytes += size - length
    return Stored(num_tensors, num_bytes)


def require_counts(config: Path, stored: Stored) -> None:
    """Raise Refused("bad_model"), with the field's name, if config.json asks for more layers than there are tensors."""
    if config.stat().st_size > MOST_CONFIG_BYTES:
        raise Refused("bad_model", f"{config} has {config.stat().st_size} bytes; the limit is {MOST_CONFIG_BYTES}")
    try:
        fields = json.loads(config.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Refused("bad_model", f"{config} cannot be read: {error}") from error
    if excess := find_excess(fields, stored.num_tensors):
        raise Refused("bad_model", f"{config} {excess}")
