"""Choose the devices that are metered, read them, and report on them.

The GPUs are made up, at the edge where the driver's library would be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from node.config.common import EnergySection
from node.config.node_config import EngineSection
from node.config.swarm_config import TrainerSection
from node.energy.meter_selection import (
    HIDDEN,
    UNKNOWN,
    Devices,
    Meters,
    choose_meters,
    devices_of,
    devices_of_trainer,
    find_meters,
    visible,
)
from node.energy.nvml import Gpu, Gpus
from node.energy.rapl import Rapl, Zone
from node.energy.typical_power import CPU_WATTS, GPU_WATTS, cpu_name, cpu_watts, gpu_watts
from protocol.accounting.claims import EnergySource

H100 = "NVIDIA H100 80GB HBM3"
NO_RAPL = Rapl(zones=())


@dataclass
class MadeUp:
    """GPUs that tell what they are made to."""

    names: list[str]
    counted: dict[int, float] = field(default_factory=dict)
    drawn: dict[int, float] = field(default_factory=dict)

    @property
    def gpus(self) -> list[Gpu]:
        return [Gpu(name=name, uuid=f"GPU-{index}f00") for index, name in enumerate(self.names)]

    def joules(self, index: int) -> float | None:
        return self.counted.get(index)

    def watts(self, index: int) -> float | None:
        return self.drawn.get(index)


def chosen(
    gpus: MadeUp | None = None,
    rapl: Rapl = NO_RAPL,
    *,
    devices: Devices = Devices(num_gpus=1),  # noqa: B008
    section: EnergySection = EnergySection(),  # noqa: B008
    processor: str = "",
    environment: dict[str, str] | None = None,
) -> Meters:
    return choose_meters(
        section, devices, gpus=gpus, rapl=rapl, processor=processor, threads=32, environment=environment or {}
    )


@pytest.fixture
def rapl(tmp_path: Path) -> Rapl:
    (tmp_path / "energy_uj").write_text("2000000")
    return Rapl(zones=(Zone(path=tmp_path, wraps_at=1000.0),))


def test_what_an_engine_computes_on() -> None:
    assert devices_of(EngineSection(kind="fake")) == Devices()
    assert devices_of(EngineSection(kind="transformers", device="cpu")) == Devices()
    assert devices_of(EngineSection(kind="transformers")) == Devices(num_gpus=1)
    assert devices_of(EngineSection(kind="transformers", device="cuda:3")) == Devices(num_gpus=1, first=3)
    assert devices_of(EngineSection(kind="vllm", device="cuda", tensor_parallel_size=4)) == Devices(num_gpus=4)
    assert devices_of_trainer(TrainerSection(device="cpu")) == Devices()
    assert devices_of_trainer(TrainerSection(ranks=8)) == Devices(num_gpus=8)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (None, (0, 1, 2)), ("2,0", (2, 0)), ("", ()), ("1,7,0", (1,)), ("GPU-2f, GPU-0", (2, 0)), ("GPU-", ()),
        ("-1", ()), ("MIG-x", ()),
    ],
)  # fmt: skip
def test_which_gpus_programs_see(said: str | None, found: tuple[int, ...]) -> None:
    environment = {} if said is None else {"CUDA_VISIBLE_DEVICES": said}
    assert visible(MadeUp([H100] * 3).gpus, environment) == found


def test_only_the_gpus_that_are_used_are_read(rapl: Rapl) -> None:
    gpus = MadeUp([H100] * 4, counted={0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0})
    meters = chosen(gpus, rapl, devices=Devices(num_gpus=2, first=1), environment={"CUDA_VISIBLE_DEVICES": "3,2,1"})
    assert [reading.device for reading in meters.look()] == [rapl.zones[0].path.name, "gpu:2", "gpu:1"]
    assert meters.watts is None
    assert meters.told == f"meters of {H100}, {H100} (NVML), and the processors' (RAPL)"


def test_a_gpu_that_does_not_count_tells_watts_and_one_that_tells_nothing_is_in_the_table() -> None:
    meters = chosen(MadeUp([H100], drawn={0: 250.0}))
    [reading] = meters.look()
    assert (reading.source, getattr(reading, "watts", None)) == (EnergySource.NVML, 250.0)
    assert meters.told == f"meters of {H100} (NVML), without the processors"
    assert chosen(MadeUp([H100], drawn={0: 1.0}), Rapl(zones=(), is_hidden=True)).told.endswith(HIDDEN)
    meters = chosen(MadeUp([H100, "NVIDIA T4"]), devices=Devices(num_gpus=2))
    assert (meters.watts, meters.source, meters.look()) == (770.0, EnergySource.TABLE, [])
    assert chosen(MadeUp(["a GPU of tomorrow"])) == Meters(told=UNKNOWN)


def test_processors_alone(rapl: Rapl) -> None:
    meters = chosen(None, rapl)
    assert ([one.source for one in meters.look()], meters.watts) == ([EnergySource.RAPL], None)
    assert chosen(MadeUp([H100], counted={0: 1.0}), rapl, devices=Devices()).look() == meters.look()
    hidden = Rapl(zones=(), is_hidden=True)
    meters = chosen(None, hidden, processor="AMD Ryzen 9 7950X 16-Core Processor")
    assert meters.watts == 170.0
    assert HIDDEN in meters.told
    assert chosen(None, hidden).told == f"{UNKNOWN}; {HIDDEN}"


def test_what_the_owner_says_goes_before_every_meter(rapl: Rapl) -> None:
    meters = chosen(MadeUp([H100], counted={0: 1.0}), rapl, section=EnergySection(watts=333.0))
    assert (meters.watts, meters.source, meters.look()) == (333.0, EnergySource.OWNER, [])


def test_this_machine_whatever_it_has(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: 13th Gen Intel(R) Core(TM) i9-13900K\n")
    meters = find_meters(EnergySection(), Devices(), powercap=tmp_path, cpuinfo=cpuinfo)
    assert meters.told.startswith("typical watts of 13th Gen Intel(R) Core(TM) i9-13900K")
    assert find_meters(EnergySection(), Devices(), powercap=tmp_path, cpuinfo=tmp_path / "none").told == UNKNOWN
    assert isinstance(find_meters(EnergySection(), Devices(num_gpus=1)).look(), list), "with a driver or without"


@pytest.mark.parametrize(
    ("name", "watts"),
    [
        (H100, 700), ("NVIDIA H100 PCIe", 350), ("NVIDIA H100 NVL", 400), ("NVIDIA A100-PCIE-40GB", 300),
        ("NVIDIA A100-SXM4-80GB", 400), ("NVIDIA L4", 72), ("NVIDIA L40S", 350), ("NVIDIA A10G", 300),
        ("NVIDIA A10", 150), ("Tesla T4", 70), ("NVIDIA RTX A4000", 140), ("NVIDIA RTX 4000 Ada Generation", 130),
        ("NVIDIA GeForce RTX 4090", 450), ("NVIDIA GeForce RTX 4090 Laptop GPU", None), ("NVIDIA H20", 400),
        ("NVIDIA GeForce RTX 3060 Ti", 200), ("NVIDIA GeForce RTX 3060", 170), ("NVIDIA B200", 1000), ("", None),
    ],
)  # fmt: skip
def test_the_table_of_gpus(name: str, watts: float | None) -> None:
    assert gpu_watts(name) == watts


@pytest.mark.parametrize(
    ("name", "watts"),
    [
        ("AMD EPYC 9654 96-Core Processor", 60.0), ("Intel(R) Xeon(R) Platinum 8480+", 100.0),
        ("AMD Ryzen 7 5700X 8-Core Processor", 130.0), ("Intel(R) Xeon(R) Processor", None),
        ("Intel(R) Core(TM) i7-10700K CPU @ 3.80GHz", None), ("Intel(R) Core(TM) i7-10700 CPU @ 2.90GHz", 130.0),
    ],
)  # fmt: skip
def test_the_table_of_processors_counts_the_threads_that_are_here(name: str, watts: float | None) -> None:
    assert cpu_watts(name, 32) == watts


def test_every_row_of_the_tables_can_be_found() -> None:
    """A row that an earlier one always hides would be of no use: 1 to 1400 W, a package of 4 threads at least."""
    assert all(1 < watts <= 1400 for _, watts in GPU_WATTS)
    assert all(6 <= watts <= 500 and threads >= 4 for _, watts, threads in CPU_WATTS)
    assert cpu_name(Path("/nonexistent")) == ""


class DeadDriver:
    """A driver whose library is there and whose every call fails, and which loses a GPU after a while."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.is_lost = False

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 1:
            raise self.NVMLError("no permission")
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return H100

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return "GPU-1"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        if self.is_lost:
            raise self.NVMLError("GPU is lost")
        return 1500

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        raise self.NVMLError("not supported")


def test_errors_of_the_driver_are_nothing_told() -> None:
    driver = DeadDriver()
    gpus = Gpus(driver)
    assert [gpu.name for gpu in gpus.gpus] == [H100]
    assert (gpus.joules(0), gpus.watts(0)) == (1.5, None)
    driver.is_lost = True
    assert gpus.joules(0) is None
