"""Train low-rank adapters: W + (alpha / r) B A, with only A and B trained (LoRA, Hu et al., arXiv 2106.09685).

B begins at zero, so the first version is the base model.

Invariants:

- The base model's weights never change. An export holds the same files, linked and not copied, so their chunks have the
  same names in every version and are sent once.
- The adapter is in peft's own form, so peft, and programs that read its files, can load an export, too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from learner.artifacts.atomic_directory import TensorEntry
from learner.artifacts.file_digests import add_samples
from learner.artifacts.lora_targets import no_targets, unmatched
from learner.artifacts.model_directory import ModelDirectory, one_line
from learner.trainer_api.errors import BadRequest
from learner.trainer_api.requests import Lora
from learner.training.distributed.sharding import fill

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

PREFIX = "base_model.model."
"""Prefix of a module's name in peft's files."""


@dataclass(frozen=True, kw_only=True)
class Attached:
    """A model's adapter. `renamed`: from the names of the base model's directory to the model's names now."""

    lora: Lora
    renamed: Mapping[str, str]


def attach(model: Any, lora: Lora) -> Attached:
    """Put adapters on the linear layers of `model`, which is still on the meta device. Only they are trained.

    Raises BadRequest when no layer has a name in `lora.targets`, or peft is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise BadRequest("lora_rank is set, but peft is not installed: pip install 'volery[lora]'") from error
    before: dict[str, Tensor] = model.state_dict(keep_vars=True)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=list(lora.targets) or "all-linear",
        task_type="CAUSAL_LM",
    )
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    try:
        inject_adapter_in_model(config, model, low_cpu_mem_usage=True)
    except (ValueError, TypeError) as error:
        if missing := unmatched(lora.targets, [name for name, _ in model.named_modules()]):
            raise BadRequest(no_targets(missing, linear)) from error
        raise BadRequest(f"lora_targets: no adapter can be put on this model: {one_line(error)}") from error
    adapted = [name.partition(".lora_A.")[0] for name, _ in model.named_parameters() if ".lora_A." in name]
    if missing := unmatched(lora.targets, adapted):
        raise BadRequest(no_targets(missing, linear))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name))
    now = {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}
    return Attached(lora=lora, renamed={name: now[id(tensor)] for name, tensor in before.items()})


def is_adapter(name: str) -> bool:
    """Return whether a parameter of this name is an adapter's."""
    return ".lora_A." in name or ".lora_B." in name


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Set the first values of adapters: A uniform within 1 / sqrt(inputs), as in peft, and B zero. Equal seeds give
    equal values on any number of ranks.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        if ".lora_A." in name:
            bound = parameter.shape[1] ** -0.5
            fill(parameter, torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))
        elif ".lora_B." in name:
            fill(parameter, torch.zeros(parameter.shape))


def identity_of(directory: ModelDirectory) -> str:
    """Return a digest of the base model's weights from samples of its files: an adapter's checkpoint fits no other."""
    digest = hashlib.sha256()
    for file in sorted(set(directory.files.values())):
        add_samples(digest, file)
    return digest.hexdigest()


def link_base(directory: ModelDirectory, into: Path) -> None:
    """Put the base model's weight files, and their index if there is one, into `into`. Raises OSError."""
    names = {file.name for file in directory.files.values()}
    index = directory.path / "model.safetensors.index.json"
    for name in sorted(names | ({index.name} if index.is_file() else set())):
        source = (directory.path / name).resolve()
        try:
            os.link(source, into / name)
        except OSError:  # another disk, or one without links
            shutil.copyfile(source, into / name)


def description(lora: Lora, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the content of `adapter_config.json`."""
    modules = sorted({name.split(".lora_")[0] for name in parameters})
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": ".",
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": modules,
        "use_rslora": False,
        "use_dora": False,
    }


def entries(parameters: Mapping[str, Tensor], dtype: torch.dtype, dtype_name: str) -> Iterator[tuple[str, TensorEntry]]:
    """Yield each parameter's name with its entry in `adapter_model.safetensors`, in order."""
    for name in sorted(parameters):
        shape = tuple(parameters[name].shape)
        yield (
            name,
            TensorEntry(
                name=PREFIX + name.replace(".default.", "."),
                dtype=dtype_name,
                shape=shape,
                size_bytes=prod(shape) * dtype.itemsize,
            ),
        )
