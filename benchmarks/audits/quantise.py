"""Quantise weights as a careless peer might: round them to few bits, and store the result.

Invariants:

- Embeddings, head and norms stay unchanged, as quantisers leave them.
- Values are those that a kernel would compute with (quantised and scaled back), written under the same names, so that
  any engine loads them.
- Rounding is to nearest, the least that a quantiser does.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

GROUP = 32
"""Weights that share a scale at 4 bits, as in GGUF's Q4_0: the finest grid in common use."""

FP8_LARGEST = 448.0


def int4(weights: torch.Tensor) -> torch.Tensor:
    """Round weights (out, in) to 15 steps for each GROUP of a row."""
    rows, columns = weights.shape
    padded = torch.nn.functional.pad(weights, (0, -columns % GROUP)).view(rows, -1, GROUP)
    scale = padded.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 7
    return (torch.round(padded / scale).clamp(-7, 7) * scale).view(rows, -1)[:, :columns].contiguous()


def int8(weights: torch.Tensor) -> torch.Tensor:
    """Round to 255 steps for each output channel."""
    scale = weights.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
    return torch.round(weights / scale).clamp(-127, 127) * scale


def fp8(weights: torch.Tensor) -> torch.Tensor:
    """Round to e4m3 with one scale for the matrix, as vLLM quantises while it loads."""
    scale = weights.abs().amax().clamp_min(1e-12) / FP8_LARGEST
    return (weights / scale).to(torch.float8_e4m3fn).to(weights.dtype) * scale


QUANTISERS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {"4-bit": int4, "int8": int8, "fp8": fp8}


def quantised(source: Path, target: Path, how: str) -> Path:
    """Write the model of `source` into the new directory `target` with its linear layers quantised; return that."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, target / path.name)
            continue
        tensors = {name: tensor.float() for name, tensor in load_file(path).items()}
        for name, tensor in tensors.items():
            if tensor.ndim == 2 and "embed" not in name and "lm_head" not in name:
                tensors[name] = QUANTISERS[how](tensor)
        save_file(tensors, target / path.name, metadata={"format": "pt"})
    return target
