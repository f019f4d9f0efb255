"""The engine on Hugging Face transformers: its worker is `transformers_worker`, whose torch is not seen here."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from node.engine.worker_engine import HANG_S, WorkerEngine, open_worker_engine, worker_argv
from node.processes.outcomes import OnEvent
from node.processes.spec import ChildSpec, RestartLimits

WORKER = "transformers_worker"


@dataclass(frozen=True, kw_only=True)
class TransformersConfig:
    """How to run the worker, which errors call `name`.

    `python` of any environment with torch, transformers and numpy; `device` auto|cpu|cuda|cuda:N|mps; `compute_dtype`
    auto|float32|bfloat16|float16, where auto is float32 on a CPU and as stored elsewhere; `max_batch` completions at a
    time; `kv_cache_bytes` that a batch may fill, 0 for half a GPU's free memory or 1 GiB. The worker may hold
    `ram_bytes` of memory and `vram_share` of its GPU's; None: no bound. `scratch` as in `ChildSpec`, and
    `hang_s` as its `silence_s`.
    """

    name: str = "engine"
    python: Path = Path(sys.executable)
    device: str = "auto"
    compute_dtype: str = "auto"
    threads: int = 1
    nice: int = 0
    max_batch: int = 256
    kv_cache_bytes: int = 0
    ram_bytes: int | None = None
    vram_share: float | None = None
    scratch: Path | None = None
    hang_s: float = HANG_S
    restarts: RestartLimits = field(default_factory=RestartLimits)

    def spec(self) -> ChildSpec:
        settings = {
            "device": self.device,
            "compute_dtype": self.compute_dtype,
            "threads": self.threads,
            "max_batch": self.max_batch,
            "kv_cache_bytes": self.kv_cache_bytes,
            "ram_bytes": self.ram_bytes,
            "vram_share": self.vram_share,
        }
        return ChildSpec(
            name=self.name,
            argv=worker_argv(self.python, WORKER, settings),
            threads=self.threads,
            nice=self.nice,
            cancel_op="cancel",
            memory_bytes=self.ram_bytes,
            silence_s=self.hang_s,
            yields_memory=True,
            scratch=self.scratch,
            restarts=self.restarts,
        )


@asynccontextmanager
async def open_transformers_engine(
    config: TransformersConfig, *, on_event: OnEvent = lambda event: None
) -> AsyncIterator[WorkerEngine]:
    """Start the worker (some seconds: it imports torch) and yield the engine. Otherwise as `open_worker_engine`."""
    async with open_worker_engine(config.spec(), on_event=on_event) as engine:
        yield engine
