"""Write files and directories that appear whole or not at all, with tensors in them as safetensors.

No torch.

Invariants:

- A path given to `new_directory` either does not exist or holds everything, flushed to the disk, even if the process
  was killed in between.
- A path given to `replace_file` holds its old content or the whole new one.
- Equal tensors give equal bytes.
- Reading never executes anything (no pickle).
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
"""The format requires that the data begin at a multiple of 8 bytes; loaders that map the file rely on it."""


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One tensor of a safetensors file: `dtype` is the format's name ("F32", "BF16", ...)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield an empty directory beside `path`; rename it to `path` when the block succeeds, delete it when it fails.

    Raises FileExistsError when `path` exists already, OSError when the disk fails. Removes what an earlier killed
    process left.
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
    """Return the path of the directory that `new_directory` renames to `path` at the end."""
    return path.parent / f".{path.name}.partial"


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to the disk, so that a file synced before is also found after a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def synced(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for writing, and flush it to the disk when the block succeeds."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_bytes(path: Path, data: bytes) -> None:
    """Write and flush one small file."""
    with synced(path) as file:
        file.write(data)


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of `path` by `data`, whole or not at all, flushed on return. Raises OSError."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        write_bytes(draft, data)
        draft.replace(path)
        sync_directory(path.parent)
    except OSError:
        with suppress(OSError):  # a disk that failed to write may also fail to delete
            draft.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write and flush `value` as indented JSON, in the order of its keys."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return `value` as the bytes of a file of indented JSON."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def header_of(tensors: Sequence[TensorEntry]) -> bytes:
    """Return the header of a safetensors file. The tensors' C-order bytes must follow in this order, nothing else."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers rejects files without it
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
