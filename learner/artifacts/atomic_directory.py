"""Files and directories that appear whole or not at all, and tensors as safetensors inside them.

What always holds: a path given to `new_directory` either does not exist or holds everything, flushed to the disk,
whatever killed us in between, and one given to `replace_file` holds what it did, or all that is new; equal tensors give
equal bytes. No torch. Nothing is ever executed on reading (no pickle).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from learner.artifacts.regular_file import open_file
from protocol.versions.safetensors_header import LENGTH_BYTES, Table, read_table

HEADER_ALIGN_BYTES = 8
"""The format wants the data to begin at a multiple of 8; loaders that map the file rely on it."""


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One tensor of a safetensors file: `dtype` is the format's name ("F32", "BF16", ...)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield an empty directory beside `path` that becomes `path` when the block ends well, and vanishes when it does
    not.

    Raises FileExistsError when `path` is there already, OSError when the disk refuses. What an earlier kill left is
    removed.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists already; name a new directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_of(path)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        sync_directory(partial)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_directory(path.parent)


def partial_of(path: Path) -> Path:
    """Where `new_directory` keeps what will become `path`."""
    return path.parent / f".{path.name}.partial"


def sync_directory(path: Path) -> None:
    """Flush a directory's names to the disk, so that a file synced before is also found after a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def synced(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for writing; flushed to the disk when the block ends well."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_bytes(path: Path, data: bytes) -> None:
    """Write and flush one small file."""
    with synced(path) as file:
        file.write(data)


def replace_file(path: Path, data: bytes) -> None:
    """Have `path` hold `data`, whole or not at all, and on the disk when this returns. Raises OSError."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        write_bytes(draft, data)
        draft.replace(path)
        sync_directory(path.parent)
    except OSError:
        with suppress(OSError):  # the disk that refused one may refuse the other
            draft.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write and flush `value` as indented JSON, in the order of its keys."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """`value` as a file of indented JSON."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def header_of(tensors: Sequence[TensorEntry]) -> bytes:
    """What a safetensors file begins with; the tensors' C-order bytes follow, in the order given, and nothing else."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers refuses files that do not say so
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.size_bytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % HEADER_ALIGN_BYTES)
    return len(header).to_bytes(LENGTH_BYTES, "little") + header


def table_of(path: Path) -> Table:
    """Return the tensor table of a safetensors file. Raises LayoutError, OSError."""
    with open_file(path) as file:

        def read(offset: int, size: int) -> bytes:
            file.seek(offset)
            return file.read(size)

        return read_table(path.name, path.stat().st_size, read)
