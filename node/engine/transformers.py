"""The engine on Hugging Face transformers: its worker is `transformers_worker`, whose torch is not seen here."""

from __future__ import annotations

from dataclasses import dataclass

from node.engine.worker_engine import WorkerConfig


@dataclass(frozen=True, kw_only=True)
class TransformersConfig(WorkerConfig):
    """`python` of an environment with torch, transformers and numpy; `device` auto|cpu|cuda|cuda:N|mps;
    `kv_cache_bytes` 0: half a GPU's free memory, or 1 GiB. The worker may hold `vram_share` of its GPU's; None: no
    bound. `quantization` int8|int4: how it holds weights unless told otherwise; "": as they are published."""

    WORKER = "transformers_worker"

    vram_share: float | None = None
    quantization: str = ""

    def settings(self) -> dict[str, object]:
        own = {"ram_bytes": self.ram_bytes, "vram_share": self.vram_share, "quantization": self.quantization}
        return {**super().settings(), **own}
