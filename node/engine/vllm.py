"""Configure the engine on vLLM. Its worker, `vllm_worker`, runs in its own environment; this imports nothing of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from node.config.node_config import GPU_MEMORY_UTILIZATION
from node.engine.worker_engine import WorkerConfig


@dataclass(frozen=True, kw_only=True)
class VllmConfig(WorkerConfig):
    """`python`: interpreter of an environment with vLLM 0.32. `device`: auto|cpu|cuda|cuda:N, which this vLLM must have
    been built for. The other fields are those of `vllm_worker.engine.Settings`. The first install also starts vLLM,
    which takes another 15 to 25 s; so does a later one with another config.json."""

    WORKER = "vllm_worker"

    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION
    max_model_len: int = 0
    quantization: str = ""
    eager: bool | None = None
    """None: eager where there is no C++ compiler, which a CPU needs to compile anything."""

    @property
    def is_eager(self) -> bool:
        return self.eager if self.eager is not None else shutil.which("g++") is None

    def settings(self) -> dict[str, object]:
        names = ("tensor_parallel_size", "gpu_memory_utilization", "max_model_len", "quantization")
        own = {name: getattr(self, name) for name in names}
        return {**super().settings(), **own, "device": self.device.partition(":")[0], "eager": self.is_eager}

    def environment(self) -> Mapping[str, str]:
        # vLLM puts its sockets among temporary files, and a socket's path has at most 107 characters. So its TMPDIR is
        # the system's, unlike that of the worker's files.
        environment = {**ENVIRONMENT, "TMPDIR": tempfile.gettempdir()}
        if self.is_eager:  # vLLM compiles some small functions of its own even in eager mode
            environment["TORCHDYNAMO_DISABLE"] = "1"
        if number := self.device.partition(":")[2]:
            environment["CUDA_VISIBLE_DEVICES"] = number
        return environment


ENVIRONMENT = {
    # Binding threads to cores that other programs also use slowed a node down to a tenth.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The runner that supports custom logits processors.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # It warns often, about choices that were made on purpose.
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_HOST_IP": "127.0.0.1",
}
