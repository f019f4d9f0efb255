"""Configure the engine on Hugging Face transformers. Only its worker, `transformers_worker`, imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from node.engine.worker_engine import WorkerConfig


@dataclass(frozen=True, kw_only=True)
class TransformersConfig(WorkerConfig):
    """`python`: interpreter of an environment with torch, transformers and numpy. `device`: auto|cpu|cuda|cuda:N|mps.
    `kv_cache_bytes`: 0 for half of a GPU's free memory, or 1 GiB. `vram_share`: largest share of its GPU's memory that
    the worker may hold; None for no bound. `quantization`: int8|int4, the default format for weights; "" as they are
    published."""

    WORKER = "transformers_worker"

    vram_share: float | None = None
    quantization: str = ""

    def settings(self) -> dict[str, object]:
        own = {"ram_bytes": self.ram_bytes, "vram_share": self.vram_share, "quantization": self.quantization}
        return {**super().settings(), **own}
