"""Write a model directory of any size in bfloat16, with random weights, a tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

SHARD_BYTES = 200_000_000

QWEN3_06B: Mapping[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
}
"""The shapes of Qwen3-0.6B."""

HALF_A_BILLION: Mapping[str, Any] = {**QWEN3_06B, "num_hidden_layers": 26, "vocab_size": 100_000}
"""511 M parameters, 1.02 GB in bfloat16."""


def write_random_model(directory: Path, shape: Mapping[str, Any], seed: int, shard_bytes: int = SHARD_BYTES) -> int:
    """Write the model; return its number of parameters. Up to `shard_bytes` it is one file, `model.safetensors`."""
    directory.mkdir(parents=True, exist_ok=True)
    shape = dict(shape)
    config = AutoConfig.for_model(shape.pop("model_type"), **shape, dtype="bfloat16")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(directory)
    generator = torch.Generator().manual_seed(seed)
    shards: list[dict[str, torch.Tensor]] = [{}]
    number, where = 0, {}
    parameters = dict(model.named_parameters())  # tied ones count once
    for name, tensor in parameters.items():
        made = torch.ones(tensor.shape) if tensor.dim() < 2 else 0.02 * torch.randn(tensor.shape, generator=generator)
        shards[-1][name] = made.to(torch.bfloat16)
        where[name] = f"model-{number:05d}.safetensors"
        if sum(one.nbytes for one in shards[-1].values()) > shard_bytes:
            _save(directory / where[name], shards[-1])
            shards.append({})
            number += 1
    if shards[-1]:
        _save(directory / f"model-{number:05d}.safetensors", shards[-1])
    if number == 0:
        (directory / "model-00000.safetensors").rename(directory / "model.safetensors")
        return sum(map(torch.numel, parameters.values()))
    index = {"metadata": {"total_size": 2 * sum(map(torch.numel, parameters.values()))}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return sum(map(torch.numel, parameters.values()))


def _save(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, file, metadata={"format": "pt"})
    tensors.clear()
