"""What is sent: a file of weights in bf16, of random bytes, so that nothing compresses or repeats."""

from __future__ import annotations

import json
import random
from pathlib import Path

FILE_NAME = "model.safetensors"
HEADER_BYTES = 4096
TENSOR_BYTES = 4 << 20
"""A matrix of 1024 x 2048."""


def write_payload(directory: Path, size_bytes: int, *, seed: int) -> Path:
    """Write a model of exactly `size_bytes` into `directory`, and return its path. A function of size and seed."""
    path = directory / FILE_NAME
    path.write_bytes(_header(size_bytes - HEADER_BYTES) + random.Random(seed).randbytes(size_bytes - HEADER_BYTES))
    return path


def _header(size: int) -> bytes:
    ends = [*range(TENSOR_BYTES, size, TENSOR_BYTES), size]
    table = {
        f"layers.{number}.weight": {"dtype": "BF16", "shape": [(end - start) // 2], "data_offsets": [start, end]}
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
    }
    length = HEADER_BYTES - 8
    return length.to_bytes(8, "little") + json.dumps(table).encode().ljust(length)
