"""Run one pass of a model over the next tokens of a batch."""

from __future__ import annotations

from typing import Any

import torch

from .kv_cache import Memory


def read_on(
    model: Any,
    ids: torch.Tensor,
    mask: torch.Tensor | None,
    positions: torch.Tensor,
    memory: Memory,
    first_position: int,
) -> torch.Tensor:
    """Read `ids` (B, T), which follow the tokens in `memory`; return the logits (B, V) after the last of them.

    `mask` (B, all columns) is 0 where prompts are padded, or None without padding. `positions` (B, T) count from 0.
    They are always passed: a model alone counts what its first layer keeps, and recurrent layers keep no count.
    """
    told: dict[str, Any] = {} if mask is None else {"attention_mask": mask}
    told["position_ids"] = positions + first_position
    output = model(input_ids=ids, logits_to_keep=1, **memory.arguments(), **told)
    memory.take(output)
    return output.logits[:, -1]  # type: ignore[no-any-return]
