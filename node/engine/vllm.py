"""The engine on vLLM: its worker is `vllm_worker`, in an environment of its own; nothing of vLLM is seen here."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from node.config.node_config import GPU_MEMORY_UTILIZATION
from node.engine.worker_engine import WorkerConfig


@dataclass(frozen=True, kw_only=True)
class VllmConfig(WorkerConfig):
    """`python` of an environment with vLLM 0.32; `device` auto|cpu|cuda|cuda:N, which must be what that vLLM was built
    for; the rest as `vllm_worker.engine.Settings`. The first install starts vLLM itself, another 15 to 25 s; so does
    any later one whose config.json differs."""

    WORKER = "vllm_worker"

    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION
    max_model_len: int = 0
    quantization: str = ""
    eager: bool | None = None
    """None: where no C++ compiler is, which a CPU needs to compile anything."""

    @property
    def is_eager(self) -> bool:
        return self.eager if self.eager is not None else shutil.which("g++") is None

    def settings(self) -> dict[str, object]:
        names = ("tensor_parallel_size", "gpu_memory_utilization", "max_model_len", "quantization")
        own = {name: getattr(self, name) for name in names}
        return {**super().settings(), **own, "device": self.device.partition(":")[0], "eager": self.is_eager}

    def environment(self) -> Mapping[str, str]:
        # vLLM's sockets lie among temporary files, and a socket's path has at most 107 characters: they stay where the
        # system has its own. The worker's files do not.
        environment = {**ENVIRONMENT, "TMPDIR": tempfile.gettempdir()}
        if self.is_eager:  # vLLM compiles some small functions for its own use even if told not to
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
