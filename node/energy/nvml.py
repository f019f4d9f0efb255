"""Read NVIDIA's GPUs from their driver: names, joules since the driver was loaded (Volta and younger), else watts.

A GPU's counter covers the whole board, other programs included. The library is imported when GPUs are looked for. Calls
into it may wait for the driver, so they belong on a thread, never in the event loop.

Invariants:

- Nothing here raises for what a driver lacks, refuses or loses. Without a driver there are no GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

MILLI = 1e-3


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU, in the driver's order."""

    name: str
    uuid: str


class Gpus:
    """The GPUs of a machine, by an initialised NVML."""

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
        """Return the joules since the driver was loaded; None if the GPU does not count them."""
        with suppress(self._nvml.NVMLError):
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handles[index])) * MILLI
        return None

    def watts(self, index: int) -> float | None:
        """Return the watts drawn now; None if the GPU does not report them."""
        with suppress(self._nvml.NVMLError):
            return float(self._nvml.nvmlDeviceGetPowerUsage(self._handles[index])) * MILLI
        return None

    def busy(self, index: int) -> float | None:
        """Return the fraction of the last moments in which the GPU computed; None if it does not report it."""
        with suppress(self._nvml.NVMLError):
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handles[index]).gpu) / 100
        return None

    def celsius(self, index: int) -> int | None:
        """Return the temperature; None if the GPU does not report it."""
        with suppress(self._nvml.NVMLError):
            sensor = self._nvml.NVML_TEMPERATURE_GPU
            return int(self._nvml.nvmlDeviceGetTemperature(self._handles[index], sensor))
        return None

    def used_bytes(self, index: int) -> int | None:
        """Return the memory in use, by all programs; None if the GPU does not report it."""
        with suppress(self._nvml.NVMLError):
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handles[index]).used)
        return None

    def memory_bytes(self, index: int) -> int | None:
        """Return the memory of the whole board; None if the GPU does not report it."""
        with suppress(self._nvml.NVMLError):
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handles[index]).total)
        return None


def gpu_memory_bytes(number: int) -> int | None:
    """Return the memory of the GPU with this number, in the driver's order; None if it is missing or not reported."""
    gpus = find_gpus()
    return gpus.memory_bytes(number) if gpus is not None and number < len(gpus.gpus) else None


def find_gpus() -> Gpus | None:
    """Return the GPUs of this machine; None without a driver that answers."""
    try:
        import pynvml
    except ImportError:  # without the library, as without a driver
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    found = Gpus(pynvml)
    return found if found.gpus else None
