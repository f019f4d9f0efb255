"""Change a version's weights, as a cheat that saves memory does.

Invariants:

- Shapes, types and names stay the same, so that any engine can load the weights.
- Norms and other vectors are unchanged, as quantisers leave them.
- Files are read and written whole, without a tensor library.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]

GROUP = 32
"""Weights that share a scale at 4 bits."""

MAX_HEADER_BYTES = 100_000_000
"""The limit of safetensors itself."""


class Variant(Enum):
    """How the weights were changed."""

    TRUE = "true"
    INT8 = "int8"
    FOUR_BIT = "4bit"
    SMALLER = "smaller"


def write_variant(source: Path, target: Path, variant: Variant) -> None:
    """Make `target` a model directory like `source` with changed weights. Unchanged files are linked.

    Raises OSError, and ValueError for a file that is not safetensors of 16 or 32 bit floats.
    """
    target.mkdir()
    files = [path for path in source.iterdir() if path.is_file()]
    last = _last_layer([path for path in files if path.suffix == ".safetensors"])
    for path in files:
        if variant is Variant.TRUE or path.suffix != ".safetensors":
            _link(path, target / path.name)
        else:
            (target / path.name).write_bytes(_changed(path.read_bytes(), _change(variant, last), path))


def round_weights(weights: Matrix, *, bits: int, group: int | None = None) -> Matrix:
    """Return the weights with rows rounded to the nearest of 2^bits - 1 levels about zero, shape [rows, columns].

    Each row, or each `group` of a row, has a scale of its own.
    """
    top = 2 ** (bits - 1) - 1
    rows, columns = weights.shape
    width = columns if group is None or columns % group else group
    parts = weights.reshape(rows, -1, width)
    scale = np.abs(parts).max(axis=2, keepdims=True) / top
    scale[scale == 0] = 1.0
    levels: Matrix = (np.rint(parts / scale) * scale).astype(np.float32)
    return levels.reshape(rows, columns)


def _change(variant: Variant, last: int) -> Callable[[str, Matrix], Matrix]:
    def change(name: str, weights: Matrix) -> Matrix:
        if variant is Variant.SMALLER:
            # A layer adds to the residual stream only through these two, so without them it has no effect.
            gone = re.search(rf"\.layers\.{last}\..*(o_proj|down_proj)\.weight$", name)
            return np.zeros_like(weights) if gone else weights
        bits, group = (8, None) if variant is Variant.INT8 else (4, GROUP)
        return round_weights(weights, bits=bits, group=group)

    return change


def _last_layer(files: list[Path]) -> int:
    layers = [int(found) for path in files for found in re.findall(r"\.layers\.(\d+)\.", _header(path.read_bytes())[0])]
    return max(layers, default=-1)


def _header(raw: bytes) -> tuple[str, int]:
    """Return the JSON header of a safetensors file, and the position of the first tensor."""
    size = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 + size or size > MAX_HEADER_BYTES:
        raise ValueError("the file ends within its header")
    return raw[8 : 8 + size].decode(), 8 + size


def _changed(raw: bytes, change: Callable[[str, Matrix], Matrix], path: Path) -> bytes:
    try:
        text, start = _header(raw)
        out = bytearray(raw)
        for name, entry in json.loads(text).items():
            if name == "__metadata__" or len(entry["shape"]) != 2:
                continue
            begin, end = (start + offset for offset in entry["data_offsets"])
            weights = _floats(raw[begin:end], entry["dtype"]).reshape(entry["shape"])
            out[begin:end] = _bytes(change(name, weights), entry["dtype"])
    except (KeyError, TypeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{path} cannot be changed: {error}") from None
    return bytes(out)


def _floats(raw: bytes, dtype: str) -> Matrix:
    match dtype:
        case "F32":
            return np.frombuffer(raw, np.float32)
        case "F16":
            return np.frombuffer(raw, np.float16).astype(np.float32)
        case "BF16":
            return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    raise ValueError(f"its tensors are {dtype}")


def _bytes(weights: Matrix, dtype: str) -> bytes:
    match dtype:
        case "F32":
            return weights.astype(np.float32).tobytes()
        case "F16":
            return weights.astype(np.float16).tobytes()
    bits = weights.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()  # to the nearest, ties to even


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)
