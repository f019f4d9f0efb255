"""Read the table at the head of a safetensors file: 8 bytes of length (little-endian), JSON, then the tensors' bytes.

Format: huggingface/safetensors, README "Format". This reader is stricter than loaders, because unknown engines load the
files that we publish.

Invariants, after `read_table`:

- Every byte behind the header belongs to exactly one tensor (the format allows neither holes nor overlap).
- Every dtype is known.
- Every tensor has the size that its shape requires.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from protocol.core.codec import ready
from protocol.core.limits import MAX_TENSOR_RANK, MAX_TENSORS, MIB
from protocol.versions.manifest import DTYPE_BYTES, Dimension

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 16 * MIB
"""Size of 100,000 tensors in one file, at about 160 bytes of JSON each. Loaders have a limit of 100 MB."""

Read = Callable[[int, int], bytes | memoryview]
"""A function `read(offset, size)` that returns exactly `size` bytes of one file, from `offset` on."""


class LayoutError(ValueError):
    """A model file cannot be published. The message names the file, the tensor and the defect."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """One tensor: bytes [start, end) of its file, counted from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Table:
    """The table of a file. Bytes [0, `header_bytes`) are the length and the JSON; `spans`, in file order, cover the
    rest."""

    header_bytes: int
    spans: tuple[Span, ...]


class _Info(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: Annotated[list[Dimension], Meta(max_length=MAX_TENSOR_RANK)]
    data_offsets: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]


def read_table(file: str, size: int, read: Read) -> Table:
    """Return the tensor table of the safetensors file named `file`, of `size` bytes.

    Reads the header only. Raises LayoutError.
    """
    header_bytes = _header_bytes(file, size, read)
    entries = _parse(file, bytes(read(LENGTH_BYTES, header_bytes - LENGTH_BYTES)))
    entries.pop("__metadata__", None)
    if len(entries) > MAX_TENSORS:
        raise LayoutError(f"{file}: {len(entries)} tensors, at most {MAX_TENSORS} are allowed")
    spans = [_span(file, name, info, header_bytes) for name, info in entries.items()]
    spans.sort(key=lambda span: (span.start, span.end))
    _require_cover(file, spans, header_bytes, size)
    return Table(header_bytes=header_bytes, spans=tuple(spans))


def _header_bytes(file: str, size: int, read: Read) -> int:
    if size < LENGTH_BYTES:
        raise LayoutError(f"{file}: {size} bytes are too few for a safetensors file. Was it written completely?")
    length = int.from_bytes(read(0, LENGTH_BYTES), "little")
    if length > MAX_HEADER_BYTES:
        raise LayoutError(
            f"{file}: the header has {length} bytes, at most {MAX_HEADER_BYTES} are allowed. Is it a safetensors file?"
        )
    if LENGTH_BYTES + length > size:
        raise LayoutError(f"{file}: it ends inside its header. Was it written completely?")
    return LENGTH_BYTES + length


def _parse(file: str, raw: bytes) -> dict[str, Any]:
    if not raw.startswith(b"{"):
        raise LayoutError(f"{file}: the header does not begin with a brace. Is it a safetensors file?")
    try:
        entries: dict[str, Any] = json.loads(raw, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{file}: the header is not JSON: {error}") from error
    return entries


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Of two equal keys, two readers may use different ones, and load different weights from equal bytes.
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key appears twice")
    return entries


def _span(file: str, name: str, raw: Any, header_bytes: int) -> Span:
    try:
        name.encode()
        info = msgspec.convert(raw, ready(_Info))
    except (UnicodeEncodeError, msgspec.ValidationError) as error:
        raise LayoutError(f"{file}: tensor {name!r}: {error}") from error
    if info.dtype not in DTYPE_BYTES:
        raise LayoutError(f"{file}: tensor {name!r} has the unknown dtype {info.dtype!r}")
    wanted = math.prod(info.shape, start=DTYPE_BYTES[info.dtype])
    start, end = info.data_offsets
    if end - start != wanted:
        raise LayoutError(f"{file}: tensor {name!r} has {end - start} bytes, but its shape needs {wanted}")
    shape = tuple(info.shape)
    return Span(name=name, dtype=info.dtype, shape=shape, start=header_bytes + start, end=header_bytes + end)


def _require_cover(file: str, spans: list[Span], header_bytes: int, size: int) -> None:
    reached = header_bytes
    for span in spans:
        if span.start != reached:
            fault = "overlaps the one before it" if span.start < reached else "has a gap before it"
            raise LayoutError(f"{file}: tensor {span.name!r} {fault}")
        reached = span.end
    if reached != size:
        raise LayoutError(
            f"{file}: the tensors end at byte {reached}, but the file at {size}. Was it written completely?"
        )
