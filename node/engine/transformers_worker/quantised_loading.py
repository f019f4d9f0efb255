"""Quantise a model's weights while they are read, so that no version is ever in memory in full.

The model is built without its large tensors. Each of them is then made in few bits, a block at a time, from the
memory-mapped files.

Invariants:

- The weights are those that a full load and quantising afterwards would give.
- If the tensors' names in the files are not the model's own, so that libraries rename and fuse them, the model is
  loaded in full and quantised afterwards.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from ..common_worker.errors import Refused
from ..common_worker.lora import Adapter
from ..common_worker.memory_bound import PROCESS_BYTES, whole_memory
from ..common_worker.sizes import Stored
from .building import bound_building
from .quantised_weights import QuantisedWeight, Scheme, is_quantisable, quantised

ROOMY = 0.75
"""Fraction of the memory that process and weights may take; beyond it the weights are held in files."""


def build_quantised(
    config: Any,
    scheme: Scheme,
    dtype: torch.dtype,
    device: torch.device,
    stored: Stored,
    ram_bytes: int | None = None,
) -> Any:
    """Return a model for `config` on `device` whose linear layers and embeddings are held by `scheme`, without values.
    The weights are in files if `ram_bytes`, or the machine's memory, is small. Raises Refused("bad_model") if the model
    has neither kind of layer, or asks for more than the files can hold."""
    with bound_building(stored), torch.device("meta"):
        AutoModelForCausalLM.from_config(config, dtype=dtype)  # only to apply the bound; nothing of it is kept
    with _large_on_meta():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    folder = _folder_of(model, scheme, device, ram_bytes)
    made: dict[int, Tensor] = {}  # tied weights are one tensor, before and after

    def put(module: nn.Module, name: str, weight: Tensor) -> Tensor:
        if id(weight) not in made:
            if is_quantisable(module, name, weight):
                made[id(weight)] = QuantisedWeight(scheme, weight.shape, dtype, device, folder)
            else:
                made[id(weight)] = _here(weight, device)
        return made[id(weight)]

    kept = [*model.parameters(), *model.buffers()]  # so that no id is used twice
    # Linear layers and embeddings first: a tensor that is tied to one of their weights is quantised everywhere.
    modules = sorted(model.modules(), key=lambda module: not isinstance(module, nn.Linear | nn.Embedding))
    for module in modules:
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = put(module, name, weight)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = put(module, name, buffer)
    del kept
    _require_some(model)
    return model.eval()


def quantise(model: Any, scheme: Scheme) -> None:
    """Replace the linear layers' and embeddings' weights of a fully loaded `model` by weights of `scheme`, one by one.
    Raises Refused("bad_model") if it has neither."""
    made: dict[int, QuantisedWeight] = {}
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and is_quantisable(module, name, weight):
                owners.setdefault(id(weight), []).append((module, name))
    for places in owners.values():
        module, name = places[0]
        weight = module._parameters[name]
        assert weight is not None, "it was found there"
        made[id(weight)] = packed = quantised(weight, scheme, weight.dtype, weight.device)
        for module, name in places:
            module._parameters[name] = packed  # type: ignore[assignment]
        del weight  # the full one is freed before the next is made
    _require_some(model)


@torch.no_grad()
def fill(model: Any, sources: Mapping[str, Any], adapter: Adapter | None) -> None:
    """Copy the files' tensors into `model` by name, and add what `adapter` contributes to each."""
    targets: dict[str, Tensor] = model.state_dict()
    for name, reader in sources.items():
        target = targets[name]
        if isinstance(target, QuantisedWeight):
            rows = reader.get_slice(name)
            for first, end in target.blocks():
                block = rows[first:end]
                target.write_rows(first, block if adapter is None else adapter.merge(name, block, first))
            target.settle()
        else:
            tensor = reader.get_tensor(name)
            target.copy_(tensor if adapter is None else adapter.merge(name, tensor))


def place_of(tensor: Tensor) -> int:
    """Return a tensor's address in memory; tied tensors have the same."""
    return tensor.place if isinstance(tensor, QuantisedWeight) else tensor.data_ptr()


def held_bytes(model: Any) -> int:
    """Return the bytes of memory that a model's weights and buffers take; tied tensors are counted once."""
    tensors = {id(one): one for one in (*model.parameters(), *model.buffers())}.values()
    return sum(one.held_bytes if isinstance(one, QuantisedWeight) else one.nbytes for one in tensors)


def _folder_of(model: Any, scheme: Scheme, device: torch.device, ram_bytes: int | None) -> Path | None:
    """Return the folder for weights that are held in files; None if there is room for them in memory."""
    known = [bound for bound in (ram_bytes, whole_memory()) if bound is not None]
    if device.type != "cpu" or not known:
        return None
    shapes = {id(weight): weight.shape for weight in model.parameters() if weight.is_meta and weight.dim() == 2}
    parts = [part for shape in shapes.values() for part in scheme.parts(shape).values()]
    held = sum(math.prod(size) * kind.itemsize for size, kind in parts)
    if PROCESS_BYTES + held <= ROOMY * min(known):
        return None
    return Path(os.environ.get("VOLERY_SCRATCH") or tempfile.gettempdir())


def _here(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on `device`; a tensor without values stays without."""
    moved = torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.detach().to(device)
    return nn.Parameter(moved, requires_grad=False) if isinstance(tensor, nn.Parameter) else moved


def _require_some(model: Any) -> None:
    if not any(isinstance(one, QuantisedWeight) for one in model.parameters()):
        raise Refused(
            "bad_model",
            f"{type(model).__name__} has no linear layers or embeddings that could be quantised: set [engine] "
            'quantization = ""',
        )


@contextmanager
def _large_on_meta() -> Iterator[None]:
    """Build linear layers and embeddings without memory while inside. Small layers, and computed buffers that are in no
    file, are built as usual."""
    before: dict[type[nn.Module], Callable[..., None]] = {one: one.__init__ for one in (nn.Linear, nn.Embedding)}

    def without_memory(begin: Callable[..., None]) -> Callable[..., None]:
        @wraps(begin)
        def begun(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            begin(module, *args, **{**kwargs, "device": "meta"})

        return begun

    for kind, begin in before.items():
        kind.__init__ = without_memory(begin)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind, begin in before.items():
            kind.__init__ = begin  # type: ignore[method-assign]
