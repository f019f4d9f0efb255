"""Cut a policy over ranks: every layer's weights in equal slices, gathered layer by layer as they are used (FSDP2).

Zhao et al., arXiv 2304.11277; torch's `fully_shard`.

Invariants:

- Weights, moments and gradients are float32, and each rank holds its slice of each. A layer computes in the compute
  dtype.
- Gradients are summed over ranks in float32, not averaged, because a loss is divided by the size of the whole batch
  (`learner.training.objective`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from learner.training.distributed.ranks import Ranks


def shard(root: nn.Module, model: Any, ranks: Ranks) -> None:
    """Cut `model`, whose parameters are still on the meta device, over the ranks, and allocate each rank's slices.

    `root` is the module whose forward is called: parameters that belong to no layer are gathered there.
    """
    assert ranks.mesh is not None, "place() came first"
    policy = MixedPrecisionPolicy(param_dtype=ranks.compute_dtype, reduce_dtype=torch.float32)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for module in (*layers_of(model), root):
        # The root's as well: weights left gathered by a forward pass without a backward would be a second copy.
        fully_shard(module, mesh=ranks.mesh, mp_policy=policy, reshard_after_forward=True)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum, and this one needs no scale
    root.to_empty(device=ranks.device)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])  # computed from the config, and in no file


def layers_of(model: Any) -> list[nn.Module]:
    """Return the blocks that transformers says must not be split: the decoder's layers, whether they are cut or not.

    Blocks that hold the embedding, which BERT's descendants name as well, are left out: the embedding may be tied to
    the head, and the two must be gathered together.
    """
    names = set(model._no_split_modules or ())
    embedding = model.get_input_embeddings()
    # FSDP gives a module that is cut a class with another name, whose base is the module's own class.
    layers = [module for module in model.modules() if names & {one.__name__ for one in type(module).__mro__}]
    layers = [layer for layer in layers if embedding not in layer.modules()]
    inner = {id(one) for layer in layers for one in layer.modules() if one is not layer}
    return [layer for layer in layers if id(layer) not in inner]


def local(tensor: Tensor) -> Tensor:
    """Return this rank's slice of `tensor`: all of it, unless it is cut."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return all of `tensor`, as `dtype`, on this rank's device. A collective if it is cut."""
    converted = tensor.detach().to(dtype or tensor.dtype)
    return converted.full_tensor() if isinstance(converted, DTensor) else converted


def gathered(mine: Tensor, like: Tensor, ranks: Ranks, to: int) -> Tensor | None:
    """Return, on rank `to`, all of a tensor that is cut as `like` is. Each rank gives its slice, flat and on the host.

    Returns None on the other ranks. A collective of `ranks.group`, which uses neither a GPU nor the groups of training.
    """
    if not isinstance(like, DTensor) or ranks.count == 1:
        return mine.reshape(like.shape) if ranks.number == to else None
    assert all(one.is_shard(0) for one in like.placements), "`shard` cuts the first dimension and no other"
    rows = -(-like.shape[0] // ranks.count)  # as FSDP cuts: the last ranks have fewer rows, or none
    size = rows * (like.numel() // max(1, like.shape[0]))
    padded = mine if len(mine) == size else torch.cat([mine, mine.new_zeros(size - len(mine))])
    every = ranks.gather(padded.view(torch.uint8), to)
    return None if every is None else every.reshape(-1).view(mine.dtype)[: like.numel()].reshape(like.shape)


def place(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the offsets and sizes of this rank's slice in the whole `tensor`."""
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.dim(), tuple(tensor.shape)
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(offsets), tuple(sizes)


@torch.no_grad()
def fill(target: Tensor, values: Tensor) -> None:
    """Copy into this rank's slice of `target` its part of the whole `values`."""
    offsets, sizes = place(target)
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        values = values.narrow(dim, min(offset, values.shape[dim]), size)
    local(target).copy_(values)


@torch.no_grad()
def fill_rows(target: Tensor, rows: Tensor) -> None:
    """Copy `rows`, this rank's own, into its slice of `target`: `shard` cuts only the first dimension."""
    local(target).copy_(rows)
