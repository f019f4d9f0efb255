"""Record which experts of a mixture vLLM's routers choose, at the position that each token is drawn from.

It runs in vLLM's worker process. vLLM's own capturer writes the choices of a pass into a buffer, one row per position.
The seeded sampler knows which completion the next token belongs to, and keeps the rows that were requested (`note`).
When a completion has ended, the engine fetches its experts (`take`).

vLLM 0.32 itself returns experts only with its second model runner, which runs no custom logits processors.

Invariants:

- Recording changes nothing that a model computes.
- A token's experts are those of the pass that it was drawn from. A pass that is repeated, after a pause or for lack of
  memory, replaces the earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from protocol.experts import Routing

ROUTING = "volery_routing"
"""Key in vLLM's additional configuration that says how the model routes: `layers`, `experts`, `top_k`. vLLM caches what
it compiles by its configuration, including this part."""

Noted = tuple[int, str, int]
"""A row of the batch, the name of its completion, and the position in it of the token that is drawn next."""


class Recorder:
    """Keeps the choices of a model's routers. `unsupported`: why it cannot; empty once `bind` has succeeded."""

    def __init__(self) -> None:
        self.unsupported = "vLLM holds no mixture of experts"
        self._runner: Any = None
        self._capturer: Any = None
        self._routing = Routing(layers=1, experts=1, top_k=1)
        self._places: list[int] = []
        self._kept: dict[str, list[bytes]] = {}

    def bind(self, runner: Any, vllm_config: Any, routing: Routing) -> None:
        """Listen to the routers of the model that `runner` has loaded, before anything is compiled or captured."""
        # Slow to load, and of no use to processes that load this file for the sampler alone.
        from vllm.model_executor.layers.fused_moe.layer import MoERunner
        from vllm.model_executor.layers.fused_moe.routed_experts_capturer import (
            RoutedExpertsCapturer,
            bind_routed_experts_capturer,
        )

        model = runner.get_model()
        self._places = sorted({module.layer_id for module in model.modules() if isinstance(module, MoERunner)})
        if len(self._places) != routing.layers:
            self.unsupported = f"its config has {routing.layers} layers with experts, but vLLM made {len(self._places)}"
            return
        try:
            self._capturer = RoutedExpertsCapturer(vllm_config.scheduler_config.max_num_batched_tokens, vllm_config)
            bind_routed_experts_capturer(model, self._capturer)
        except ValueError as error:  # from a kernel that routes internally and does not report its choices
            self.unsupported = str(error)
            return
        self.unsupported, self._runner, self._routing = "", runner, routing

    def note(self, wanted: Sequence[Noted]) -> None:
        """Keep the experts of the latest pass for the rows that are `wanted`."""
        if self.unsupported:
            return
        ends = self._runner.query_start_loc.np  # row i of a batch has the positions from ends[i] up to ends[i + 1]
        buffer = self._capturer.device_buffer
        last = torch.tensor([int(ends[row + 1]) - 1 for row, _, _ in wanted], device=buffer.device)
        chosen = buffer.index_select(0, last)[:, self._places].cpu().numpy().astype(self._routing.dtype)
        for (_, name, position), experts in zip(wanted, chosen, strict=True):
            self._kept.setdefault(name, [])[position:] = [experts.tobytes()]

    def take(self, names: Sequence[str], forgotten: Sequence[str]) -> list[bytes]:
        """Return the experts of each completion, token after token (`protocol.experts`). Also remove those that are
        `forgotten`."""
        for name in forgotten:
            self._kept.pop(name, None)
        return [b"".join(self._kept.pop(name, [])) for name in names]


RECORDER = Recorder()
"""The recorder of this process. vLLM makes model and sampler, and neither knows of the other."""
