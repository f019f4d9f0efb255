"""Write the payload: a file of weights in bf16, of random bytes, so that nothing compresses or repeats."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

FILE_NAME = "model.safetensors"
HEADER_BYTES = 4096
TENSOR_BYTES = 4 << 20
"""A matrix of 1024 x 2048. If a file would hold more than MAX_TENSORS of them, matrices are doubled until they fit."""

MAX_TENSORS = 32
"""Number of tensors that HEADER_BYTES can describe."""

PIECE_BYTES = 64 << 20
"""Bytes generated at a time."""


def write_payload(directory: Path, size_bytes: int, *, seed: int) -> Path:
    """Write a model of exactly `size_bytes` into `directory`, and return its path. Size and seed decide its bytes."""
    path = directory / FILE_NAME
    with path.open("wb") as file:
        file.write(_header(size_bytes - HEADER_BYTES))
        file.writelines(_weights(size_bytes - HEADER_BYTES, random.Random(seed)))
    return path


def _weights(size: int, rng: random.Random) -> Iterator[bytes]:
    for start in range(0, size, PIECE_BYTES):
        yield rng.randbytes(min(PIECE_BYTES, size - start))


def _header(size: int) -> bytes:
    tensor_bytes = TENSOR_BYTES
    while size > MAX_TENSORS * tensor_bytes:
        tensor_bytes *= 2
    ends = [*range(tensor_bytes, size, tensor_bytes), size]
    table = {
        f"layers.{number}.weight": {"dtype": "BF16", "shape": [(end - start) // 2], "data_offsets": [start, end]}
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
    }
    length = HEADER_BYTES - 8
    return length.to_bytes(8, "little") + json.dumps(table).encode().ljust(length)
