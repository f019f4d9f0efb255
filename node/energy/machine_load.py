"""Measure how busy this machine is with a node, and say it in words: processor, memory, and NVIDIA's GPUs.

The page and the terminal of a node show the same figures.

Invariants:

- Nothing here raises for what a machine lacks or a driver refuses.
- `follow_load` measures on a thread, so a driver that hangs blocks nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil
import trio

from node.energy.nvml import Gpus, find_gpus
from node.runtime import formatting as words

LOAD_S = 2.0
"""Seconds between two measurements: often enough to look alive, for 2 ms of the processor where a
hundred processes run."""


GPU_CHARS = 48
"""Most characters of a GPU's name: more than the longest that NVIDIA gives."""


@dataclass(frozen=True, kw_only=True)
class LoadFigure:
    """One figure: what it is about, its value, and what belongs to the value."""

    name: str
    value: str
    more: str

    @property
    def text(self) -> str:
        """Return the figure in a line."""
        return " ".join(part for part in (self.name, self.value, self.more) if part not in ("", words.NOTHING))


@dataclass(frozen=True, kw_only=True)
class GpuLoad:
    """One GPU. `busy`: fraction of the last moments; None if it is not reported."""

    name: str
    busy: float | None = None
    used_bytes: int | None = None
    celsius: int | None = None

    @property
    def figure(self) -> LoadFigure:
        """Return how busy it is, its memory in use, and its temperature, as far as the driver reports them."""
        told = [
            "" if self.busy is None else "busy",
            "" if self.used_bytes is None else f"{words.size(self.used_bytes)} used",
            "" if self.celsius is None else f"{self.celsius} °C",
        ]
        name = words.plain_name(self.name, GPU_CHARS)
        return LoadFigure(name=name, value=words.share(self.busy), more=", ".join(filter(None, told)))


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the node and its children use. `cpu`: fraction of all cores; None before there is a time to measure over."""

    cpu: float | None = None
    cores: int = 1
    memory_bytes: int = 0
    all_memory_bytes: int = 0
    gpus: Sequence[GpuLoad] = ()

    @property
    def figures(self) -> list[LoadFigure]:
        """Return the load of the processor, of the memory, and of each GPU."""
        memory, all_memory = words.size(self.memory_bytes), words.size(self.all_memory_bytes)
        return [
            LoadFigure(name="processor", value=words.share(self.cpu), more=f"of {words.counted(self.cores, 'core')}"),
            LoadFigure(name="memory", value=memory, more=f"of {all_memory}"),
            *(gpu.figure for gpu in self.gpus),
        ]


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
        is_first = not self._before
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
            cpu=None if is_first else cpu / 100 / cores,
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


async def follow_load(pid: int, take: Callable[[Load], None]) -> None:
    """Measure the process `pid` with its children every LOAD_S seconds, and hand on what was found, until cancelled."""
    meter = await trio.to_thread.run_sync(LoadMeter, pid, abandon_on_cancel=True)
    while True:
        take(await trio.to_thread.run_sync(meter.measure, abandon_on_cancel=True))
        await trio.sleep(LOAD_S)
