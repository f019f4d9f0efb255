"""Connect the processes that train one policy together, for all communication besides tensors of the model.

A failure that is not agreed on ends the process, and torchrun ends the others: no rank waits for one that is gone.
A single process has no process group at all, unless a GPU or a narrower compute dtype needs one of a single member.
Requests travel over gloo on the CPU, tensors of the model over nccl between GPUs and over gloo otherwise.

Invariants:

- Every rank gets the same requests in the same order, as the bytes that rank 0 read from the pipe.
- An operation that may fail on one rank alone is done inside `agreeing`; then it failed on all ranks or on none.
- Numbers are added up in the order of ranks, so equal inputs give equal sums.
- Nothing here is pickled.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from learner.artifacts.atomic_directory import new_directory, partial_of
from learner.trainer_api.errors import BadRequest, Elsewhere, agreed, explain
from learner.trainer_api.requests import ComputeDtype, Device
from learner.training.distributed.machines.interfaces import stay_here
from learner.training.distributed.rendezvous import connecting, wait_for_all

TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for another inside one request. It is longer than exporting or saving the largest model takes,
and it ends a run in which a machine vanished without closing its connections."""

HEARTBEAT_S = 60.0
"""How often rank 0 sends idle ranks a sign of life, so that `TIMEOUT` means a lost rank and not a slow swarm."""

MESSAGE_BYTES = 4096
"""Most bytes that a rank sends about its failure: a paragraph."""

LAUNCHER = "VOLERY_LAUNCHER"
"""Environment variable with the id of the process that started the ranks: it may be gone before they ask for it."""

PR_SET_PDEATHSIG = 1

Number = TypeVar("Number", np.float32, np.uint8)


@dataclass(kw_only=True)
class Ranks:
    """This process, number `number` of `count`. Made by `open_ranks`, or as `Ranks()` for one process alone.

    `mesh` is where the model's tensors are, None for a plain module; `host_mesh` has the same ranks on their CPUs.
    `group` carries the messages of this class. `aside` and `outward` are groups for the threads that write checkpoints
    and exports. No two threads may share a group: each would take the other's messages for replies.
    """

    number: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    mesh: DeviceMesh | None = None
    host_mesh: DeviceMesh | None = None
    compute_dtype: torch.dtype = torch.float32
    group: dist.ProcessGroup | None = None
    aside: dist.ProcessGroup | None = None
    outward: dist.ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        """Whether this rank communicates with the node."""
        return self.number == 0

    def place(self, device: Device, compute_dtype: ComputeDtype) -> None:
        """Choose the device and the dtype of computations. "auto" is bfloat16 on a GPU if there is one, else float32 on
        a CPU.

        Raises BadRequest when there is no such device, or fewer GPUs than ranks.
        """
        with self.agreeing():
            self.device = _device(device)
        wide = compute_dtype == "float32" or (compute_dtype == "auto" and self.device.type == "cpu")
        self.compute_dtype = torch.float32 if wide else torch.bfloat16
        if self.count == 1 and self.device.type == "cpu" and wide:
            self.mesh = None  # a plain module: nothing to shard, nothing to convert
            return
        if not dist.is_initialized():
            _begin_group(0, 1)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.mesh is None or self.mesh.device_type != self.device.type:
            self.host_mesh = init_device_mesh("cpu", (self.count,))
            self.mesh = self.host_mesh if self.device.type == "cpu" else init_device_mesh("cuda", (self.count,))

    def beside(self) -> Ranks:
        """Return the same ranks, for the thread that writes a checkpoint."""
        return replace(self, group=self.aside)

    def exporting(self) -> Ranks:
        """Return the same ranks, for the thread that writes an export."""
        return replace(self, group=self.outward)

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Run a block that may fail on this rank alone: if it fails on one rank, it fails on all ranks.

        Raises what was raised inside, or `Elsewhere`. No collective may be inside: a rank that failed would miss it.
        """
        if self.count == 1:
            yield
            return
        failed: Exception | None = None
        try:
            yield
        except Exception as error:  # any error at all: the other ranks must learn of it before it is raised
            failed = error
        told = self._gathered_messages("" if failed is None else _described(failed))
        if failed is not None:
            raise agreed(failed)
        for number, message in enumerate(told):
            if message:
                kind, text = json.loads(message)
                raise Elsewhere(kind, f"rank {number}: {text}")

    def total(self, values: Sequence[float]) -> list[float]:
        """Return the sum of each value over the ranks, in float64."""
        return self._gathered(values).sum(axis=0).tolist() if self.count > 1 else [float(value) for value in values]

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return the largest of each value over the ranks; NaN if one of them is NaN."""
        return self._gathered(values).max(axis=0).tolist() if self.count > 1 else [float(value) for value in values]

    def combine(self, array: NDArray[Number]) -> NDArray[Number]:
        """Return `array` with all places filled. Every rank filled some places, and left 0 in the others."""
        if self.count > 1:
            dist.all_reduce(torch.from_numpy(array), group=self.group)
        return array

    def add_up(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over the ranks. It must be small, because it goes through the host."""
        if self.count > 1:
            on_host = tensor.detach().cpu()
            dist.all_reduce(on_host, group=self.group)
            tensor.copy_(on_host)

    def gather(self, mine: Tensor, to: int) -> Tensor | None:
        """Return every rank's `mine`, (count, bytes), on rank `to`, else None. All have equal sizes, on the host."""
        every = torch.empty((self.count, len(mine)), dtype=torch.uint8) if self.number == to else None
        dist.gather(mine, None if every is None else list(every), dst=to, group=self.group)
        return every

    def share(self, data: bytes | None) -> bytes | None:
        """Return the data of rank 0 on every rank. None means the end, b"" is only a sign of life."""
        if self.count == 1:
            return data
        size = torch.tensor([-1 if data is None else len(data)])
        dist.broadcast(size, 0, group=self.group)
        if size.item() <= 0:
            return None if size.item() < 0 else b""
        frame = torch.empty(int(size.item()), dtype=torch.uint8)
        if data is not None and self.is_first:
            frame = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(frame, 0, group=self.group)
        return frame.numpy().tobytes()

    def _gathered(self, values: Sequence[float]) -> NDArray[np.float64]:
        mine = torch.tensor(values, dtype=torch.float64)
        every = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(every, mine, group=self.group)
        return torch.stack(every).numpy()

    def _gathered_messages(self, text: str) -> list[str]:
        mine = torch.from_numpy(np.frombuffer(text.encode().ljust(MESSAGE_BYTES, b"\0"), np.uint8).copy())
        every = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(every, mine, group=self.group)
        return [one.numpy().tobytes().rstrip(b"\0").decode() for one in every]


@contextmanager
def new_shared_directory(ranks: Ranks, path: Path) -> Iterator[Path]:
    """Provide `learner.artifacts.atomic_directory.new_directory` for all ranks, which share a disk: rank 0 makes and
    renames it.

    Errors raised inside must be agreed on. Raises FileExistsError, OSError, Elsewhere.
    """
    with ExitStack() as stack:
        with ranks.agreeing():
            partial = stack.enter_context(new_directory(path)) if ranks.is_first else partial_of(path)
        with ranks.agreeing():
            if not partial.is_dir():
                raise OSError(errno.ENOENT, "not there for this rank; all machines must share this disk", str(partial))
        yield partial
        with ranks.agreeing():
            pass  # no rank looks into it any more under its first name
        with ranks.agreeing():
            stack.close()


def is_ranked() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Return whether this process is rank 0, or alone."""
    return not is_ranked() or os.environ["RANK"] == "0"


def open_ranks(tell: Callable[[str], None] = lambda text: None) -> Ranks:
    """Join the other ranks if torchrun started this process; otherwise return a single rank. Waits for all ranks, and
    reports through `tell` when that takes long. Raises NotHere when a rank does not come.
    """
    if not is_ranked():
        return Ranks()
    end_with_parent()
    number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, _, _ = next(rendezvous("env://", timeout=TIMEOUT))
    wait_for_all(store, number, count, tell)
    with connecting(tell):
        _begin_group(number, count, store)
    aside, outward = (dist.new_group(backend="gloo", timeout=TIMEOUT) for _ in range(2))
    return Ranks(number=number, count=count, aside=aside, outward=outward)


def end_with_parent() -> None:
    """Let the kernel kill this process when torchrun is killed. torchrun puts every rank into a session of its own, so
    the node's signal to torchrun's group does not reach the ranks.
    """
    if sys.platform == "linux":
        parent = int(os.environ.get(LAUNCHER, os.getppid()))
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before the call above
            os.kill(os.getpid(), signal.SIGKILL)


def _begin_group(number: int, count: int, store: Store | None = None) -> None:
    """Meet in `store`; without one in memory, so that no port is opened."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if store is None:
        stay_here()
    dist.init_process_group(backend, timeout=TIMEOUT, store=store or HashStore(), rank=number, world_size=count)


def _device(device: Device) -> torch.device:
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cpu" or (device == "auto" and not available):
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= available:
        fewer = f"[trainer] ranks = {available}, or " if available else ""
        raise BadRequest(
            f"device: {device!r} needs a GPU for each rank of this machine, but there are {available}; "
            f'set {fewer}device = "cpu"'
        )
    return torch.device("cuda", local)


def _described(error: Exception) -> str:
    kind, text = explain(error)
    return json.dumps([kind, text[: MESSAGE_BYTES // 8]])  # JSON takes up to six bytes for a character
