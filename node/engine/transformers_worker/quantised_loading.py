"""A model whose weights are quantised while they are read, so that no version is ever in memory in full.

The model is built without its large tensors, each of which is then made of few bits, a block at a time, from the
memory-mapped files. What always holds: the weights are those that a full load and quantising afterwards would give;
where the files' names are not the model's own, which libraries then rename and fuse, that is what is done.
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
"""Of the memory that there is; where process and weights take more, weights are held in files."""


def build_quantised(
    config: Any,
    scheme: Scheme,
    dtype: torch.dtype,
    device: torch.device,
    stored: Stored,
    ram_bytes: int | None = None,
) -> Any:
    """A model as `config` says, on `device`, whose linear layers and embeddings are held by `scheme`; nothing is in its
    weights yet, which lie in files where `ram_bytes`, or what the machine has, is little. Refused("bad_model") where it
    has neither, or asks for more than the files can hold."""
    with bound_building(stored), torch.device("meta"):
        AutoModelForCausalLM.from_config(config, dtype=dtype)  # nothing of it is kept: only so is a bound put to it
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

    kept = [*model.parameters(), *model.buffers()]  # so that no id is given twice
    # Linear layers and embeddings first: what is tied to one of their weights is quantised wherever it is found.
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
    """Have `model`, which was loaded in full, hold its linear layers and embeddings by `scheme`, one after the other.
    Refused("bad_model") where it has neither."""
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
        del weight  # the full one goes before the next is made
    _require_some(model)


@torch.no_grad()
def fill(model: Any, sources: Mapping[str, Any], adapter: Adapter | None) -> None:
    """Put the files' tensors into `model`, each by its name, with what `adapter` adds to it."""
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
    """Where a tensor is in memory: that of two that are tied is one."""
    return tensor.place if isinstance(tensor, QuantisedWeight) else tensor.data_ptr()


def held_bytes(model: Any) -> int:
    """What a model's weights and buffers take of the memory; what is tied is counted once."""
    tensors = {id(one): one for one in (*model.parameters(), *model.buffers())}.values()
    return sum(one.held_bytes if isinstance(one, QuantisedWeight) else one.nbytes for one in tensors)


def _folder_of(model: Any, scheme: Scheme, device: torch.device, ram_bytes: int | None) -> Path | None:
    """Where weights are held in files; None: in memory, which has room for them."""
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
    """The same on `device`; where there was nothing in it, there is nothing that matters yet."""
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
    """While inside, linear layers and embeddings are built without memory; what is small, and buffers that are
    computed and in no file, are built as ever."""
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
