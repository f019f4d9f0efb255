"""The engine on vLLM: its worker is `vllm_worker`, in an environment of its own; nothing of vLLM is seen here."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from node.config.node_config import GPU_MEMORY_UTILIZATION, OnNewVersion
from node.engine.worker_engine import HANG_S, WorkerEngine, open_worker_engine, worker_argv
from node.processes.outcomes import OnEvent
from node.processes.spec import ChildSpec, RestartLimits

WORKER = "vllm_worker"

READY_S = 300.0
"""vLLM's imports take 8 to 16 s on a fast disk; from a cold, slow one they were seen to take minutes."""


@dataclass(frozen=True, kw_only=True)
class VllmConfig:
    """How to run the worker, which errors call `name`: `python` of an environment with vLLM 0.32; `device`
    auto|cpu|cuda|cuda:N, which must be what that vLLM was built for; the rest as `vllm_worker.engine.Settings`."""

    python: Path
    name: str = "engine"
    device: str = "auto"
    compute_dtype: str = "auto"
    threads: int = 1
    nice: int = 0
    max_batch: int = 256
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION
    ram_bytes: int | None = None
    """That all of its processes together may hold; None: no bound."""
    kv_cache_bytes: int = 0
    scratch: Path | None = None
    max_model_len: int = 0
    quantization: str = ""
    on_new_version: OnNewVersion = "finish"
    eager: bool | None = None
    """None: where no C++ compiler is, which a CPU needs to compile anything."""
    hang_s: float = HANG_S
    restarts: RestartLimits = field(default_factory=RestartLimits)

    def spec(self) -> ChildSpec:
        eager = self.eager if self.eager is not None else shutil.which("g++") is None
        settings: dict[str, object] = {
            "device": self.device.partition(":")[0],
            "compute_dtype": self.compute_dtype,
            "threads": self.threads,
            "max_batch": self.max_batch,
            "tensor_parallel_size": self.tensor_parallel_size,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "kv_cache_bytes": self.kv_cache_bytes,
            "max_model_len": self.max_model_len,
            "quantization": self.quantization,
            "eager": eager,
        }
        return ChildSpec(
            name=self.name,
            argv=worker_argv(self.python, WORKER, settings),
            env=self._environment(eager),
            threads=self.threads,
            nice=self.nice,
            cancel_op="cancel",
            scratch=self.scratch,
            ready_timeout_s=READY_S,
            memory_bytes=self.ram_bytes,
            silence_s=self.hang_s,
            yields_memory=True,
            restarts=self.restarts,
        )

    def _environment(self, eager: bool) -> dict[str, str]:
        environment = dict(ENVIRONMENT)
        # vLLM's sockets lie among temporary files, and a socket's path has at most 107 characters: they stay where the
        # system has its own. The worker's files do not.
        environment["TMPDIR"] = tempfile.gettempdir()
        if eager:  # vLLM compiles some small functions for its own use even if told not to
            environment["TORCHDYNAMO_DISABLE"] = "1"
        if number := self.device.partition(":")[2]:
            environment["CUDA_VISIBLE_DEVICES"] = number
        return environment


ENVIRONMENT = {
    # Threads bound to cores that others use, too, were seen to slow a node down to a tenth.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The one that runs logits processors of others.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # Its warnings are many, and about choices made on purpose.
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_HOST_IP": "127.0.0.1",
}


@asynccontextmanager
async def open_vllm_engine(
    config: VllmConfig, *, on_event: OnEvent = lambda event: None
) -> AsyncIterator[WorkerEngine]:
    """Start the worker (its imports take 8 to 16 s) and yield the engine. Otherwise as `open_worker_engine`.

    The first install starts vLLM itself, another 15 to 25 s; so does any later one whose config.json differs.
    """
    async with open_worker_engine(config.spec(), on_new_version=config.on_new_version, on_event=on_event) as engine:
        yield engine
