"""Measure how busy this machine is with a node: processor, memory, and NVIDIA's GPUs.

Invariant: nothing here raises for what a machine lacks or a driver refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil


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
    """Measures the process `pid` with its children, from one call to the next."""

    pid: int
    _before: dict[int, psutil.Process] = field(default_factory=dict)
    _nvml: Any = None

    def __post_init__(self) -> None:
        with suppress(Exception):  # no driver, or none that answers: there are no GPUs
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml

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
            gpus=tuple(self._gpus()),
        )

    def _gpus(self) -> list[GpuLoad]:
        found: list[GpuLoad] = []
        if (nvml := self._nvml) is None:
            return found
        with suppress(nvml.NVMLError):
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found.append(
                    GpuLoad(
                        name=str(nvml.nvmlDeviceGetName(handle)),
                        busy=_asked(nvml, lambda h=handle: nvml.nvmlDeviceGetUtilizationRates(h).gpu / 100),
                        used_bytes=_asked(nvml, lambda h=handle: int(nvml.nvmlDeviceGetMemoryInfo(h).used)),
                        celsius=_asked(
                            nvml, lambda h=handle: int(nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU))
                        ),
                    )
                )
        return found


def _asked(nvml: Any, ask: Any) -> Any:
    with suppress(nvml.NVMLError):
        return ask()
    return None
