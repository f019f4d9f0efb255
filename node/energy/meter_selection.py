"""Which devices count here, and how they are read: what the owner says goes before every meter, meters before the
table, and what the table does not know stays unknown.

Pure but for `find_meters`. What always holds: of GPUs those count that the engine may use, never all that there are;
why it is so is told in a sentence (`Meters.told`).
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
    "the processors' counters are for root alone, and sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj opens "
    "them"
)
UNKNOWN = "no meter can be read here, and the table knows no such device: [energy] watts says what it takes"


NO_RAPL = Rapl(zones=())


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What computes: processors alone, or the first `num_gpus` of the visible GPUs from number `first` on."""

    num_gpus: int = 0
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class Meters:
    """What is looked at, and what is estimated: so many watts while it computes, from this source. `told` says it."""

    told: str
    gpus: Gpus | None = None
    indexes: tuple[int, ...] = ()
    rapl: Rapl = NO_RAPL
    watts: float | None = None
    source: EnergySource = EnergySource.TABLE

    def look(self) -> list[Reading]:
        """What meters show now. May wait for a driver."""
        found = [] if self.gpus is None else [_of_gpu(self.gpus, index) for index in self.indexes]
        return [*self.rapl.look(), *(reading for reading in found if reading is not None)]


def devices_of(engine: EngineSection) -> Devices:
    """What an engine computes on, its kind having been chosen."""
    if engine.kind == "fake" or engine.device in ("cpu", "mps"):
        return Devices()
    _, _, number = engine.device.partition(":")
    return Devices(
        num_gpus=engine.tensor_parallel_size if engine.kind == "vllm" else 1, first=int(number) if number else 0
    )


def devices_of_trainer(trainer: TrainerSection) -> Devices:
    """What the trainer computes on, on this machine."""
    return Devices() if trainer.device == "cpu" else Devices(num_gpus=trainer.ranks)


def visible(gpus: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """Indexes of the GPUs that CUDA shows to programs here, in its order.

    As CUDA reads it, what follows a name that is none of the GPUs' is not seen. CUDA counts the fastest first unless
    CUDA_DEVICE_ORDER says otherwise, the driver by slot: on machines with unlike GPUs these can differ.
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
    """What can be read of `devices` here. Waits for the driver, if there is one: call it on a thread."""
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
    """What of the meters that there are counts, and what is estimated where they do not tell."""
    if section.watts is not None:
        told = f"[energy] watts = {section.watts:g}"
        return Meters(told=told, watts=section.watts, source=EnergySource.OWNER)
    if gpus is not None:
        chosen = visible(gpus.gpus, environment)[devices.first : devices.first + devices.num_gpus]
        if chosen:
            return _with_gpus(gpus, chosen, rapl)
    if rapl.zones:
        return Meters(told="the processors' counters (RAPL): all that runs on them counts", rapl=rapl)
    watts = cpu_watts(processor, threads or os.cpu_count() or 1)
    hidden = f"; {HIDDEN}" if rapl.is_hidden else ""
    if watts is None:
        return Meters(told=UNKNOWN + hidden)
    return Meters(told=f"typical watts of {processor}, {watts:.0f} here{hidden}", watts=watts)


def _with_gpus(gpus: Gpus, chosen: tuple[int, ...], rapl: Rapl) -> Meters:
    """GPUs, and processors where those can be read: beside a GPU's their share is small, and no table tells it."""
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
