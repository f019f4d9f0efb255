"""Merge low-rank adapters (LoRA), as peft writes them, into a model's weights, without peft."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from .errors import Refused
from .weight_files import PLAIN_DTYPES

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTER_PREFIX = "base_model.model."
"""The prefix that peft puts before the names of a model's modules."""
ADAPTER_OPTIONS = ("use_rslora", "use_dora", "fan_in_fan_out", "rank_pattern", "alpha_pattern", "modules_to_save")
"""Options of adapters that are more than W + scale B A."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A low-rank adapter (LoRA) as peft writes it: it adds `scale` * B @ A to the weight of each of `modules`."""

    reader: Any
    scale: float
    modules: tuple[str, ...]

    def require_fits(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raise Refused if a module's weight is missing from `shapes` (name -> shape), or does not fit the adapter."""
        for module in self.modules:
            down, up = (self.reader.get_slice(name).get_shape() for name in self._names(module))
            shape = shapes.get(f"{module}.weight")
            if shape is None or [up[0], down[1], up[1]] != [*shape, down[0]]:
                raise Refused("bad_model", f"the adapter of {module} does not fit the model's weights")

    @torch.no_grad()
    def merge_into(self, model: Any) -> None:
        """Add the adapter to the weights of `model`, its base model, in float32 and rounded once."""
        for module in self.modules:
            weight = model.get_parameter(f"{module}.weight")
            weight.copy_(self.merge(f"{module}.weight", weight))

    def merge(self, name: str, weight: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Return the base model's `weight`, called `name`, or its rows from `first` on, plus what this adapter adds, in
        float32; unchanged if it adds nothing."""
        module = name.removesuffix(".weight")
        if module == name or module not in self.modules:
            return weight
        down, up = (self.reader.get_tensor(part).to(weight.device, torch.float32) for part in self._names(module))
        return weight.float() + self.scale * (up[first : first + len(weight)] @ down)  # type: ignore[no-any-return]

    def _names(self, module: str) -> tuple[str, str]:
        return f"{ADAPTER_PREFIX}{module}.lora_A.weight", f"{ADAPTER_PREFIX}{module}.lora_B.weight"


def open_adapter(directory: Path) -> Adapter | None:
    """Return the adapter in `directory`, or None. Raises Refused("bad_model") for a kind that cannot be merged here."""
    if not (directory / ADAPTER_CONFIG).is_file():
        return None
    config = json.loads((directory / ADAPTER_CONFIG).read_text())
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise Refused("bad_model", f"{directory / ADAPTER_CONFIG} does not describe a LoRA adapter")
    other = [key for key in ADAPTER_OPTIONS if config.get(key)]
    if other or config.get("bias", "none") != "none":
        raise Refused("bad_model", f"{directory / ADAPTER_CONFIG} uses {other or ['bias']}, which are not merged here")
    reader: Any = safe_open(directory / ADAPTER_WEIGHTS, framework="pt")
    names = set(reader.keys())
    modules = {name.removeprefix(ADAPTER_PREFIX).split(".lora_")[0] for name in names}
    adapter = Adapter(reader=reader, scale=config["lora_alpha"] / config["r"], modules=tuple(sorted(modules)))
    if names != {name for module in modules for name in adapter._names(module)} or not math.isfinite(adapter.scale):
        raise Refused("bad_model", f"{directory / ADAPTER_WEIGHTS} holds tensors that are not pairs of A and B")
    if odd := sorted(name for name in names if reader.get_slice(name).get_dtype() not in PLAIN_DTYPES):
        raise Refused("bad_model", f"{directory / ADAPTER_WEIGHTS} holds {odd[0]} in a format that is not read here")
    return adapter


@contextmanager
def without_adapter(directory: Path) -> Iterator[Path]:
    """Yield a view of `directory` without its adapter: libraries that see one look for its base model elsewhere."""
    if not (directory / ADAPTER_CONFIG).is_file():
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="volery-base-", dir=os.environ.get("VOLERY_SCRATCH")) as name:
        for file in directory.iterdir():
            if file.name not in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
                (Path(name) / file.name).symlink_to(file.resolve())
        yield Path(name)
