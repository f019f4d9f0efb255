"""NVIDIA's GPUs as their driver shows them: names, joules since the driver was loaded (Volta and younger), else watts.

What always holds: nothing here raises for what a driver lacks, refuses or loses; without a driver there are no GPUs.
A GPU's counter is of the whole board, other programs included. The library is imported when GPUs are looked for, and
calls into it may wait for the driver: on a thread, never in the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

MILLI = 1e-3


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One of them, in the driver's order."""

    name: str
    uuid: str


class Gpus:
    """Those of a machine, by NVML, once that was initialised."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles: list[Any] = []
        found = []
        with suppress(nvml.NVMLError):
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found.append(Gpu(name=str(nvml.nvmlDeviceGetName(handle)), uuid=str(nvml.nvmlDeviceGetUUID(handle))))
                self._handles.append(handle)
        self.gpus: Sequence[Gpu] = tuple(found)

    def joules(self, index: int) -> float | None:
        """Since the driver was loaded; None where the GPU does not count."""
        with suppress(self._nvml.NVMLError):
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handles[index])) * MILLI
        return None

    def watts(self, index: int) -> float | None:
        """Just now; None where the GPU does not tell."""
        with suppress(self._nvml.NVMLError):
            return float(self._nvml.nvmlDeviceGetPowerUsage(self._handles[index])) * MILLI
        return None

    def memory_bytes(self, index: int) -> int | None:
        """Of the whole board; None where the GPU does not tell."""
        with suppress(self._nvml.NVMLError):
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handles[index]).total)
        return None


def gpu_memory_bytes(number: int) -> int | None:
    """The memory of the GPU of this number, as the driver counts; None where there is none, or it does not tell."""
    gpus = find_gpus()
    return gpus.memory_bytes(number) if gpus is not None and number < len(gpus.gpus) else None


def find_gpus() -> Gpus | None:
    """The GPUs of this machine; None without a driver, or one that cannot be talked to."""
    try:
        import pynvml
    except ImportError:  # an installation without it: as without a driver
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    found = Gpus(pynvml)
    return found if found.gpus else None
