"""Decide which devices count on this machine, and how they are read.

The owner's figure comes before every meter, and meters before the table. A device that is in none of them is unknown.
Pure but for `find_meters`.

Invariants:

- Only GPUs that the engine may use count, not all GPUs of the machine.
- A sentence explains the choice (`Meters.told`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.config.common import EnergySection
from node.config.node_config import EngineSection
from node.config.swarm_config import TrainerSection
from node.energy.meter import Counter, Power, Reading
from node.energy.nvml import Gpu, Gpus, find_gpus
from node.energy.rapl import POWERCAP, Rapl, find_rapl
from node.energy.typical_power import CPUINFO, cpu_name, cpu_watts, gpu_watts
from protocol.accounting.claims import EnergySource

HIDDEN = (
    "only root may read the processors' counters; `sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj` lets "
    "everybody read them"
)
UNKNOWN = "not counted, since no meter can be read here. Set [energy] watts to what the machine draws"


NO_RAPL = Rapl(zones=())


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Devices that compute: processors alone, or the first `num_gpus` of the visible GPUs from number `first` on."""

    num_gpus: int = 0
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class Meters:
    """Meters to read, and an estimate: `watts` while the engine computes, from `source`. `told` explains the choice."""

    told: str
    gpus: Gpus | None = None
    indexes: tuple[int, ...] = ()
    rapl: Rapl = NO_RAPL
    watts: float | None = None
    source: EnergySource = EnergySource.TABLE

    def look(self) -> list[Reading]:
        """Return what the meters show now. May wait for a driver."""
        found = [] if self.gpus is None else [_of_gpu(self.gpus, index) for index in self.indexes]
        return [*self.rapl.look(), *(reading for reading in found if reading is not None)]


def devices_of(engine: EngineSection) -> Devices:
    """Return the devices that an engine computes on. Its kind is already chosen."""
    if engine.kind == "fake" or engine.device in ("cpu", "mps"):
        return Devices()
    _, _, number = engine.device.partition(":")
    return Devices(
        num_gpus=engine.tensor_parallel_size if engine.kind == "vllm" else 1, first=int(number) if number else 0
    )


def devices_of_trainer(trainer: TrainerSection) -> Devices:
    """Return the devices of this machine that the trainer computes on."""
    return Devices() if trainer.device == "cpu" else Devices(num_gpus=trainer.ranks)


def visible(gpus: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """Return the indexes of the GPUs that CUDA shows to programs here, in its order.

    As in CUDA, names after one that matches no GPU are ignored. CUDA counts the fastest GPU first unless
    CUDA_DEVICE_ORDER says otherwise, and the driver counts by slot: on machines with unlike GPUs the two can differ.
    """
    said = environment.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        return tuple(range(len(gpus)))
    found: list[int] = []
    for name in (part.strip() for part in said.split(",")):
        matching = [
            index
            for index, gpu in enumerate(gpus)
            if name == str(index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))
        ]
        if len(matching) != 1:
            break
        found += matching
    return tuple(found)


def find_meters(
    section: EnergySection,
    devices: Devices,
    *,
    powercap: Path = POWERCAP,
    cpuinfo: Path = CPUINFO,
    environment: Mapping[str, str] = os.environ,
) -> Meters:
    """Return what can be read of `devices` here. It waits for the driver, if there is one, so call it on a thread."""
    if section.watts is not None:
        return choose_meters(section, devices, gpus=None, rapl=NO_RAPL, processor="", environment=environment)
    return choose_meters(
        section,
        devices,
        gpus=find_gpus() if devices.num_gpus else None,
        rapl=find_rapl(powercap),
        processor=cpu_name(cpuinfo),
        environment=environment,
    )


def choose_meters(
    section: EnergySection,
    devices: Devices,
    *,
    gpus: Gpus | None,
    rapl: Rapl,
    processor: str,
    threads: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Meters:
    """Return which of the meters count, and what is estimated without them."""
    if section.watts is not None:
        told = f"[energy] watts = {section.watts:g}"
        return Meters(told=told, watts=section.watts, source=EnergySource.OWNER)
    if gpus is not None:
        chosen = visible(gpus.gpus, environment)[devices.first : devices.first + devices.num_gpus]
        if chosen:
            return _with_gpus(gpus, chosen, rapl)
    if rapl.zones:
        return Meters(told="the processors' counters (RAPL), with everything that runs on them", rapl=rapl)
    watts = cpu_watts(processor, threads or os.cpu_count() or 1)
    hidden = f"; {HIDDEN}" if rapl.is_hidden else ""
    if watts is None:
        return Meters(told=UNKNOWN + hidden)
    return Meters(told=f"typical watts of {processor}, {watts:.0f} here{hidden}", watts=watts)


def _with_gpus(gpus: Gpus, chosen: tuple[int, ...], rapl: Rapl) -> Meters:
    """Return the meters of GPUs, and of processors if they can be read. Next to a GPU the processors' share is small,
    and no table knows it."""
    names = ", ".join(gpus.gpus[index].name for index in chosen)
    beside = ", and the processors' (RAPL)" if rapl.zones else ", without the processors"
    beside += f"; {HIDDEN}" if rapl.is_hidden else ""
    if all(_of_gpu(gpus, index) is not None for index in chosen):
        return Meters(told=f"meters of {names} (NVML){beside}", gpus=gpus, indexes=chosen, rapl=rapl)
    known = [gpu_watts(gpus.gpus[index].name) for index in chosen]
    if None in known:
        told = f"the processors' counters (RAPL), without {names}" if rapl.zones else UNKNOWN
        return Meters(told=told, rapl=rapl)
    watts = sum(one for one in known if one is not None)
    return Meters(told=f"typical watts of {names}, {watts:.0f} in all{beside}", watts=watts, rapl=rapl)


def _of_gpu(gpus: Gpus, index: int) -> Reading | None:
    device = f"gpu:{index}"
    if (joules := gpus.joules(index)) is not None:
        return Counter(device=device, source=EnergySource.NVML, joules=joules)
    if (watts := gpus.watts(index)) is not None:
        return Power(device=device, source=EnergySource.NVML, watts=watts)
    return None
