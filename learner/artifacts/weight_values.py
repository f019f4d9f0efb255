"""Read values of tensors in safetensors files as numpy arrays: without torch, one tensor at a time.

numpy has no bfloat16. Its bits are the upper half of a float32's, so a tensor is widened by a shift, and narrowed by
rounding to the nearest, ties to even, as torch does.

Invariants:

- Only the header is read until a tensor is asked for, and then only that tensor.
- Widening is exact; narrowing a widened value gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from learner.artifacts.atomic_directory import table_of
from learner.artifacts.regular_file import open_file
from protocol.versions.safetensors_header import LayoutError, Span

FLOATS = ("F32", "BF16", "F16", "F64")
"""The format's names of the floating point types that can be read here."""


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One tensor of a file; `dtype` is the format's name of its type ("BF16")."""

    path: Path
    span: Span

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def dtype(self) -> str:
        return self.span.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.span.shape

    def raw(self, first: int = 0, last: int | None = None) -> bytes:
        """Return its bytes as they lie in the file, or only those of the rows [first, last). Raises OSError."""
        whole = self.span.end - self.span.start
        row = whole // self.shape[0] if self.shape and self.shape[0] else whole
        start, end = first * row, whole if last is None else last * row
        with open_file(self.path) as file:
            file.seek(self.span.start + start)
            data = file.read(end - start)
        if len(data) != end - start:
            raise OSError(0, f"it ends inside the tensor {self.name}", str(self.path))
        return data

    def values(self, first: int = 0, last: int | None = None) -> NDArray[np.float32]:
        """Return its values in its shape, or only the rows [first, last). Raises OSError, and LayoutError if its type
        is not one of FLOATS."""
        found = widened(self.raw(first, last), self.dtype, f"{self.path.name}: tensor {self.name!r}")
        return found.reshape(-1, *self.shape[1:]) if self.shape else found.reshape(())


def tensors_of(files: Sequence[Path]) -> Iterator[StoredTensor]:
    """Yield the tensors of each file in order. Raises LayoutError, OSError."""
    for path in files:
        for span in table_of(path).spans:
            yield StoredTensor(path=path, span=span)


def widened(data: bytes, dtype: str, name: str) -> NDArray[np.float32]:
    """Return values stored as `dtype`, as a flat array. Raises LayoutError with a message that begins with `name`."""
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype not in FLOATS:
        raise LayoutError(f"{name} has type {dtype}; only F32, BF16, F16 and F64 can be read here")
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).astype(np.float32)


def narrowed(values: NDArray[np.float32], dtype: str) -> bytes:
    """Return the bytes of `values` as `dtype`, one of FLOATS, rounded to the nearest."""
    if dtype == "BF16":
        return bfloat16_bits(values).tobytes()
    return values.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).tobytes()


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of `values` as bfloat16, in their shape."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    # A NaN must not be rounded up to an infinity.
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype("<u2")
