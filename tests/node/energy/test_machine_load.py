"""The load of a machine: of the node and its children, whatever the machine lacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from node.energy.machine_load import GpuLoad, Load, LoadMeter
from node.energy.nvml import Gpus


def test_this_process_uses_memory_and_the_processor() -> None:
    meter = LoadMeter(os.getpid())
    assert meter.measure().cpu is None, "there was no time yet to measure over"
    sum(number * number for number in range(3_000_000))
    load = meter.measure()
    assert load.cpu is not None
    assert 0 < load.cpu <= 1.5
    assert load.cores >= 1
    assert 1 << 20 < load.memory_bytes < load.all_memory_bytes


def test_a_process_that_is_gone_uses_nothing() -> None:
    load = LoadMeter(2**31 - 1).measure()
    assert (load.cpu, load.memory_bytes) == (None, 0)


class Driver:
    """NVIDIA's library, of which each call in `refused` is refused."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, *refused: str) -> None:
        self.refused = refused

    def __getattr__(self, name: str) -> Any:
        if name in self.refused:
            raise self.NVMLError(name)
        told: dict[str, Any] = {
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetHandleByIndex": None,
            "nvmlDeviceGetName": "a GPU",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetUtilizationRates": type("Rates", (), {"gpu": 40}),
            "nvmlDeviceGetMemoryInfo": type("Memory", (), {"used": 1 << 30}),
            "nvmlDeviceGetTemperature": 61,
        }
        return lambda *_: told[name]


def gpus(*refused: str) -> Iterator[GpuLoad]:
    meter = LoadMeter(os.getpid())
    meter._gpus = Gpus(Driver(*refused))
    yield from meter.measure().gpus


def test_gpus_tell_what_their_driver_tells() -> None:
    assert list(gpus()) == [GpuLoad(name="a GPU", busy=0.4, used_bytes=1 << 30, celsius=61)] * 2
    assert list(gpus("nvmlDeviceGetTemperature")) == [GpuLoad(name="a GPU", busy=0.4, used_bytes=1 << 30)] * 2
    assert list(gpus("nvmlDeviceGetUtilizationRates")) == [GpuLoad(name="a GPU", used_bytes=1 << 30, celsius=61)] * 2
    for call in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName"):
        assert list(gpus(call)) == []


# In words


@pytest.mark.parametrize(
    ("gpu", "text"),
    [
        (GpuLoad(name="A10", busy=0.4, used_bytes=1 << 30, celsius=61), "A10 40.0% busy, 1 GiB used, 61 °C"),
        (GpuLoad(name="A10", busy=0.0), "A10 0.0% busy"),
        (GpuLoad(name="A10", used_bytes=1 << 30, celsius=61), "A10 1 GiB used, 61 °C"),
        (GpuLoad(name="A10"), "A10"),
    ],
)
def test_a_gpu_says_what_is_known(gpu: GpuLoad, text: str) -> None:
    assert gpu.figure.text == text


def test_a_load_begins_with_the_processor_and_the_memory() -> None:
    load = Load(cpu=0.25, cores=1, memory_bytes=1 << 20, all_memory_bytes=2 << 30, gpus=[GpuLoad(name="A10")])
    assert [one.text for one in load.figures] == ["processor 25.0% of 1 core", "memory 1 MiB of 2 GiB", "A10"]
