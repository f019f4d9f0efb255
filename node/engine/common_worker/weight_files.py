"""Find the files of a model directory that hold its weights: only safetensors files, and only in that directory."""

from __future__ import annotations

import json
from pathlib import Path

from .errors import Refused

PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
"""Types whose tensors have the shapes in the file's header, and can be copied. Packed types need a full load."""


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of a model directory, by its index if it has one. Raises Refused("bad_model") if it
    has neither, or does not exist.

    The index comes from the network: a name in it that leaves the directory is refused here, before any library
    follows it.
    """
    if not directory.is_dir():
        raise Refused("bad_model", f"there is no directory {directory}")
    index = directory / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused("bad_model", f"{index} is not an index of safetensors files: {error}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise Refused("bad_model", f"{index} names {name!r}, which is not a safetensors file of this directory")
        if not (directory / name).is_file():
            raise Refused("bad_model", f"{directory} has no {name}; weights are loaded from safetensors only")
    return [directory / name for name in names]
