"""Swap weights inside vLLM's workers, which are separate processes.

Invariants:

- Tensors are read from the files that a model directory's index names, and an adapter is merged on the way.
- After a swap no layer computes with any part of the old weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.platforms import current_platform

from ..common_worker.lora import open_adapter
from ..common_worker.weight_files import weight_files


class WeightSwap:
    """A part of vLLM's worker class, which supplies `reload_weights` and `model_runner`."""

    reload_weights: Any
    model_runner: Any

    def volery_swap(self, directory: str) -> None:
        """Load the weights of `directory` in place. Nothing may run, and no cache of the old weights may be used."""
        modules = list(self.model_runner.get_model().modules())
        if current_platform.is_cpu():
            # vLLM 0.32: the kernel of a mixture of experts packs its weights when it is made, but not at a reload. It
            # would then treat unpacked weights as packed. So the kernel is made again.
            for module in modules:
                method: Any = getattr(module, "quant_method", None)
                if hasattr(method, "moe_kernel"):
                    method.moe_kernel = None
        self.reload_weights(weights_iterator=tensors_of(Path(directory)))
        for module in modules:
            # vLLM 0.32 on a CPU: the head holds a packed copy, which a reload of tied embeddings does not update.
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)


def tensors_of(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of a model directory by name, with its adapter merged if it has one."""
    adapter = open_adapter(directory)
    for path in weight_files(directory):
        reader: Any = safe_open(path, framework="pt")
        for name in reader.keys():  # noqa: SIM118
            tensor = reader.get_tensor(name)
            yield name, tensor if adapter is None else adapter.merge(name, tensor)
