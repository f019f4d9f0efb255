"""Keep tensors as they were at one moment, so that other threads can read them while training goes on.

A snapshot of tensors on a CPU is copied on write. A reader reads the tensors in place, and right before training
changes them `Snapshot.keep` copies those that were not read yet. A reader holds a tensor only while it copies or
converts a piece of it, so training waits for a piece, and never for a disk or for another rank. Tensors of a GPU are
copied to page-locked memory of the host, on a separate stream, beside the passes that follow (`Crossing`).

Invariants:

- A reader gets the tensor as it was when the snapshot was taken, to the bit, whatever training does after `keep`.
- Memory on a CPU: at most the size of what was not read before `keep`; each copy is freed once it was read.
- Memory for a GPU: on the host the size of the whole snapshot, which is reused for the next one; on the GPU two pieces.
- No collective takes place here: each rank has a snapshot of its own slices.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

SMALL_BYTES = 1024
"""Tensors up to this size are copied at once, because AdamW has a step counter for each of its tensors."""

CROSSING_BYTES = 1 << 26
"""Bytes that are converted together before they are copied to the host: enough for the full speed of the bus."""

ALIGN_BYTES = 64
"""Alignment of tensors in page-locked memory, in bytes, so that any dtype can be viewed there."""


class Kept:
    """One tensor of a snapshot, flat, on the host. Every number is read once; then its memory is freed.

    `live`: training writes to this very memory. `ready`: returns once the values are there. `sources`: other tensors
    that must not be freed until this one was read.
    """

    def __init__(
        self, values: Tensor, *, live: bool = False, ready: Callable[[], None] | None = None, sources: Any = None
    ) -> None:
        self.numel, self.dtype = values.numel(), values.dtype
        self._values: Tensor | None = values.detach().contiguous().reshape(-1)
        self._live = live and self.numel > 0
        self._ready, self._sources = ready, sources
        self._unread = self.numel
        self._readers = 0
        self._copying = False
        self._turn = threading.Condition()

    @contextmanager
    def reading(self, first: int = 0, last: int | None = None) -> Iterator[Tensor]:
        """Yield the numbers from `first` up to `last`, which do not change inside the block. Only copy them inside.

        Raises:
            RuntimeError: all of it was read before, or was released.
        """
        last = self.numel if last is None else last
        if self._ready is not None:
            self._ready()
        with self._turn:
            self._turn.wait_for(lambda: not self._copying)
            if self._values is None:
                raise RuntimeError("this tensor of a snapshot was read already, or released")
            values, live = self._values[first:last], self._live
            self._readers += live
        try:
            yield values
        finally:
            with self._turn:
                self._readers -= live
                self._unread -= last - first
                if self._unread <= 0:
                    self._values = self._sources = None
                self._turn.notify_all()

    def keep(self, *, wait: bool) -> None:
        """Copy a tensor that training is about to change. While it is read, do so only with `wait`, after the piece."""
        with self._turn:
            if self._values is None or not self._live or (self._readers and not wait):
                return
            self._copying = True
            self._turn.wait_for(lambda: not self._readers)
            if self._values is not None:
                self._copy()
            self._copying = False
            self._turn.notify_all()

    def _copy(self) -> None:
        assert self._values is not None
        try:
            self._values = copy_of(self._values)
            self._live = False
        except RuntimeError:  # torch raises it when memory runs out: wait until the tensor was read
            self._copying = False
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._values is None)

    def release(self) -> None:
        """Free the tensor; nobody will read it."""
        with self._turn:
            self._values = self._sources = None
            self._turn.notify_all()


def copy_of(values: Tensor) -> Tensor:
    """Return a copy of `values`, which is flat. Raises RuntimeError if there is no memory."""
    made = torch.empty_like(values)
    if values.nbytes >= HUGE_BYTES and _libc_madvise is not None:
        start = -(-made.data_ptr() // PAGE_BYTES) * PAGE_BYTES
        size = (made.data_ptr() + made.nbytes - start) // PAGE_BYTES * PAGE_BYTES
        _libc_madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), MADV_HUGEPAGE)  # only advice: it may fail
    return made.copy_(values)


HUGE_BYTES = 1 << 22
"""From this size on new memory is requested in huge pages: page by page it is copied at a third of the speed."""

PAGE_BYTES = 4096

MADV_HUGEPAGE = 14

_libc_madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None


class Snapshot:
    """The `tensors` as they are now; `kept` holds them in the same order.

    Tensors of a GPU are copied to the host as `dtypes`, with `crossing`; those on the host stay as they are. Each must
    be this rank's own slice. Call `keep` before each change of the tensors.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        dtypes: Sequence[torch.dtype] | None = None,
        crossing: Crossing | None = None,
    ) -> None:
        wanted = dtypes or [tensor.dtype for tensor in tensors]
        far = [i for i, tensor in enumerate(tensors) if tensor.device.type != "cpu"]
        if far and crossing is None:
            crossing = Crossing(SideStream(tensors[far[0]].device))
        self._crossing = crossing
        crossed = crossing.take([(tensors[i], wanted[i]) for i in far]) if crossing is not None else []
        arrived = dict(zip(far, crossed, strict=True))
        self.kept = [arrived[i] if i in arrived else _on_host(tensor) for i, tensor in enumerate(tensors)]

    def keep(self) -> None:
        """Return once training may change the tensors. Copies those that were not read, and waits only for pieces that
        are being read. On a GPU the current stream waits and the host does not.
        """
        if self._crossing is not None:
            self._crossing.hold_back()
        for wait in (False, True):
            for kept in reversed(self.kept):  # the reader begins at the other end
                kept.keep(wait=wait)

    def close(self) -> None:
        """Free all that was not read. Nobody may be reading."""
        for kept in self.kept:
            kept.release()


def _on_host(tensor: Tensor) -> Kept:
    if tensor.nbytes <= SMALL_BYTES:
        return Kept(tensor.detach().clone())
    return Kept(tensor, live=tensor.is_contiguous())


class Side(Protocol):
    """The operations that a crossing needs of a device. Tests have an implementation without a GPU."""

    def page_locked(self, size_bytes: int) -> Tensor:
        """Return new memory of the host, uint8, once no copy into older memory is pending."""

    def behind(self) -> AbstractContextManager[None]:
        """Run the block's computations and copies after those that the current stream has already, and beside those
        that it gets later.
        """

    def mark(self) -> Any:
        """Return an event, with `synchronize`, for everything requested on the side so far."""

    def hold_back(self, event: Any) -> None:
        """Let the current stream wait for `event`."""


class Crossing:
    """Copies tensors from a GPU to page-locked memory of the host, which is reused, because locking it takes seconds.

    It serves one snapshot at a time: nobody may read the previous one when `take` is called.
    """

    def __init__(self, side: Side) -> None:
        self._side = side
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._last: Any = None

    def take(self, tensors: Sequence[tuple[Tensor, torch.dtype]]) -> list[Kept]:
        """Begin to copy `tensors`, each as the dtype beside it; the device converts them. Does not wait."""
        ends = [0]
        for tensor, dtype in tensors:
            ends.append(ends[-1] + -(-tensor.numel() * dtype.itemsize // ALIGN_BYTES) * ALIGN_BYTES)
        if ends[-1] > len(self._memory):
            self._memory = torch.empty(0, dtype=torch.uint8)  # first free the old memory: both may be too much
            self._memory = self._side.page_locked(ends[-1])
        with self._side.behind():
            return [self._cross(one, dtype, start) for (one, dtype), start in zip(tensors, ends[:-1], strict=True)]

    def _cross(self, tensor: Tensor, dtype: torch.dtype, start: int) -> Kept:
        flat = tensor.detach().reshape(-1)
        host = self._memory[start : start + len(flat) * dtype.itemsize].view(dtype)
        step = CROSSING_BYTES // dtype.itemsize
        for first in range(0, len(flat), step):
            host[first : first + step].copy_(flat[first : first + step].to(dtype), non_blocking=True)
        self._last = self._side.mark()
        return Kept(host, ready=self._last.synchronize, sources=tensor)

    def hold_back(self) -> None:
        """Let the device change the tensors only once they were copied; the host does not wait."""
        if self._last is not None:
            self._side.hold_back(self._last)


class SideStream:
    """`Side` on CUDA."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def page_locked(self, size_bytes: int) -> Tensor:
        """Register memory directly, because torch's own allocator would round up to a power of two."""
        self._stream.synchronize()
        memory = torch.empty(size_bytes, dtype=torch.uint8)
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(runtime.cudaHostRegister(memory.data_ptr(), size_bytes, 0))
        weakref.finalize(memory, _unlock, runtime, self._stream, memory.data_ptr()).atexit = False
        return memory

    @contextmanager
    def behind(self) -> Iterator[None]:
        """See `Side`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> Any:
        """See `Side`."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def hold_back(self, event: Any) -> None:
        """See `Side`."""
        torch.cuda.current_stream(self._device).wait_event(event)


def _unlock(runtime: Any, stream: Any, address: int) -> None:
    stream.synchronize()  # copies of a snapshot that was not read to its end may still be pending
    runtime.cudaHostUnregister(address)
