"""Write weight files piece by piece on all cores: convert, hash and write each piece.

Each thread takes a piece through all three steps while it is in its core's cache. Converting a whole tensor first would
take new memory, for which a virtual machine may wait longer than for its disk. A thread holds a snapshot only while it
converts a piece, so training does not wait for the disk.

Invariants:

- A file's bytes are its header and its tensors in the order given, whatever order the threads finish in.
- Each piece is hashed from the same memory that it was written from, so it need not be read again for publication.
- Pieces end where the publication cuts.
- Memory besides the given tensors is one piece for each thread.
- A number that is not finite is never written, because no node could generate with it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learner.training.snapshot import Kept

SERIAL = 31 * 1024
"""Elements converted at a time: from 32 K on torch would start its own threads."""

DIGEST_BYTES = 32

WRITE_BACK_BYTES = 1 << 24
"""Bytes sent to the disk together. Piece by piece takes a fifth more processor time; all at the end a third more time.
"""


INFINITY = {
    torch.float32: (torch.int32, 0x7F80_0000),
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float16: (torch.int16, 0x7C00),
}
"""Bits of infinity read as an integer: comparing integers takes a tenth of the time."""


class NotFinite(ArithmeticError):
    """Weights hold a number that is not finite in the file's format; the message names the tensor."""


def not_finite(values: Tensor) -> bool:
    """Return whether `values`, of any dtype, hold a NaN or an infinity. Takes no memory of their size."""
    if not values.is_floating_point() or not values.numel():
        return False
    if values.dtype in INFINITY and values.device.type == "cpu" and values.is_contiguous():
        integer, infinity = INFINITY[values.dtype]
        bits = values.detach().view(integer).numpy()
        negative = bits.view(bits.dtype.str.replace("i", "u")).max()
        # As integers, positive numbers rise up to infinity, with NaN beyond; negative ones do so as unsigned integers.
        return bool(bits.max() >= infinity or negative >= infinity | 1 << 8 * values.dtype.itemsize - 1)
    if values.dtype.itemsize == 1:  # torch has no minimum and maximum of 8-bit floats
        values = values.float()
    return not all(bool(one.isfinite()) for one in torch.aminmax(values))


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The numbers from `first` up to `last` of a tensor, as `dtype`."""

    name: str
    values: Kept
    first: int
    last: int
    dtype: torch.dtype


class WeightFile:
    """One file, whose tensors are given in order. `cuts` are the ends of its pieces; the last is the file's end."""

    def __init__(self, path: Path, header: bytes, cuts: Sequence[int], threads: ThreadPoolExecutor) -> None:
        """Create the file and write its header. Raises OSError."""
        self._path = path
        self._threads = threads
        self._ends: Iterator[int] = iter(cuts)
        self._start = self._reached = 0
        self._end = next(self._ends, 0)
        self._parts: list[_Part] = []
        self._digests: list[Future[bytes]] = []
        self._given: list[int] = []
        self._awaited = 0
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self.add("header", torch.frombuffer(bytearray(header), dtype=torch.uint8), torch.uint8)

    def add(self, name: str, tensor: Tensor | Kept, dtype: torch.dtype) -> None:
        """Append `tensor`, called `name`, as `dtype`. It must not change before `settle` has returned for it.

        Raises:
            ValueError: the cuts are not those of a file with this tensor.
        """
        values = Kept(tensor) if isinstance(tensor, Tensor) else tensor
        first = 0
        while first < values.numel:
            last = min(values.numel, first + (self._end - self._reached) // dtype.itemsize)
            if last == first:
                raise ValueError(f"a cut at {self._end} lies inside an element, or {name!r} comes after the last cut")
            self._parts.append(_Part(name=name, values=values, first=first, last=last, dtype=dtype))
            count, first = last - first, last
            self._reached += count * dtype.itemsize
            if self._reached == self._end:
                parts, self._parts = self._parts, []
                self._digests.append(self._threads.submit(self._write, self._start, self._end, parts))
                self._given.append(self._end)
                self._start, self._end = self._end, next(self._ends, self._end)

    def settle(self, waiting_bytes: int = 0) -> None:
        """Return once all whole pieces are written, except for the last `waiting_bytes` of them. Raises OSError,
        NotFinite.
        """
        while self._awaited < len(self._digests) and self._given[-1] - self._given[self._awaited] >= waiting_bytes:
            self._digests[self._awaited].result()
            self._awaited += 1

    def finish(self) -> NDArray[np.uint8]:
        """Flush to the disk and close. Return the SHA-256 of each piece, uint8 (P, 32). Raises OSError, NotFinite.

        Raises:
            ValueError: fewer tensors were given than the cuts have room for.
        """
        self.settle()
        if self._reached != self._end:
            raise ValueError(f"{self._path} ends at {self._reached} bytes, but its header announces more")
        os.fsync(self._handle)
        self.close()
        return np.frombuffer(b"".join(one.result() for one in self._digests), np.uint8).reshape(-1, DIGEST_BYTES)

    def close(self) -> None:
        """Close the file as it is."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def _write(self, start: int, end: int, parts: Sequence[_Part]) -> bytes:
        view = memoryview(_bytes_of(parts, end - start))  # type: ignore[arg-type]  # numpy's arrays are buffers
        digest, offset = sha256(view).digest(), start
        while view:
            written = os.pwrite(self._handle, view, offset)
            view, offset = view[written:], offset + written
        if (block := start // WRITE_BACK_BYTES) != end // WRITE_BACK_BYTES:
            _begin_write_back(self._handle, block * WRITE_BACK_BYTES, WRITE_BACK_BYTES)
        return digest


def _begin_write_back(handle: int, offset: int, size: int) -> None:
    """Let the system begin to send these bytes to the disk, which would otherwise idle while this process computes."""
    if _libc_sync_file_range is not None:
        # posix_fadvise would also drop the pages from memory, and wait for all cores to do so.
        _libc_sync_file_range(
            handle, ctypes.c_int64(offset), ctypes.c_int64(size), ctypes.c_uint(SYNC_FILE_RANGE_WRITE)
        )


SYNC_FILE_RANGE_WRITE = 2

_libc_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)  # only on Linux


class _Buffer(threading.local):
    """A thread's memory, as large as its largest piece."""

    data: Tensor = torch.empty(0, dtype=torch.uint8)


_buffer = _Buffer()


def _bytes_of(parts: Sequence[_Part], size_bytes: int) -> NDArray[np.uint8]:
    """Return the parts as they are in the file; valid until this thread calls it again. Raises NotFinite."""
    if len(_buffer.data) < size_bytes:
        _buffer.data = torch.empty(size_bytes, dtype=torch.uint8)
    offset = 0
    for part in parts:
        place = _buffer.data[offset : offset + (part.last - part.first) * part.dtype.itemsize]
        misplaced = offset % part.dtype.itemsize
        offset += len(place)
        if misplaced:  # after a tensor of odd size; no view of the buffer can begin there
            with part.values.reading(part.first, part.last) as values:
                converted = values.to(part.dtype)
                place.copy_(converted.view(torch.uint8))
            _require_finite(part.name, converted)
            continue
        with part.values.reading(part.first, part.last) as values:
            _convert(values, place.view(part.dtype))
        _require_finite(part.name, place.view(part.dtype))
    return _buffer.data[:offset].numpy()


def _convert(values: Tensor, into: Tensor) -> None:
    for first in range(0, len(values), SERIAL):
        into[first : first + SERIAL].copy_(values[first : first + SERIAL])


def copied(kept: Kept, dtype: torch.dtype) -> Tensor:
    """Return all of `kept` as `dtype`, flat, in new memory, without torch's threads."""
    made = torch.empty(kept.numel, dtype=dtype)
    with kept.reading() as values:
        _convert(values, made)
    return made


def _require_finite(name: str, values: Tensor) -> None:
    if not_finite(values):
        raise NotFinite(f"{name!r} holds values that are not finite as {str(values.dtype).removeprefix('torch.')}")
