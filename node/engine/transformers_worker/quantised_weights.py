"""Hold weights in eight and four bits: quantise a version's weights, and compute with them.

docs/explain/quantised.md defines the formats; their arithmetic is here. A weight acts as a tensor with a shape and two
operations, those of linear layers and of embeddings. Every other operation is refused.

Invariants:

- A value depends on its own row alone, so that all engines hold the same numbers, with any shards, blocks and devices.
- Only a block of a weight is ever held in full.
- Rows are replaced in place. A weight that holds values that are not finite computes no finite results.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from .cpu_matmul import product

INT8, INT4 = "int8", "int4"

INT8_MOST = 127
"""The largest integer. -128 is not used, so that a weight and its negative are equally exact."""

INT4_GROUP = 32
"""Columns that share a step and a lowest value: two bfloat16 of each group cost one bit per weight."""
INT4_MOST = 15
"""The largest integer of a group, whose lowest value is 0."""

CPU_BLOCK = 1 << 18
"""Weights that are expanded at a time: 1 MB of float32 stays in a core's cache until it has been multiplied."""
GPU_BLOCK = 1 << 24
"""The same on a GPU, 64 MB, where small products would leave it idle."""

ALIGNED = 64
"""Bytes to which tensors in a file are aligned, as those in memory are."""

_NOT_MANTISSA = -(1 << 16)
"""Mask of the bits of a float32 that a bfloat16 keeps."""


class Scheme(Protocol):
    """How the rows of a matrix (N, K) are held in few bits: as several tensors, each with one entry for each row."""

    name: str

    def parts(self, shape: Sequence[int]) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return the shape and number format of each tensor that holds a matrix of that shape."""

    def write(self, parts: Mapping[str, Tensor], rows: Tensor) -> None:
        """Write `rows` (n, K), float32, to `parts`, which are the parts of these rows."""

    def read(self, parts: Mapping[str, Tensor], columns: int) -> Tensor:
        """Return the n rows that `parts` hold, (n, columns) in float32."""


class Int8:
    """An integer from -127 to 127 for each weight, and one float32 for each row."""

    name = INT8

    def parts(self, shape: Sequence[int]) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        return {"codes": (tuple(shape), torch.int8), "steps": ((shape[0],), torch.float32)}

    def write(self, parts: Mapping[str, Tensor], rows: Tensor) -> None:
        steps = rows.abs().amax(1) / INT8_MOST
        parts["steps"].copy_(steps)
        codes = _counted(rows, steps[:, None])
        parts["codes"].copy_(codes.clamp_(-INT8_MOST, INT8_MOST))

    def read(self, parts: Mapping[str, Tensor], columns: int) -> Tensor:
        return torch.mul(parts["codes"], parts["steps"][:, None])


class Int4:
    """An integer from 0 to 15 for each weight, and for each INT4_GROUP of a row its lowest value and its step, as
    bfloat16. A byte holds two integers that are half a row apart, so that either half is read as one piece. Rows are
    filled up to whole groups."""

    name = INT4

    def parts(self, shape: Sequence[int]) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        rows, groups = shape[0], math.ceil(shape[1] / INT4_GROUP)
        packed = (rows, groups * INT4_GROUP // 2)
        of_group = ((rows, groups), torch.bfloat16)
        return {"codes": (packed, torch.uint8), "steps": of_group, "lows": of_group}

    def write(self, parts: Mapping[str, Tensor], rows: Tensor) -> None:
        width = 2 * parts["codes"].shape[1]
        if width > rows.shape[1]:  # repeat the last weight, which changes neither end of its group
            rows = torch.cat([rows, rows[:, -1:].expand(-1, width - rows.shape[1])], 1)
        groups = rows.reshape(len(rows), -1, INT4_GROUP)
        lows = _outwards(groups.amin(-1), down=True)
        steps = _outwards((groups.amax(-1) - lows) / INT4_MOST, down=False)
        parts["lows"].copy_(lows)
        parts["steps"].copy_(steps)
        codes = _counted(groups - lows[..., None], steps[..., None]).clamp_(0, INT4_MOST)
        codes = codes.to(torch.uint8).reshape(len(rows), width)
        half = width // 2
        parts["codes"].copy_(codes[:, :half] | (codes[:, half:] << 4))

    def read(self, parts: Mapping[str, Tensor], columns: int) -> Tensor:
        codes = parts["codes"]
        half = codes.shape[1]
        rows = torch.empty(len(codes), 2 * half, dtype=torch.float32, device=codes.device)
        rows[:, :half] = codes & INT4_MOST
        rows[:, half:] = codes >> 4
        groups = rows.view(len(rows), -1, INT4_GROUP)
        # The product has twelve bits and is exact, so it does not matter whether it is rounded before the sum.
        groups.mul_(parts["steps"].float()[..., None]).add_(parts["lows"].float()[..., None])
        return rows[:, :columns]


SCHEMES: Mapping[str, Scheme] = {INT8: Int8(), INT4: Int4()}
"""The schemes by the names of their formats."""


class QuantisedWeight(Tensor):
    """A matrix (N, K) held by `scheme`, which computes as numbers of `dtype`. Its first values are undefined until
    `write_rows`. With `folder` it is held in an unnamed file there. On a CPU with little memory the kernel then drops
    the least recently used pages and reads them again."""

    scheme: Scheme
    parts: dict[str, Tensor]
    _file: mmap.mmap | None
    _is_param: bool

    @staticmethod
    def __new__(
        cls,
        scheme: Scheme,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        folder: Path | None = None,
    ) -> QuantisedWeight:
        made: QuantisedWeight = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        held = scheme.parts(shape)
        made.scheme = scheme
        made._file = None
        if folder is None:
            made.parts = {name: torch.empty(size, dtype=kind, device=device) for name, (size, kind) in held.items()}
        else:
            made._file, made.parts = _in_file(held, folder)
        made._is_param = True  # torch recognises a module's parameter by this
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is functional.linear:
            return _linear(*args, **(kwargs or {}))
        if func is functional.embedding:
            return _embedding(*args, **(kwargs or {}))
        if func is Tensor.detach:
            return args[0]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own says that there is none
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        raise NotImplementedError(
            f"it calls {func} on a quantised weight, which only supports linear layers and embeddings: set "
            '[engine] quantization = ""'
        )

    @property
    def held_bytes(self) -> int:
        """Return the bytes of memory that it takes."""
        return sum(part.nbytes for part in self.parts.values())

    @property
    def place(self) -> int:
        """Return its address in memory; two weights that share their data have the same."""
        return self.parts["codes"].data_ptr()

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield the first row and the end of each block in which it is written and used."""
        rows, columns = self.shape
        most = CPU_BLOCK if self.device.type == "cpu" else GPU_BLOCK
        step = max(1, most // max(1, columns))
        return ((first, min(first + step, rows)) for first in range(0, rows, step))

    @torch.no_grad()
    def write_rows(self, first: int, rows: Tensor) -> None:
        """Quantise `rows` (n, K), of any number format, and hold them from row `first` on."""
        own = self._rows(slice(first, first + len(rows)))
        self.scheme.write(own, rows.to(self.device, torch.float32))

    def settle(self) -> None:
        """Write the file, if there is one, to the disk when all rows are set, so that the machine can drop its pages
        whenever it needs their memory."""
        if self._file is not None:
            self._file.flush()

    def read_rows(self, first: int, end: int, dtype: torch.dtype) -> Tensor:
        """Return rows [first, end) (n, K) as they are used in products, rounded to `dtype`."""
        return self.scheme.read(self._rows(slice(first, end)), self.shape[1]).to(dtype)

    def _rows(self, which: slice | Tensor) -> dict[str, Tensor]:
        return {name: part[which] for name, part in self.parts.items()}


@torch.no_grad()
def quantised(weight: Tensor, scheme: Scheme, dtype: torch.dtype, device: torch.device) -> QuantisedWeight:
    """Return a matrix in few bits, made a block at a time."""
    made = QuantisedWeight(scheme, weight.shape, dtype, device)
    for first, end in made.blocks():
        made.write_rows(first, weight[first:end])
    return made


def is_quantisable(module: nn.Module, name: str, weight: Tensor) -> bool:
    """Return whether a format quantises this tensor of a module: the weight of a linear layer or an embedding."""
    return isinstance(module, nn.Linear | nn.Embedding) and name == "weight" and weight.dim() == 2


def _in_file(
    held: Mapping[str, tuple[tuple[int, ...], torch.dtype]], folder: Path
) -> tuple[mmap.mmap, dict[str, Tensor]]:
    """Return a mapped file, and the tensors in it. Raises OSError if the disk has no room."""
    places, size = {}, 0
    for name, (shape, kind) in held.items():
        places[name] = size
        size += -(-math.prod(shape) * kind.itemsize // ALIGNED) * ALIGNED
    with tempfile.TemporaryFile(dir=folder) as file:
        # Reserve the space first: writing a page that the disk has no room for would end the process.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        mapped = mmap.mmap(file.fileno(), size)
    parts = {
        name: torch.frombuffer(mapped, dtype=kind, count=math.prod(shape), offset=places[name]).view(shape)
        for name, (shape, kind) in held.items()
    }
    return mapped, parts


def _linear(rows: Tensor, weight: QuantisedWeight, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b (..., N) for x (..., K), computed a block of W at a time."""
    flat = rows.reshape(-1, rows.shape[-1])  # (B, K)
    made = flat.new_empty(len(flat), weight.shape[0])  # (B, N)
    for first, end in weight.blocks():
        made[:, first:end] = product(flat, weight.read_rows(first, end, rows.dtype))
    if bias is not None:
        made += bias
    return made.view(*rows.shape[:-1], weight.shape[0])


def _embedding(ids: Tensor, weight: QuantisedWeight, *_: Any, max_norm: float | None = None, **__: Any) -> Tensor:
    """Return rows of W (..., K) for ids (...). The other arguments concern gradients."""
    if max_norm is not None:
        raise NotImplementedError("embeddings that are scaled to a norm cannot be quantised: set [engine] quantization")
    flat = ids.reshape(-1)
    rows = weight.scheme.read(weight._rows(flat), weight.shape[1])
    return rows.to(weight.dtype).view(*ids.shape, weight.shape[1])


def _counted(values: Tensor, steps: Tensor) -> Tensor:
    """Return how many steps a value has, rounded to the nearest integer, ties to even; 0 if the step is 0."""
    return torch.where(steps > 0, values / steps, 0.0).round_().nan_to_num_(0.0)


def _outwards(values: Tensor, *, down: bool) -> Tensor:
    """Return the next bfloat16 that is not greater (`down`), or not less, than a float32, as float32."""
    bits = values.contiguous().view(torch.int32)
    towards_zero = bits & _NOT_MANTISSA
    away = (bits + ~_NOT_MANTISSA) & _NOT_MANTISSA
    grows = values < 0 if down else values > 0
    return torch.where(grows & values.isfinite(), away, towards_zero).view(torch.float32)
