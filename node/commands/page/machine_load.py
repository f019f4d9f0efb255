"""Measure how busy this machine is with a node: processor, memory, and NVIDIA's GPUs.

Invariant: nothing here raises for what a machine lacks or a driver refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from node.energy.nvml import Gpus, find_gpus


@dataclass(frozen=True, kw_only=True)
class GpuLoad:
    """One GPU. `busy`: fraction of the last moments; None if it is not reported."""

    name: str
    busy: float | None = None
    used_bytes: int | None = None
    celsius: int | None = None


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the node and its children use. `cpu`: fraction of all cores."""

    cpu: float = 0.0
    cores: int = 1
    memory_bytes: int = 0
    all_memory_bytes: int = 0
    gpus: Sequence[GpuLoad] = ()


@dataclass(eq=False)
class LoadMeter:
    """Measures the process `pid` with its children, from one call to the next.

    Make it on a thread, because it asks the driver.
    """

    pid: int
    _before: dict[int, psutil.Process] = field(default_factory=dict)
    _gpus: Gpus | None = field(default_factory=find_gpus)

    def measure(self) -> Load:
        """Return the load since the last call. The driver may take its time: call it on a thread."""
        cpu, memory, now = 0.0, 0, {}
        with suppress(psutil.Error):
            root = psutil.Process(self.pid)
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.Error):
                    known = self._before.get(process.pid)
                    process = known if known is not None and known == process else process
                    now[process.pid] = process
                    cpu += process.cpu_percent(None)
                    memory += process.memory_info().rss
        self._before = now
        cores = psutil.cpu_count() or 1
        return Load(
            cpu=cpu / 100 / cores,
            cores=cores,
            memory_bytes=memory,
            all_memory_bytes=psutil.virtual_memory().total,
            gpus=tuple(self._gpu_loads()),
        )

    def _gpu_loads(self) -> Iterator[GpuLoad]:
        if self._gpus is None:
            return
        for index, gpu in enumerate(self._gpus.gpus):
            yield GpuLoad(
                name=gpu.name,
                busy=self._gpus.busy(index),
                used_bytes=self._gpus.used_bytes(index),
                celsius=self._gpus.celsius(index),
            )
