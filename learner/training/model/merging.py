"""Add an adapter into its base model's weights, for an export that needs no other files.

The sum is W + (alpha / r) B A in float32, rounded once to the dtype of the export (LoRA, Hu et al., arXiv 2106.09685,
section 4.1). Each rank adds up its own rows, because FSDP cuts W and B by the same rows.

Invariants:

- The policy stays as it is, to the bit.
- The result lies on the host, in the dtype of the export, so a GPU holds one merged tensor at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from learner.trainer_api.errors import BadRequest
from learner.training.distributed.sharding import local, whole
from learner.training.model.policy import Policy


@torch.no_grad()
def merged(policy: Policy, targets: Sequence[str], dtype: torch.dtype) -> list[Tensor]:
    """Return this rank's slices of the tensors that the directory calls `targets`, with adapters merged into them.

    A collective if the policy is cut. Raises BadRequest if an adapter lies on a weight that other layers share.
    """
    assert policy.attached is not None, "there is an adapter"
    scale, trained = policy.attached.lora.alpha / policy.attached.lora.rank, dict(policy.parameters)
    found = []
    for name in targets:
        mine = local(policy.by_name[name].detach())
        module, is_adapted, _ = policy.attached.renamed[name].rpartition(BASE)
        if is_adapted:
            _require_alone(policy, name, module)
            down, up = (trained[f"{module}.{part}.default.weight"] for part in ("lora_A", "lora_B"))
            mine = (mine.float() + scale * (local(up.detach()) @ whole(down))).to(dtype).cpu()
        found.append(mine)
    return found


BASE = ".base_layer.weight"
"""The end of a weight's name in peft, if the weight has an adapter."""


def _require_alone(policy: Policy, name: str, module: str) -> None:
    """Raise BadRequest if the model also has the weight `name` under another name, for example as its embedding."""
    weight = policy.by_name[name]
    if sum(one is weight for one in policy.by_name.values()) > 1:
        raise BadRequest(
            f"the adapter on {module.rpartition('.')[2]} cannot be merged: another layer shares its weights. Leave it "
            "out of lora_targets"
        )
